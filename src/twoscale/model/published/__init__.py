"""Published looped models: their config.json as the section `model`, their tensors as our
parameters.
"""

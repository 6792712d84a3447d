"""Published looped models: their config.json as the section `model`, their tensors as our parameters, name by name.

A family is one file here and one entry of `twoscale.model.published.folder.FAMILIES`. Only `weights` needs torch.
"""

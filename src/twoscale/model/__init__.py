"""Looped models: the interface, the transformer of the paper, noise and checkpoints."""

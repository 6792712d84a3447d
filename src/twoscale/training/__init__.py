"""Training: one segment between two checkpoints, its processes, and the cost of a run."""

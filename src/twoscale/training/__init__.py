"""Training: one segment between two checkpoints, its processes, what is shown while it runs, and the cost of a run."""

"""Training: one segment between two checkpoints, its state and processes, and what is shown while
it runs.
"""

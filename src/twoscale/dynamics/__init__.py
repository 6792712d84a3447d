"""Trajectories through the loops: states, measures, path types."""

"""Trajectories through the loops: measures, path types, path independence."""

"""Trajectories through the loops: measures, path types, path independence, the spectrum."""

"""Estimates of the spectral radius of a loop step by published recipes, on maps of known spectrum and trained loops."""

"""Adaptive exits: criteria, the parallel engine and the decoder that run them, generation,
benchmarks.
"""

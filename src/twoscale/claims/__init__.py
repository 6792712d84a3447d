"""Verdicts on the claims of the paper, from tables; no torch."""

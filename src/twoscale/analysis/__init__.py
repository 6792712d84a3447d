"""Statistics, claims and report pages, computed from tables; no torch."""

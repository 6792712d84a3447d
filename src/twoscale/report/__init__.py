"""Pages, and released tables; no torch."""

"""Recording of any torch module that loops, and the figures and claims of what was recorded."""

"""Studies: questions beyond the paper, one folder each. They import no other study."""

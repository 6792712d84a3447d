"""Studies beyond the paper: a folder each, found by `twoscale.base.study_parts`."""

"""Tools for a machine with a GPU, run by hand: its check, and a long training run in pieces, without Snakemake."""

"""What is run by hand on a machine with a GPU: its check, and a long training run in pieces. No Snakemake is needed."""

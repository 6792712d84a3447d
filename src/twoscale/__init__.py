"""Two-scale latent dynamics of recurrent-depth transformers: the library behind the workflow."""

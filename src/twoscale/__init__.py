"""Two-scale latent dynamics of looped transformers: data, models, measures, exits, analysis and figures."""

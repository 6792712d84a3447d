"""Release of a trained model: a folder that the transformers library loads without this one."""

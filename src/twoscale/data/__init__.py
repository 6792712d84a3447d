"""Text sources, tokenizers, token shards and batches."""

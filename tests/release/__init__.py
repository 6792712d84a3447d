"""Released models in the transformers library and in lm-eval: make test-tools SUITE=release."""

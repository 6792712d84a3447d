"""Exit rules replayed on recorded losses and signals, without the model and without torch.

A recording has the loss of every token at every depth, and signals such as the entropy of the
prediction. `twoscale exits check` asks which rule, if any, a user should exit by (docs/exits.md).
"""

TOLERANCE = 0.01  # loss above full depth that is allowed unless another is given, nats per token

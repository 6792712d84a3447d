"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # One row per (group, loop step, held-out sequence) at the last checkpoint: what x^k predicts through the layers
    # after its group, as means over the tokens of the sequence.
    "lens": table(
        "run iteration group k sequence document tokens ce",
        k=("int32", "loop steps before the decoded state"),
        entropy=("float64", "entropy of the prediction in nats per token"),
        log_rank=(
            "float64",
            "logarithm of the rank of the correct token; the exponential of the mean is a geometric mean",
        ),
        right=("float64", "share of tokens whose most likely next token is correct"),
        lost=(
            "float64",
            "share of tokens predicted wrongly, but correctly at an earlier k > 0 in the table; null at k = 0",
        ),
        lost_since_mean=("float64", "the same share among tokens predicted correctly at the mean loops of training"),
    ),
}

"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # One row per (group, loop step, held-out sequence) at the last checkpoint: what x^k predicts through the layers
    # after its group, means over the tokens of the sequence.
    "lens": table(
        "run iteration group k sequence document tokens ce",
        k=("int32", "loop steps before the decoded state"),
        entropy=("float64", "of the prediction, nats per token"),
        log_rank=("float64", "logarithm of the rank of the right token; exp of its mean is a geometric mean"),
        right=("float64", "share of tokens whose most likely next token is the right one"),
        lost=("float64", "share predicted wrongly, and rightly at an earlier k > 0 of the table; null at k = 0"),
        lost_since_mean=("float64", "the same, of those predicted rightly at the mean loops of training"),
    ),
}

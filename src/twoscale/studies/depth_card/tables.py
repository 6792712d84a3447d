"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # One row per (checkpoint, loop count, sequence): means over the tokens of the sequence.
    "depth_quality": table(
        "iteration loops sequence document tokens ce",
        loops=("int32", "loop count of every group"),
        entropy=("float64", "entropy of the prediction in nats per token"),
        flips=(
            "float64",
            "share of tokens whose prediction differs from the one at the next smaller loop count",
        ),
    ),
    # One row per (checkpoint, group, loop step, sequence), from one pass: medians over the tokens of the sequence. A
    # recorded run has no step after its last state.
    "depth_states": table(
        "iteration group k sequence document tokens",
        state_norm=("float64", "norm of x^k"),
        step_norm=("float64", "norm of the step from x^k to x^{k+1}"),
        cosine=("float64", "cosine of successive updates; null at k = 0 and below the rounding floor"),
        direction_step_norm=("float64", "norm of the step from x^k/||x^k|| to x^{k+1}/||x^{k+1}||"),
    ),
    # One row per (loop count, group, quantity), with 95 % intervals over documents.
    "depth_card": table(
        "run iteration loops multiple group quantity tokens value low high",
        loops=("int32", "loop count of every group"),
        multiple=("float64", "loops divided by the trained loop count"),
        group=("string", "looped group; empty for quantities of the prediction"),
        quantity=("string", "ce, excess (ce minus the lowest one), or a column of depth_quality or depth_states"),
        value=("float64", "value; for a column of depth_states, the value of the group at k = loops"),
        low=("float64", "lower end of the 95 % interval"),
        high=("float64", "upper end of the 95 % interval"),
    ),
    # Findings of the card, one row per (group, quantity), with 95 % intervals over documents.
    "depth_findings": table(
        "run iteration group quantity value low high",
        group=("string", "looped group; empty for quantities of the prediction"),
        quantity=(
            "string",
            "trained_loops, best_loops, plateau_first, plateau_last, trained_excess, loop_gain; for the regime: "
            "settling, marginal or drifting, and the exponents",
        ),
        value=("float64", "loop counts, nats per token, or an exponent; null if not measured"),
        low=("float64", "lower end of the 95 % interval"),
        high=("float64", "upper end of the 95 % interval"),
        statement=("string", "the finding in words"),
    ),
}

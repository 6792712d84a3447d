"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # One row per (checkpoint, loop count, sequence): means over the tokens of the sequence.
    "depth_quality": table(
        "iteration loops sequence document tokens ce",
        loops=("int32", "of every group"),
        entropy=("float64", "of the prediction, nats per token"),
        flips=(
            "float64",
            "share of tokens whose prediction differs from that at the next smaller loop count",
        ),
    ),
    # One row per (checkpoint, group, loop step, sequence), from one pass: medians over the tokens of the sequence. A
    # recorded run has no step after its last state.
    "depth_states": table(
        "iteration group k sequence document tokens",
        state_norm=("float64", "of x^k"),
        step_norm=("float64", "from x^k to x^{k+1}"),
        cosine=("float64", "of successive updates; null at k = 0 and under the rounding floor"),
        direction_step_norm=("float64", "from x^k/||x^k|| to x^{k+1}/||x^{k+1}||"),
    ),
    # One row per (loop count, group, quantity), with 95 % intervals over documents.
    "depth_card": table(
        "run iteration loops multiple group quantity tokens value low high",
        loops=("int32", "of every group"),
        multiple=("float64", "loops over the trained loops"),
        group=("string", "of looped layers; empty for quantities of the prediction"),
        quantity=("string", "ce, excess (ce minus the lowest one), or a column of depth_quality or depth_states"),
        value=("float64", "of the group at k = loops for a column of depth_states"),
        low=("float64", "95 % interval"),
        high=("float64", "95 % interval"),
    ),
    # One row per (group, quantity): what the card says, with 95 % intervals over documents.
    "depth_findings": table(
        "run iteration group quantity value low high",
        group=("string", "of looped layers; empty for quantities of the prediction"),
        quantity=(
            "string",
            "trained_loops, best_loops, plateau_first, plateau_last, trained_excess, loop_gain; of the regime: "
            "settling, marginal or drifting, with its exponents",
        ),
        value=("float64", "loop counts, nats per token, or an exponent; null if not measured"),
        low=("float64", "95 % interval"),
        high=("float64", "95 % interval"),
        statement=("string", "the finding in words"),
    ),
}

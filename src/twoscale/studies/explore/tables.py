"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # The page results/explore.html shows the beginning of one held-out sequence. One row per (token, site): the
    # embedding, each unlooped layer, and x^0 … x^K of each group, K = exits.max_loops. Row k has the loop step from x^k
    # to x^{k+1}, as in "trajectories". Columns that do not apply to a site are null.
    "explore_states": table(
        "run iteration sequence site stage layer group k position token",
        next_token=("string", "next token in the text"),
        pc1=("float32", "coordinate in the first principal component of all states of the sequence"),
        pc2=("float32",),
        pc1_share=("float64", "share of the variance in this component"),
        pc2_share=("float64",),
        step_norm=("float32",),
        cosine=("float32", "cosine with the previous update; null below the rounding floor"),
        prediction=("string", "most likely next token if all tokens leave the group with x^k"),
        probability=("float32", "probability of this token"),
    ),
    # One row per (criterion, threshold, group, token).
    "explore_exits": table(
        "run iteration criterion threshold group position",
        loop_steps=("int32", "loop steps to the state with which the token leaves"),
        evaluations=("int32", "evaluations of f; exits.max_loops if the criterion was not met earlier"),
    ),
}

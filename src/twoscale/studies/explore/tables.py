"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # The page results/explore.html shows the beginning of one held-out sequence. One row per token.
    "explore_tokens": table("run sequence document position token", next_token=("string", "that follows in the text")),
    # One row per (token, site): the embedding, each unlooped layer, and x^0 … x^K of each group, K = exits.max_loops.
    # Row k has the loop step from x^k to x^{k+1}, as in "trajectories". Null is what a site does not have.
    "explore_states": table(
        "run iteration site stage layer group k position",
        pc1=("float32", "coordinates in the principal components of all states of the sequence"),
        pc2=("float32",),
        pc3=("float32",),
        state_norm=("float32",),
        step_norm=("float32",),
        cosine=("float32", "with the update before; null below the rounding floor"),
        prediction=("string", "most likely next token if all tokens leave the group with x^k"),
        probability=("float32", "of that token"),
    ),
    # One row per principal component.
    "explore_components": table("run iteration", component=("int32",), share=("float64",)),
    # One row per (criterion, threshold, group, token).
    "explore_exits": table(
        "run iteration criterion threshold group position",
        loop_steps=("int32", "behind the state with which the token leaves"),
        evaluations=("int32", "calls of f; exits.max_loops if the criterion did not let the token go before"),
    ),
}

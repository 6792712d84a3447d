"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # One row per (group, operating point, oracle, held-out sequence), on frozen trajectories: tokens leave this group
    # one at a time, all others run exits.max_loops. Criterion fixed has every loop count.
    "exit_regret": table(
        "run group criterion threshold oracle sequence document tokens",
        oracle=("string", "loss, prediction: leaves at the first state from which this stays as at full depth"),
        evaluations=("float64", "mean calls of f per token, of the criterion"),
        ce=("float64", "of the states with which tokens leave"),
        least=("float64", "mean calls of f per token, of the oracle"),
        converged=("float64", "share of tokens that leave converged: no earlier than with the oracle"),
        extra=("float64", "calls of f more than the oracle's, where converged, else 0; mean over all tokens"),
        lost=("float64", "nats above those at full depth, where not converged, else 0; mean over all tokens"),
    ),
    # One row per (group, price, held-out sequence): the budget oracle, which chooses the exit of each token with the
    # least loss + price x evaluations on frozen trajectories.
    "oracle_frontier": table(
        "run group price sequence document tokens evaluations ce", price=("float64", "of an evaluation, in nats")
    ),
    # One row per (group, operating point, reference). Intervals are 95 % bootstraps over documents.
    "arena": table(
        "run criterion threshold group reference documents",
        group=(
            "string",
            "all: of the cost-matched exits, exits from all groups; of the oracle, the mean of the groups",
        ),
        effective_documents=("float64", "documents of equal length that would be as informative"),
        reference=("string", "random, fixed: cost-matched exits, as in exit_cost_matched; oracle: the budget oracle"),
        evaluations=("float64", "mean calls of f per token and group, of the criterion"),
        ce=("float64", "nats per token, of the criterion"),
        gain=("float64", "nats per token, at equal evaluations: ce of the reference minus ce of the criterion"),
        gain_low=("float64", "95 % interval"),
        gain_high=("float64", "its other end"),
        saved=(
            "float64",
            "at equal ce: evaluations of the reference minus evaluations of the criterion, null out of range",
        ),
        saved_low=("float64", "95 % interval; null if a bootstrap sample is out of the range of the reference"),
        saved_high=("float64", "its other end"),
    ),
    # One row per (operating point, oracle): exit_regret over all groups. Intervals are bootstraps over documents.
    "convergence": table(
        "run criterion threshold",
        oracle=("string", "loss or prediction, see exit_regret"),
        evaluations=("float64", "mean calls of f per token and group, of the criterion"),
        least=("float64", "the same of the oracle"),
        unconverged=("float64", "share of (token, group) that leave before they are converged"),
        unconverged_low=("float64", "95 % interval"),
        unconverged_high=("float64", "its other end"),
        extra=("float64", "mean calls of f more than the oracle's, over tokens that leave converged"),
        extra_low=("float64", "95 % interval"),
        extra_high=("float64", "its other end"),
        lost=("float64", "mean nats above the cross-entropy at full depth, over those that leave unconverged"),
        lost_low=("float64", "95 % interval"),
        lost_high=("float64", "its other end"),
    ),
    # Written by another program, for `python -m twoscale.studies.arena`. One row per (token, depth).
    "depth_losses": table(
        "document sequence position depth loss",
        document=("int32", "number of the document of the sequence; documents are resampled as wholes"),
        sequence=("int32", "number of the sequence"),
        depth=("int32", "evaluations of the loop, 1 … K"),
        loss=("float64", "nats, of the next token if this one leaves at the depth"),
    ),
    # By the same program: one row per (operating point, token).
    "gate_exits": table(
        "criterion threshold sequence position depth",
        criterion=("string", "name of the gate"),
        threshold=("float64", "of the gate; any number if it has none"),
        sequence=("int32", "number of the sequence"),
        depth=("int32", "after which the gate lets the token leave, 1 … K"),
    ),
}

"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # One row per (group, operating point, oracle, held-out sequence), on frozen trajectories: tokens leave this group
    # one at a time, while all others run exits.max_loops. The criterion fixed has every loop count.
    "exit_regret": table(
        "run group criterion threshold oracle sequence document tokens",
        oracle=("string", "what must stay as at full depth from the exit on: loss or prediction"),
        evaluations=("float64", "mean evaluations of f per token, of the criterion"),
        ce=("float64", "cross-entropy of the states with which tokens leave"),
        least=("float64", "mean evaluations of f per token, of the oracle"),
        converged=("float64", "share of tokens that leave converged, that is, no earlier than with the oracle"),
        extra=("float64", "evaluations of f beyond the oracle, 0 for tokens not converged; mean over all tokens"),
        lost=("float64", "nats above full depth, 0 for converged tokens; mean over all tokens"),
    ),
    # One row per (group, price, held-out sequence): the budget oracle, which chooses the exit of each token with the
    # lowest loss + price x evaluations, on frozen trajectories.
    "oracle_frontier": table(
        "run group price sequence document tokens evaluations ce", price=("float64", "price of an evaluation in nats")
    ),
    # One row per (group, operating point, reference). Intervals are 95 % bootstraps over documents.
    "arena": table(
        "run criterion threshold group reference documents",
        group=(
            "string",
            "one group, or all: for cost-matched exits, exits from all groups; for the oracle, the mean over groups",
        ),
        effective_documents=("float64", "number of documents of equal length that would be as informative"),
        reference=("string", "random, fixed: cost-matched exits, as in exit_cost_matched; oracle: the budget oracle"),
        evaluations=("float64", "mean evaluations of f per token and group, of the criterion"),
        ce=("float64", "cross-entropy of the criterion in nats per token"),
        gain=("float64", "ce of the reference minus ce of the criterion, at equal evaluations"),
        gain_low=("float64", "lower end of the 95 % interval"),
        gain_high=("float64", "upper end of the interval"),
        saved=(
            "float64",
            "evaluations of the reference minus evaluations of the criterion, at equal ce; null if out of range",
        ),
        saved_low=(
            "float64",
            "lower end of the 95 % interval; null if a bootstrap sample is outside the range of the reference",
        ),
        saved_high=("float64", "upper end of the interval"),
    ),
    # One row per (operating point, oracle): exit_regret over all groups. Intervals are bootstraps over documents.
    "convergence": table(
        "run criterion threshold",
        oracle=("string", "loss or prediction, see exit_regret"),
        evaluations=("float64", "mean evaluations of f per token and group, of the criterion"),
        least=("float64", "the same for the oracle"),
        unconverged=("float64", "share of (token, group) pairs that leave before they are converged"),
        unconverged_low=("float64", "lower end of the 95 % interval"),
        unconverged_high=("float64", "upper end of the interval"),
        extra=("float64", "mean evaluations of f beyond the oracle, over tokens that leave converged"),
        extra_low=("float64", "lower end of the 95 % interval"),
        extra_high=("float64", "upper end of the interval"),
        lost=("float64", "mean nats above full depth, over tokens that leave unconverged"),
        lost_low=("float64", "lower end of the 95 % interval"),
        lost_high=("float64", "upper end of the interval"),
    ),
    # Written by another program, for `python -m twoscale.studies.arena`. One row per (token, depth).
    "depth_losses": table(
        "document sequence position depth loss",
        document=("int32", "number of the document of the sequence; whole documents are resampled"),
        sequence=("int32", "number of the sequence"),
        depth=("int32", "evaluations of the loop, 1 … K"),
        loss=("float64", "loss of the next token in nats if this token leaves at this depth"),
    ),
    # Written by the same program: one row per (operating point, token).
    "gate_exits": table(
        "criterion threshold sequence position depth",
        criterion=("string", "name of the gate"),
        threshold=("float64", "threshold of the gate; any number if the gate has none"),
        sequence=("int32", "number of the sequence"),
        depth=("int32", "evaluations after which the gate lets the token leave, 1 … K"),
    ),
}

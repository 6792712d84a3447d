"""Exit criteria against random exits, fixed loops and an oracle: results/arena.pdf and .md,
results/exit_check.pdf, results/pareto.pdf.
"""

from twoscale.figures.catalogue import Figure, exit_max_loops, inputs_from
from twoscale.tables import Column
from twoscale.tables import table as columns

TABLES: dict[str, dict[str, Column]] = {
    # One row per (group, operating point, held-out sequence), on frozen trajectories: tokens leave
    # this group one at a time, while all others run exits.max_loops. The criterion fixed has every
    # loop count.
    "exit_regret": columns(
        "run group criterion threshold sequence document tokens",
        evaluations=("float64", "mean evaluations of f per token"),
        ce=("float64", "cross-entropy of the states with which tokens leave"),
    ),
    # One row per (group, price, held-out sequence): the budget oracle, which chooses the exit of
    # each token with the lowest loss + price x evaluations, on frozen trajectories.
    "oracle_frontier": columns(
        "run group price sequence document tokens evaluations ce",
        price=("float64", "price of an evaluation in nats"),
    ),
    # One row per (group, held-out sequence), on frozen trajectories: means over tokens, from which
    # the split-half reliability of a token's best depth follows.
    "exit_reliability": columns(
        "run group sequence document tokens",
        odd=("float64", "first odd loop step within 0.01 nats of the lowest loss of these"),
        even=("float64", "first even loop step within 0.01 nats of the lowest loss of these"),
        odd_odd=("float64", "square of odd"),
        even_even=("float64", "square of even"),
        odd_even=("float64", "odd x even of the same token"),
        odd_other=("float64", "odd x even of another token"),
    ),
    # One row per (operating point, reference). Intervals are 95 % bootstraps over documents.
    "arena": columns(
        "run criterion threshold reference documents",
        reference=(
            "string",
            "random, fixed: cost-matched exits, as in exit_cost_matched; oracle: the budget"
            " oracle, mean over groups",
        ),
        effective_documents=(
            "float64",
            "number of documents of equal length that would be as informative",
        ),
        evaluations=("float64", "mean evaluations of f per token and group, of the criterion"),
        ce=("float64", "cross-entropy of the criterion in nats per token"),
        gain=("float64", "ce of the reference minus ce of the criterion, at equal evaluations"),
        gain_low=("float64", "lower end of the 95 % interval"),
        gain_high=("float64", "upper end of the interval"),
    ),
}

FIGURES = (
    Figure(
        "pareto",
        inputs_from(
            exit_latency="pareto_latency", exit_quality="pareto_quality", exit_loops="pareto_loops"
        ),
        loops=exit_max_loops,
        title="Pareto: quality against latency",
        claims=(10,),
    ),
    Figure(
        "exit_check",
        inputs_from(
            exit_quality="pareto_quality",
            exit_loops="pareto_loops",
            exit_cost_matched="pareto_cost_matched",
        ),
        loops=exit_max_loops,
        title="Should I exit early?",
    ),
    Figure(
        "arena",
        inputs_from("arena"),
        page=True,
        loops=exit_max_loops,
        title="Arena: what the exits are worth",
        sentence="twoscale.studies.arena.draw.summary",
    ),
)

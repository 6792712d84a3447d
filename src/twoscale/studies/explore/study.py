"""A page to explore: the tokens of one held-out sequence on their way through the loops, results/explore.html."""

from typing import TYPE_CHECKING

from twoscale.base import InputError
from twoscale.config.data import text_label
from twoscale.config.types import Count, Natural, Section, check_sequence, key
from twoscale.jobs.rows import LocalJob, TorchJob
from twoscale.tables import table

if TYPE_CHECKING:
    from twoscale.config.sections import CoreConfig
    from twoscale.workflow.runs import Runs


class ExploreConfig(Section):
    """The page results/explore.html: tokens of one held-out sequence at the last checkpoint. Every group runs
    exits.max_loops loop steps; exits are shown for the criteria of `exits`.
    """

    sequence: Natural = key(0, "Index of the sequence among the sequences of trajectories.tokens.")
    tokens: Count = key(
        64, "Number of tokens to show from the start of the sequence. Each token adds about 10 kB to the page."
    )

    def check(self, config: "CoreConfig") -> None:
        check_sequence("explore.sequence", self.sequence, config)


SECTIONS = {"explore": ExploreConfig}
TABLES = {
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


def _input(runs: "Runs", name: str) -> str:
    if not runs.config.model.groups:
        raise InputError(f"results/explore.html: run {runs.selected} has no looped groups, expected at least 1.")
    return OUTPUTS[name].format(run=runs.selected)


OUTPUTS = {name: f"results/{{run}}/explore/{name}.parquet" for name in ("states", "exits")}
JOBS = (
    TorchJob(
        name="extract_explore",
        function="twoscale.studies.explore.measure.run",
        inputs=lambda runs: runs.of_exits("exit") | {"tokenizer": runs.tokenizer_file},
        outputs=OUTPUTS,
        tables=[*TABLES],
        config=lambda runs: runs.params.exit_slice(
            "exit",
            sections=["trajectories", "explore"],
            tokenizer=lambda config: config.tokenizer.name,
            sequences=lambda config: config.trajectory_sequences,
        ),
        dtype="trajectories",
    ),
    LocalJob(
        name="write_explore_page",
        function="twoscale.studies.explore.draw.run",
        inputs=lambda runs: {"states": lambda _: _input(runs, "states"), "exits": lambda _: _input(runs, "exits")},
        outputs={"page": "results/{selected}/figures/explore.html"},
        config=lambda runs: runs.params.slice("run", text=lambda config: text_label(config.data)),
        target="explore",
        report=("Explore", "tokens on their way through the loops"),
    ),
)

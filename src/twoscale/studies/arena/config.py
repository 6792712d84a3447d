"""Config of the study."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from twoscale.config.exits import DENSE_GRIDS, Criteria, CriterionConfig, ExitsConfig, check_latency_tokens, grids
from twoscale.config.types import Count, Number, OnHeldOut, Section, key

if TYPE_CHECKING:
    from twoscale.config.sections import CoreConfig


class ParetoConfig(Section):
    """Exit criteria on dense grids, at the last checkpoint.

    Their quality against latency and loops is in results/pareto.pdf, and what their exits are worth beside random
    exits, fixed loops and an oracle in results/arena.pdf and results/arena.md.
    """

    criteria: Criteria = key(
        grids(**DENSE_GRIDS),
        "Exit criteria and their dense grids of thresholds. Criteria of `exits` that are absent here keep their "
        "thresholds. [G] uses entropy_diff 1e-3, argmax_stability 5, cosine 1e-3 and minp_kl 1e-5. null removes a "
        "criterion of the defaults or the preset.",
    )
    quality_tokens: Count = key(8192, "Held-out tokens for cross-entropy and perplexity, in whole sequences.")
    latency_tokens: Count = key(32, "Timed tokens per repeat, spread over the context; at most model.context_length.")
    latency_repeats: Count = key(3, "Timed repeats.")

    def check(self, config: "CoreConfig") -> None:
        check_latency_tokens("pareto", self.latency_tokens, config)

    def needed_sequences(self, config: "CoreConfig") -> dict[str, int]:
        return {"quality_tokens": config.sequences("pareto", "quality_tokens"), "latency_repeats": self.latency_repeats}

    def exit_grid(self, config: "CoreConfig") -> ExitsConfig:
        """pareto.criteria over exits.criteria, and `fixed` at every loop count of `Derived.loop_grid`."""
        criteria = {**config.exits.criteria, **self.criteria, "fixed": CriterionConfig(thresholds=config.loop_grid)}
        return config.exits.model_copy(update={**vars(self), "criteria": criteria})


class OracleConfig(OnHeldOut):
    """Oracles that know every loop step of a token, beside which the criteria of `pareto` have their regret.

    Everything is on frozen trajectories: one token leaves early, the others run exits.max_loops.
    """

    tolerance: Annotated[float, Field(ge=0), Number] = key(
        0.01,
        "A token is converged from the first loop step from which its cross-entropy stays at most this many nats above "
        "that after exits.max_loops.",
    )
    tokens: Count = key(
        4096,
        "Held-out tokens, in whole sequences. Each group costs about exits.max_loops passes of the text, and the "
        "decisions of every criterion at every threshold.",
    )
    batch_size: Count = key(2, "Sequences at a time.")


SECTIONS = {"pareto": ParetoConfig, "oracle": OracleConfig}

"""Config of the study."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from twoscale.config.sections import DENSE_GRIDS, Criteria, CriterionConfig, ExitsConfig, check_latency_tokens, grids
from twoscale.config.types import Count, Number, OnHeldOut, Section, key

if TYPE_CHECKING:
    from twoscale.config.sections import CoreConfig


class ParetoConfig(Section):
    """Exit criteria on dense grids of thresholds, at the last checkpoint. results/pareto.pdf shows quality against
    latency and loops. results/arena.pdf and results/arena.md compare the exits with random exits, fixed loops and
    an oracle.
    """

    criteria: Criteria = key(
        grids(**DENSE_GRIDS),
        "Exit criteria and their dense grids of thresholds. Criteria that appear only in `exits` keep the thresholds "
        "given there. [G] uses entropy_diff 1e-3, argmax_stability 5, cosine 1e-3 and minp_kl 1e-5. null removes a "
        "criterion that the defaults or the preset include.",
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
    """Oracles that know every loop step of a token, used to compute the regret of the criteria in `pareto`. They use
    frozen trajectories: one token exits early, the others run exits.max_loops.
    """

    tolerance: Annotated[float, Field(ge=0), Number] = key(
        0.01,
        "A token has converged once its cross-entropy stays at most this many nats above the value after "
        "exits.max_loops loop steps.",
    )
    tokens: Count = key(
        4096,
        "Held-out tokens, in whole sequences. Each group costs about exits.max_loops passes over the text, plus "
        "the decisions of every criterion at every threshold.",
    )
    batch_size: Count = key(2, "Sequences per batch.")


SECTIONS = {"pareto": ParetoConfig, "oracle": OracleConfig}

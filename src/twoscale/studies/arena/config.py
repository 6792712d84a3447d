"""The config sections of the arena: dense grids of thresholds, and the oracle."""

from twoscale.config.criteria import FACTS
from twoscale.config.sections import (
    CoreConfig,
    Criteria,
    ExitsConfig,
    check_latency_tokens,
    grids,
)
from twoscale.config.types import Count, OnHeldOut, Section, key


class ParetoConfig(Section):
    """Exit criteria on dense grids of thresholds, at the last checkpoint. results/pareto.pdf shows
    quality against latency and loops. results/arena.pdf and results/arena.md compare the exits with
    random exits, fixed loops and an oracle.
    """

    criteria: Criteria = key(
        grids(**{name: facts.grid for name, facts in FACTS.items() if facts.grid}),
        "Exit criteria and their dense grids of thresholds. Criteria that appear only in `exits`"
        " keep the thresholds "
        "given there. [G] uses entropy_diff 1e-3, argmax_stability 5, cosine 1e-3 and minp_kl"
        " 1e-5. null removes a "
        "criterion that the defaults or the preset include.",
    )
    quality_tokens: Count = key(
        8192, "Held-out tokens for cross-entropy and perplexity, in whole sequences."
    )
    latency_tokens: Count = key(
        32, "Timed tokens per repeat, spread over the context; at most model.context_length."
    )
    latency_repeats: Count = key(3, "Timed repeats.")

    def check(self, config: CoreConfig) -> None:
        check_latency_tokens("pareto", self.latency_tokens, config)

    def needed_sequences(self, config: CoreConfig) -> dict[str, int]:
        return {
            "quality_tokens": config.sequences("pareto", "quality_tokens"),
            "latency_repeats": self.latency_repeats,
        }

    def exit_grid(self, config: CoreConfig) -> ExitsConfig:
        """pareto.criteria over exits.criteria, and `fixed` at every loop count of
        `CoreConfig.loop_grid`.
        """
        criteria = {
            **config.exits.criteria,
            **self.criteria,
            **grids(fixed=[*config.loop_grid]),
        }
        return config.exits.model_copy(update={**vars(self), "criteria": criteria})


class OracleConfig(OnHeldOut):
    """An oracle that knows every loop step of a token, used to compute the regret of the criteria
    in `pareto`. It uses frozen trajectories: one token exits early, the others run exits.max_loops.
    """

    tokens: Count = key(
        4096,
        "Held-out tokens, in whole sequences. Each group costs about exits.max_loops passes over"
        " the text, plus "
        "the decisions of every criterion at every threshold.",
    )
    batch_size: Count = key(2, "Sequences per batch.")


SECTIONS = {"pareto": ParetoConfig, "oracle": OracleConfig}

"""Config of the study."""

from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from twoscale.config.exits import Criteria, CriterionConfig, ExitsConfig, grids
from twoscale.config.types import Count, Section, key, sort_loops

if TYPE_CHECKING:
    from twoscale.config.sections import CoreConfig


class ThroughputConfig(Section):
    """Tokens per second when sequences are decoded together, at the last checkpoint (results/throughput.pdf). Every
    loop step has its own keys and values, and predictions use the head, regardless of `exits`.
    """

    criteria: Criteria = key(
        grids(step_norm=[1e-2], kl=[1e-2], acceleration=[1e-2]),
        "Exit criteria and their thresholds, compared with exits.max_loops loop steps for all tokens. null removes a "
        "criterion that the defaults or the preset include.",
    )
    sequences: Annotated[tuple[Count, ...], Field(min_length=1), AfterValidator(sort_loops)] = key(
        (1, 2, 4, 8, 16),
        "Numbers of sequences to decode together. Keys and values for the largest number are allocated at once.",
    )
    prompt_tokens: Count = key(
        32, "Tokens at the start of each sequence that are read untimed; at most half the context."
    )
    tokens: Count = key(32, "Tokens to decode after the prompt in each sequence; fewer if the context ends earlier.")
    repeats: Count = key(3, "Timed repeats.")
    cpu_threads: Count = key(2, "CPU threads, the same for every number of sequences.")

    def needed_sequences(self, config: "CoreConfig") -> dict[str, int]:
        return {"sequences": self.sequences[-1]}

    def exit_grid(self, config: "CoreConfig") -> ExitsConfig:
        """throughput.criteria, and all loop steps as `fixed`."""
        fixed = CriterionConfig(thresholds=(config.exits.max_loops,))
        update = {"criteria": {"fixed": fixed, **self.criteria}, "readout": "head", "kv_slots": None}
        return config.exits.model_copy(update=update)

    def lengths(self, config: "CoreConfig") -> tuple[int, int]:
        """Tokens of a prompt and those that follow it, within model.context_length."""
        room = config.model.context_length
        prompt = max(1, min(self.prompt_tokens, room // 2))
        return prompt, min(self.tokens, room - prompt)


SECTIONS = {"throughput": ThroughputConfig}

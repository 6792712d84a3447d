"""The model as a class of the transformers library, with its cache and its config.

In an export this module is modeling_twoscale.py; the modules of the library that it imports are in files next to it
(`twoscale.export`).

Loops are an argument: every call and `generate` take `max_loops`, the most loop steps of a token in each looped group,
and with `exit_criterion` and `exit_threshold` each token stops when its criterion fires. Without a criterion every
token takes all of them. Missing arguments come from the config.

Axes: B texts, N new tokens of each, T positions, C hidden size, V vocabulary, G looped groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from twoscale.base import InputError
from twoscale.config.definitions import check_threshold
from twoscale.exits.criteria import ExitCriterion, make_criterion
from twoscale.exits.parallel import KVCache, ParallelEngine, evaluate, read_parallel, stack_counts
from twoscale.export.plain_config import ModelConfig
from twoscale.model.interface import Noise, any_weight
from twoscale.model.layers import RotaryEmbedding
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import LoopedTransformer

GROWTH = 64  # a cache that is full grows to a multiple of so many positions
PASSED_ON = ("tokenizer", "assistant_tokenizer")  # by `generate`, to every model


class TwoscaleConfig(PreTrainedConfig):
    """Architecture of an exported model, and how its loops run unless a call says otherwise.

    Args:
        model: Every key of the section `model` of the run's config.
        max_loops: Most loop steps of a token in each looped group.
        exit_criterion, exit_threshold: The exit criterion; None: every token takes `max_loops` loop steps.
        noise_seed: The seed of the run. Every text has the noise of held-out sequence 0, so its logits are the same in
            every call, in any batch, read at once or token by token.
        run, iteration, tokens_seen: Name of the run, and optimizer updates and tokens that the weights have had.
        eos_token_id, padding_id: End of text, and padding, which is read as the end of text.
    """

    model_type = "twoscale"

    def __init__(
        self,
        model: Mapping[str, Any] | None = None,
        max_loops: int = 1,
        exit_criterion: str | None = None,
        exit_threshold: float | None = None,
        noise_seed: int = 0,
        run: str | None = None,
        iteration: int | None = None,
        tokens_seen: int | None = None,
        eos_token_id: int | None = None,
        padding_id: int | None = None,
        **common: Any,
    ) -> None:
        self.model = dict(model or {})
        self.max_loops, self.exit_criterion, self.exit_threshold = max_loops, exit_criterion, exit_threshold
        self.noise_seed, self.run, self.iteration, self.tokens_seen = noise_seed, run, iteration, tokens_seen
        self.eos_token_id, self.padding_id = eos_token_id, padding_id
        super().__init__(**{"tie_word_embeddings": False} | common)

    # what transformers and tools on top of it read of a config
    vocab_size = property(lambda self: self.model["vocab_size"])
    hidden_size = property(lambda self: self.model["hidden_size"])
    num_hidden_layers = property(lambda self: self.model["num_layers"])
    num_attention_heads = property(lambda self: self.model["num_heads"])
    max_position_embeddings = property(lambda self: self.model["context_length"])
    # `Trainer` sets it to the tokenizer's, and transformers warns of one that is not in the vocabulary
    pad_token_id = property(lambda self: None, lambda self, value: None)


class LoopCache:
    """`KVCache` of B texts that grows with them. The methods are those that `generate` calls."""

    is_compileable = False

    def __init__(self, model: LoopedTransformer, slots: int, texts: int) -> None:
        self.slots = slots  # `max_loops` of all calls with this cache
        self.columns = 0  # tokens read so far in each row of a batch, with the padding before the texts
        self._model, self._texts, self._room = model, texts, 0
        self._padding: Tensor | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns

    def extend(self, mask: Tensor | None, count: int) -> Tensor:
        """Make room for `count` more tokens of each text. Returns their positions (B, N).

        Padding is computed like a token, at the positions after its text, which later tokens overwrite.
        """
        end, like = self.columns + count, any_weight(self._model)
        check_length(end, self._model.config)
        if self._padding is None:
            self._padding = leading_padding(mask, self._texts, end, like.device)
        if end > self._room:
            room = min(-(-end // GROWTH) * GROWTH, self._model.config.context_length)
            grown = KVCache(self._model.config, self.slots, like, self._texts, room)
            if self._room:
                grown.copy_from(self.kv)
            self.kv, self._room = grown, room
        positions = text_positions(self._padding, end)[:, self.columns :]
        self.columns = end
        return positions


def leading_padding(mask: Tensor | None, texts: int, length: int, device: torch.device) -> Tensor:
    """Columns of padding before each text (B,), from the mask (B, length) of columns that belong to a text."""
    if mask is None:
        return torch.zeros(texts, dtype=torch.int64, device=device)
    if mask.shape != (texts, length):
        raise InputError(
            f"attention_mask: found the shape {tuple(mask.shape)}, expected {(texts, length)}, one column for each "
            "token read so far."
        )
    mask = mask.to(device).bool()
    if (mask.int().diff(dim=-1, prepend=mask.new_zeros(texts, 1).int()) == 1).sum(-1).gt(1).any():  # two beginnings
        raise InputError("attention_mask: found padding inside a text, expected it before or after.")
    return (mask.cumsum(-1) == 0).sum(-1)


def text_positions(padding: Tensor, length: int) -> Tensor:
    """Position in its text of each column (B, length); columns of padding come after the text."""
    return (torch.arange(length, device=padding.device) - padding[:, None]) % length


def check_length(length: int, config: ModelConfig) -> None:
    if length > config.context_length:
        raise InputError(
            f"input_ids: found {length} tokens, expected at most {config.context_length}, the model's context length."
        )


@dataclass
class LoopedOutput(CausalLMOutputWithPast):
    """Logits (B, N, V), and with `labels` their mean cross-entropy in nats."""

    evaluations: Tensor | None = None  # loop steps that each token was computed for, int64 (G, B, N)


class TwoscaleForCausalLM(PreTrainedModel, GenerationMixin):
    """A looped language model, see `LoopedTransformer`."""

    config_class = TwoscaleConfig
    base_model_prefix = "model"
    _no_split_modules = ("LoopedTransformer",)
    _is_stateful = True  # transformers drafts only with a cache that it makes itself
    accepts_loss_kwargs = False  # the loss is a mean over the targets of a call

    def __init__(self, config: TwoscaleConfig) -> None:
        section = ModelConfig(config.model)
        super().__init__(config)
        self.model = LoopedTransformer(section)
        self._source = EvaluationNoise.of(section, config.noise_seed, [0])
        self._arrays: dict[tuple[Any, ...], Tensor] = {}  # (group, k, dtype, device) -> noise (T, C)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        # transformers builds a model without values; tables of rotary embeddings are in no file
        if isinstance(module, RotaryEmbedding):
            module.make_tables(module.cos)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.token_embedding

    def get_output_embeddings(self) -> nn.Module | None:
        return self.model.head

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # `forward` makes a LoopCache

    def _prepare_generated_length(self, *arguments: Any, **lengths: Any) -> GenerationConfig:
        """The lengths of a call of `generate`, which ends a text at the context."""
        check_length(lengths["input_ids_length"], self.model.config)
        config = super()._prepare_generated_length(*arguments, **lengths)
        config.max_length = min(config.max_length, self.model.config.context_length)
        return config

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: LoopCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        max_loops: int | None = None,
        exit_criterion: str | None = None,
        exit_threshold: float | None = None,
        return_dict: bool | None = None,
        **further: Any,
    ) -> LoopedOutput | tuple[Tensor, ...]:
        """Logits of the tokens that follow. Without a cache and a criterion gradients flow, through all loop steps.

        Args:
            input_ids: Token ids (B, N).
            attention_mask: 1 for tokens of a text, 0 for padding before it; with a cache for all columns read so far.
            past_key_values: Cache that the last call with `use_cache` returned.
            labels: Token ids (B, N), usually `input_ids`: the loss is for token i + 1 given the logits of token i;
                -100 leaves a token out, and so does padding as token i or i + 1.
            logits_to_keep: Return the logits of the last so many tokens; 0: of all.
            max_loops, exit_criterion, exit_threshold: See the class `TwoscaleConfig`. A criterion that is given comes
                with its threshold. "none" as criterion: all loop steps, whatever the config says.
            further: Arguments that `generate` passes to every model; others are refused.
        """
        for name, value in further.items():
            if name not in PASSED_ON and value is not None and value is not False:
                raise InputError(f"{name}: not supported by this model.")
        max_loops, criterion = self._loops(max_loops, exit_criterion, exit_threshold)
        is_padding = input_ids == self.config.padding_id
        if self.config.padding_id not in (None, self.config.eos_token_id):
            input_ids = input_ids.masked_fill(is_padding, self.config.eos_token_id)  # which has an embedding
            if attention_mask is None and past_key_values is None:
                attention_mask = ~is_padding
        if past_key_values is None and not use_cache:
            logits, evaluations = self._evaluate(input_ids, attention_mask, max_loops, criterion)
        else:
            logits, evaluations, past_key_values = self._read(
                input_ids, attention_mask, past_key_values, max_loops, criterion, logits_to_keep
            )
        logits = logits[:, -logits_to_keep:]
        loss = None
        if labels is not None:
            if attention_mask is not None:  # padding is computed after its text and has read the label
                gap = ~attention_mask[:, -labels.shape[1] :].to(labels.device).bool()
                labels = labels.masked_fill(gap | gap.roll(1, dims=1), -100)  # the first label is no target
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size)
        output = LoopedOutput(loss, logits, past_key_values, evaluations=evaluations)
        return output.to_tuple() if return_dict is False else output

    def _loops(
        self, max_loops: int | None, name: str | None, threshold: float | None
    ) -> tuple[int, ExitCriterion | None]:
        """Most loop steps and the exit criterion of a call, None for all loop steps."""
        max_loops = self.config.max_loops if max_loops is None else max_loops
        if not isinstance(max_loops, int) or max_loops < 1:
            raise InputError(f"max_loops: found {max_loops!r}, expected a whole number of loop steps, at least 1.")
        if name is None:
            name = self.config.exit_criterion
            threshold = self.config.exit_threshold if threshold is None else threshold
        if name in (None, "none"):
            if threshold is not None:
                raise InputError(f"exit_threshold: found {threshold}, but no exit_criterion.")
            return max_loops, None
        criterion = make_criterion(name, threshold)
        check_threshold(name, threshold, max_loops, "exit_threshold", "max_loops")
        return max_loops, criterion

    def _noise(self, positions: Tensor) -> Noise:
        """The noise of tokens at `positions` (B, N)."""

        def noise(group: int, k: int, like: Tensor) -> Tensor:
            key = (group, k, like.dtype, like.device)
            if key not in self._arrays:
                with torch.inference_mode(False):  # kept for later calls, which may need gradients
                    self._arrays[key] = self._source.rows(group, k, like.shape[-1], like)[0]
            return self._arrays[key][positions].view_as(like)

        return noise

    def _evaluate(
        self, tokens: Tensor, mask: Tensor | None, max_loops: int, criterion: ExitCriterion | None
    ) -> tuple[Tensor, Tensor]:
        """Logits (B, N, V) of whole texts and the evaluations (G, B, N) of their tokens."""
        batch, length = tokens.shape
        check_length(length, self.model.config)
        # padding before a text moves after it, where it changes nothing
        order = text_positions(leading_padding(mask, batch, length, tokens.device), length)
        tokens = torch.zeros_like(tokens).scatter(1, order, tokens)
        noise = self._noise(torch.arange(length, device=tokens.device).expand(batch, -1))
        loops = [max_loops] * len(self.model.config.groups)
        if criterion is None:
            logits = self.model(tokens, loops, noise)
            evaluations = tokens.new_full((len(loops), batch, length), max_loops)
        else:
            logits, counts = evaluate(self.model, tokens, criterion, max_loops, noise)
            evaluations = counts.evaluations
        logits = logits.gather(1, order[..., None].expand_as(logits))
        return logits, evaluations.gather(2, order.expand_as(evaluations))

    @torch.no_grad()
    def _read(
        self,
        tokens: Tensor,
        mask: Tensor | None,
        cache: LoopCache | None,
        max_loops: int,
        criterion: ExitCriterion | None,
        keep: int,
    ) -> tuple[Tensor, Tensor, LoopCache]:
        """Logits (B, `keep` or N, V) of new tokens (B, N), their evaluations (G, B, N), and the cache with them."""
        if cache is None:
            cache = LoopCache(self.model, max_loops, len(tokens))
        if not isinstance(cache, LoopCache) or cache.slots != max_loops:
            raise InputError(
                f"past_key_values: found {type(cache).__name__}, expected None or what a call with max_loops = "
                f"{max_loops} returned."
            )
        positions = cache.extend(mask, tokens.shape[1])
        engine = ParallelEngine(self.model, criterion or make_criterion("fixed", max_loops), max_loops)
        end = int(positions.max()) + 1
        hidden, exits = read_parallel(engine, cache.kv, tokens, positions, end, self._noise(positions))
        hidden = hidden.unflatten(0, tokens.shape)[:, -keep:]
        return self.model.readout(hidden), stack_counts(exits, tokens).evaluations, cache

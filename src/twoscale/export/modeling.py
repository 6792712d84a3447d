"""The model as a class of the transformers library, with its cache and its config.

In an export this module is modeling_twoscale.py; the modules of the library that it imports are in
files next to it (`twoscale.export`).

Loops are an argument: every call and `generate` take `max_loops`, the most loop steps of a token in
each looped group, and with `exit_criterion` and `exit_threshold` each token stops when its
criterion fires. Without a criterion every token takes all of them. Missing arguments come from the
config.

Versions of transformers differ in what they pass to a model and in the name of its cache,
`past_key_values` or, from 5.24 on, `cache`. Both names are taken and returned, and unknown
arguments that change nothing are accepted.

Axes: B texts, N new tokens of each, T positions, C hidden size, V vocabulary, G looped groups.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from twoscale.base import InputError, did_you_mean
from twoscale.config.criteria import check_threshold
from twoscale.exits.criteria import ExitCriterion, make_criterion
from twoscale.exits.parallel import (
    KVCache,
    ParallelEngine,
    TextKV,
    evaluate,
    read_parallel,
)
from twoscale.export.plain_config import ModelConfig
from twoscale.model.interface import Noise, any_weight
from twoscale.model.layers import RotaryEmbedding
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import LoopedTransformer

_GROWTH = 64  # a cache that is full grows to a multiple of so many positions
# Arguments of other models that would change the result -> the value, besides None, with which they
# do not.
_UNSUPPORTED = {
    "output_attentions": False,
    "output_router_logits": False,
    "is_causal": True,
    "num_items_in_batch": None,
    "num_logits_to_keep": 0,
}


class TwoscaleConfig(PreTrainedConfig):
    """Architecture of an exported model, and how its loops run unless a call says otherwise.

    Args:
        model: Every key of the section `model` of the run's config.
        max_loops: Most loop steps of a token in each looped group.
        exit_criterion, exit_threshold: The exit criterion; None: every token takes `max_loops` loop
            steps.
        noise_seed: The seed of the run. Every text has the noise of held-out sequence 0, so its
            logits are the same in every call, in any batch, read at once or token by token.
        run, iteration, tokens_seen: Name of the run, and optimizer updates and tokens that the
            weights have had.
        eos_token_id, padding_id: End of text, and padding, which is read as the end of text.
    """

    model_type = "twoscale"
    has_no_defaults_at_init = True  # `TwoscaleConfig()` has no sizes

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
        self.max_loops = max_loops
        self.exit_criterion = exit_criterion
        self.exit_threshold = exit_threshold
        self.noise_seed = noise_seed
        self.run = run
        self.iteration = iteration
        self.tokens_seen = tokens_seen
        self.eos_token_id = eos_token_id
        self.padding_id = padding_id
        # nothing for transformers to tie: a tied head is the embedding itself
        super().__init__(**{"tie_word_embeddings": False} | common)

    # what transformers and tools on top of it read of a config
    vocab_size = property(lambda self: self.model["vocab_size"])
    hidden_size = property(lambda self: self.model["hidden_size"])
    num_hidden_layers = property(lambda self: self.model["num_layers"])
    num_attention_heads = property(lambda self: self.model["num_heads"])
    max_position_embeddings = property(lambda self: self.model["context_length"])
    # `Trainer` sets it to the tokenizer's, and transformers warns of one that is not in the
    # vocabulary
    pad_token_id = property(lambda self: None, lambda self, value: None)


class LoopCache:
    """`KVCache` of B texts that grows with them. Methods and class attributes are those that
    `generate` reads.
    """

    is_compileable = False
    is_linear = (False,)  # no layer has linear attention

    def __init__(self, model: LoopedTransformer, slots: int, texts: int) -> None:
        self.slots = slots  # `max_loops` of all calls with this cache
        # what has been read so far, with padding as false: bool (B, columns)
        device = any_weight(model).device
        self.mask = torch.ones(texts, 0, dtype=torch.bool, device=device)
        self._model = model
        self._room = 0  # positions of the cache

    @property
    def columns(self) -> int:
        """Tokens read so far in each row of a batch, with padding."""
        return self.mask.shape[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns

    def extend(self, mask: Tensor) -> Tensor:
        """Make room for more tokens of each text, up to the columns of this mask, bool (B, end).

        Returns their positions (B, N). Padding is computed like a token, at the positions after its
        text, which later tokens overwrite.
        """
        config = self._model.config
        texts, end = mask.shape
        _check_length(end, config)
        if end > self._room:
            # more than is needed now, so that not every token allocates and copies a cache
            room = min(math.ceil(end / _GROWTH) * _GROWTH, config.context_length)
            grown = KVCache(config, self.slots, any_weight(self._model), texts, room)
            if self._room:
                grown.copy_from(self.kv)
            self.kv = grown
            self._room = room
        positions = _text_positions(_leading_padding(mask), end)[:, self.columns :]
        self.mask = mask
        return positions

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace text i by text `beam_idx[i]` (B,), as beam search does after each token."""
        for stored in self.kv.stored.values():
            stored.copy_(stored[:, :, beam_idx.to(stored.device)])  # (slots, 2, B, G, T, D)
        self.mask = self.mask[beam_idx.to(self.mask.device)]


def _check_cache(cache: LoopCache | None, max_loops: int, texts: int) -> None:
    # the cache has one slot for each loop step
    if cache is not None and not (isinstance(cache, LoopCache) and cache.slots == max_loops):
        raise InputError(
            f"past_key_values: found {type(cache).__name__}, expected None or what a call"
            f" with max_loops = {max_loops} returned."
        )
    if cache is not None and len(cache.mask) != texts:
        raise InputError(
            f"past_key_values: found a cache of {len(cache.mask)} texts, expected {texts}."
        )


def _whole_mask(mask: Tensor | None, is_text: Tensor, cache: LoopCache | None) -> Tensor:
    """The mask of all columns read so far and in this call, bool (B, columns + N).

    `is_text` (B, N) is false for ids of padding, in case that a call has no mask.
    """
    read = is_text[:, :0] if cache is None else cache.mask
    whole = torch.cat([read, is_text], 1)
    if mask is not None:
        if mask.shape != whole.shape:
            raise InputError(
                f"attention_mask: found the shape {tuple(mask.shape)}, expected"
                f" {tuple(whole.shape)}, one column for each token of the cache and of the call."
            )
        # a copy, which a cache keeps
        whole = mask.to(is_text.device, torch.bool, copy=True)
    if not torch.equal(whole[:, : read.shape[1]], read):
        raise InputError(
            "attention_mask: found another mask of the tokens in the cache than when they were"
            " read, expected the same."
        )
    # a text begins where a token follows padding or the edge
    begins = whole.int().diff(dim=-1, prepend=whole.new_zeros(len(whole), 1).int()) == 1
    if begins.sum(-1).gt(1).any():
        raise InputError(
            "attention_mask: found padding inside a text, expected it before or after."
        )
    return whole


def _leading_padding(mask: Tensor) -> Tensor:
    """Columns before the first token of each text (B,), from a mask (B, columns)."""
    return (mask.cumsum(-1) == 0).sum(-1)


def _text_positions(padding: Tensor, length: int) -> Tensor:
    """Position in its text of each column (B, length); columns of padding come after the text."""
    return (torch.arange(length, device=padding.device) - padding[:, None]) % length


def _check_length(length: int, config: ModelConfig) -> None:
    if length > config.context_length:
        raise InputError(
            f"input_ids: found {length} tokens, expected at most {config.context_length}, the"
            f" model's context length."
        )


def _check_further(further: Mapping[str, Any], mask: Tensor, count: int) -> None:
    """Refuse arguments that `forward` does not have and that would change the result.

    transformers passes some to every model, more in each version. What carries no data is accepted:
    None, flags, zeros and objects such as tokenizers, and the positions that the `count` last
    columns of the mask have in their texts.
    """
    own = list(signature(TwoscaleForCausalLM.forward).parameters)
    for name, value in further.items():
        if value is None or value is _UNSUPPORTED.get(name, False):
            continue
        if name == "position_ids" and _are_positions(value, mask, count):
            continue
        hint = did_you_mean(name, own, cutoff=0.8)
        if name in _UNSUPPORTED or hint or _carries_data(value):
            raise InputError(f"{name}: not supported by this model{hint}.")


def _carries_data(value: Any) -> bool:
    """Whether the value is a cache, text, or a number or tensor other than zero."""
    if isinstance(value, Tensor):
        return bool(value.any())
    # True is a flag, although an `int`
    is_number_or_text = isinstance(value, int | float | str) and value is not True
    return (is_number_or_text and bool(value)) or hasattr(value, "get_seq_length")


def _are_positions(found: Tensor, mask: Tensor, count: int) -> bool:
    """Whether `found` are the positions in their texts of the last `count` columns of the mask."""
    columns = torch.arange(mask.shape[1], device=mask.device)[-count:]
    expected = columns - _leading_padding(mask)[:, None]
    return bool(((found == expected) | (expected < 0)).all())  # padding may have any


class RecordedModel:
    """A model that keeps the output of each unlooped layer and loop step in `states`.

    They are of rows in any order.
    """

    def __init__(self, model: LoopedTransformer) -> None:
        self._model = model
        self.states: list[Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def embed(self, *arguments: Any, **options: Any) -> Tensor:
        return self._keep(self._model.embed(*arguments, **options))

    def unlooped_layer(self, *arguments: Any, **options: Any) -> Tensor:
        return self._keep(self._model.unlooped_layer(*arguments, **options))

    def recur(self, *arguments: Any, **options: Any) -> Tensor:
        return self._keep(self._model.recur(*arguments, **options))

    def _keep(self, state: Tensor) -> Tensor:
        self.states.append(state)
        return state


@dataclass
class LoopedOutput(CausalLMOutputWithPast):
    """Logits (B, N, V), the cache under both of its names, and with `labels` the loss.

    The loss is the mean cross-entropy in nats.

    With `output_hidden_states`, `hidden_states` has tensors (B, N, C) in the order in which the
    model computes them: the embedding, then for each unlooped layer its output, and for each looped
    group its states after loop steps 1 … `max_loops`.
    """

    # loop steps that each token was computed for, int64 (G, B, N)
    evaluations: Tensor | None = None

    # the name of the cache that is no field of this version of transformers
    if not hasattr(CausalLMOutputWithPast, "cache"):
        cache = property(lambda self: self.past_key_values)
    elif not hasattr(CausalLMOutputWithPast, "past_key_values"):
        past_key_values = property(lambda self: self.cache)


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
        self._arrays: dict[tuple[Any, ...], Tensor] = {}  # group, k, dtype, device -> noise (T, C)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        # transformers builds a model without values; tables of rotary embeddings are in no file
        if isinstance(module, RotaryEmbedding):
            module.make_tables(module.cos)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.token_embedding

    def get_output_embeddings(self) -> nn.Module | None:
        return self.model.head

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, *_: Any, **__: Any
    ) -> nn.Module:
        """The embedding, which has the size of the run's vocabulary; padding needs no row of it."""
        # the size as it is, and the size that counts the padding token too
        if new_num_tokens not in (None, self.config.vocab_size, (self.config.padding_id or 0) + 1):
            raise InputError(
                f"resize_token_embeddings: found {new_num_tokens} tokens, expected"
                f" {self.config.vocab_size}, the vocabulary of the run; train a run whose"
                f" tokenizer has the tokens that you need (tokenizer.name)."
            )
        return self.get_input_embeddings()

    def activation_checkpointing_enable(self, *_: Any, **__: Any) -> None:
        raise InputError(
            "gradient_checkpointing_enable: not supported by this model; use smaller batches with"
            " gradient accumulation, or train with the library, where the key train.recompute does"
            " the same."
        )

    gradient_checkpointing_enable = activation_checkpointing_enable  # the older name

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # `forward` makes a LoopCache

    def generate(self, inputs: Tensor | None = None, *arguments: Any, **options: Any) -> Any:
        """`generate` of transformers, which passes on no mask without padding.

        So the mask of a text and its cache are checked here too.
        """
        ids = options.get("input_ids") if inputs is None else inputs
        embeddings = options.get("inputs_embeds")
        self._check_shapes(ids if embeddings is None else None, embeddings)
        text = ids if embeddings is None else embeddings
        cache = options.get("cache") or options.get("past_key_values")
        if text is not None and cache is not None:
            mask = options.get("attention_mask")
            _check_cache(cache, options.get("max_loops") or self.config.max_loops, len(text))
            count = text.shape[1]
            # new tokens come with the mask of the whole text, otherwise the text is whole
            if mask is None or mask.shape[-1] == count:
                count -= cache.columns
            if count < 1:
                raise InputError(
                    f"past_key_values: found a cache of {cache.columns} tokens and a text of"
                    f" {text.shape[1]}, expected a longer text, which begins with those tokens."
                )
            _whole_mask(mask, cache.mask.new_ones(len(text), count), cache)
        return super().generate(inputs, *arguments, **options)

    def _prepare_generated_length(self, *arguments: Any, **lengths: Any) -> GenerationConfig:
        """The lengths of a call of `generate`, which ends a text at the context."""
        ids, prompt = lengths["input_ids_length"], lengths["inputs_tensor"].shape[1]
        _check_length(prompt, self.model.config)
        config = super()._prepare_generated_length(*arguments, **lengths)
        # a prompt of embeddings is no part of the text that grows
        config.max_length = min(config.max_length, self.model.config.context_length - prompt + ids)
        return config

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: LoopCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        max_loops: int | None = None,
        exit_criterion: str | None = None,
        exit_threshold: float | None = None,
        return_dict: bool | None = None,
        cache: LoopCache | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **further: Any,
    ) -> LoopedOutput | tuple[Tensor, ...]:
        """Logits of the tokens that follow.

        Without a cache and a criterion gradients flow, through all loop steps.

        Args:
            input_ids: Token ids (B, N).
            attention_mask: 1 for tokens of a text, 0 for padding before or after it (B, columns):
                with a cache, as it was for the tokens in it, and then for the new ones.
            past_key_values, cache: Cache that the last call with `use_cache` returned; two names of
                one argument.
            labels: Token ids (B, N), usually `input_ids`: the loss is for token i + 1 given the
                logits of token i; -100 leaves a token out, and so does padding as token i or i + 1.
            logits_to_keep: Return the logits of the last so many tokens; 0: of all.
            max_loops, exit_criterion, exit_threshold: See the class `TwoscaleConfig`. A criterion
                that is given comes with its threshold. "none" as criterion: all loop steps,
                whatever the config says.
            inputs_embeds: In place of `input_ids`, what `get_input_embeddings` returns for them (B,
                N, C), without positions and the factor of embeddings.
            output_hidden_states: Return the states that `LoopedOutput` describes; without a
                criterion only, because a token that has left its group has no further states.
            further: Arguments that this model does not have; refused if they would change the
                result. `position_ids` (B, N) may say what the positions of the tokens in their
                texts are.
        """
        if cache is not None and past_key_values is not None and cache is not past_key_values:
            raise InputError(
                "cache: found another one than past_key_values, expected one of the two names."
            )
        past = past_key_values if cache is None else cache
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("input_ids: expected either input_ids or inputs_embeds.")
        self._check_shapes(input_ids, inputs_embeds)
        max_loops, criterion = self._loops(max_loops, exit_criterion, exit_threshold)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if output_hidden_states and criterion is not None:
            raise InputError(
                "output_hidden_states: found an exit_criterion, expected none, as a token that"
                ' has left a group has no further states: pass exit_criterion="none".'
            )
        if input_ids is None:
            tokens = self._placeholders(inputs_embeds)
            is_text = torch.ones_like(tokens, dtype=torch.bool)
        else:
            tokens, is_text = self._without_padding(input_ids)
        _check_cache(past, max_loops, len(tokens))
        mask = _whole_mask(attention_mask, is_text, past)
        _check_further(further, mask, tokens.shape[1])
        inputs = tokens, inputs_embeds, mask
        if past is None and not use_cache:
            logits, evaluations, states = self._evaluate(
                *inputs, max_loops, criterion, output_hidden_states
            )
        else:
            logits, evaluations, states, past = self._read(
                *inputs, past, max_loops, criterion, logits_to_keep, output_hidden_states
            )
        # -0 keeps all
        logits = logits[:, -logits_to_keep:]
        loss = None
        if labels is not None:
            # padding is computed after its text and has read the label
            gap = ~mask[:, -labels.shape[1] :].to(labels.device)
            after_gap = gap.roll(1, dims=1)  # of the first label, which is no target, too
            labels = labels.masked_fill(gap | after_gap, -100)
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size)
        output = LoopedOutput(loss, logits, past, states, evaluations=evaluations)
        return output.to_tuple() if return_dict is False else output

    def _loops(
        self, max_loops: int | None, name: str | None, threshold: float | None
    ) -> tuple[int, ExitCriterion | None]:
        """Most loop steps and the exit criterion of a call, None for all loop steps."""
        max_loops = self.config.max_loops if max_loops is None else max_loops
        if not isinstance(max_loops, int) or max_loops < 1:
            raise InputError(
                f"max_loops: found {max_loops!r}, expected a whole number of loop steps, at least"
                f" 1."
            )
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

    def _check_shapes(self, ids: Tensor | None, embeddings: Tensor | None) -> None:
        """Raise InputError for ids other than (B, N), and embeddings other than (B, N, C)."""
        channels = self.model.config.hidden_size
        for name, inputs, sizes in (
            ("input_ids", ids, ()),
            ("inputs_embeds", embeddings, (channels,)),
        ):
            if inputs is None:
                continue
            if inputs.dim() > 1 and inputs.shape[1] and inputs.shape[2:] == sizes:
                continue
            expected = ", ".join(map(str, ("texts", "tokens", *sizes)))
            raise InputError(
                f"{name}: found the shape {tuple(inputs.shape)}, expected ({expected}) with at"
                " least one token."
            )

    def _placeholders(self, embeddings: Tensor) -> Tensor:
        """Token ids (B, N) in place of those of embeddings (B, N, C); no layer may need them."""
        if self.model.config.value_embeddings:
            raise InputError(
                "inputs_embeds: not supported by this model, whose value embeddings need token ids."
            )
        return torch.zeros(embeddings.shape[:2], dtype=torch.int64, device=embeddings.device)

    @contextmanager
    def _embedded(self, embeddings: Tensor | None, order: Tensor | None = None) -> Iterator[None]:
        """Give the model embeddings (B, N, C), unless None, in place of rows of its table.

        Column i comes to `order[i]`.
        """
        if embeddings is None:
            yield
            return
        if order is not None:
            embeddings = torch.zeros_like(embeddings).scatter(
                1, order[..., None].expand_as(embeddings), embeddings
            )
        # what a forward hook returns takes the place of the output
        hook = self.model.token_embedding.register_forward_hook(
            lambda *call: embeddings.view_as(call[-1])
        )
        try:
            yield
        finally:
            hook.remove()

    def _without_padding(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids with the end of text, which has an embedding, in place of padding; what is no
        padding, bool (B, N).
        """
        is_padding = torch.zeros_like(tokens, dtype=torch.bool)
        if self.config.padding_id not in (None, self.config.eos_token_id):
            is_padding = tokens == self.config.padding_id
            tokens = tokens.masked_fill(is_padding, self.config.eos_token_id)
        return tokens, ~is_padding

    def _noise(self, positions: Tensor) -> Noise:
        """The noise of tokens at `positions` (B, N)."""

        def noise(group: int, k: int, like: Tensor) -> Tensor:
            key = (group, k, like.dtype, like.device)
            if key not in self._arrays:
                with torch.inference_mode(False):  # kept for later calls, which may need gradients
                    self._arrays[key] = self._source.rows(group, k, like.shape[-1], like)[0]
            return self._arrays[key][positions].view_as(like)  # (B, N, C)

        return noise

    def _evaluate(
        self,
        tokens: Tensor,
        embeddings: Tensor | None,
        mask: Tensor,
        max_loops: int,
        criterion: ExitCriterion | None,
        record: bool,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...] | None]:
        """Evaluate whole texts.

        Returns logits (B, N, V), evaluations (G, B, N), and hidden states.
        """
        batch, length = tokens.shape
        _check_length(length, self.model.config)
        # padding before a text moves after it, where it changes nothing
        order = _text_positions(_leading_padding(mask), length)
        # token i moves to place order[i]; `in_columns` moves the results back
        tokens = torch.zeros_like(tokens).scatter(1, order, tokens)
        noise = self._noise(torch.arange(length, device=tokens.device).expand(batch, -1))
        loops = [max_loops] * len(self.model.config.groups)
        evaluations = tokens.new_full((len(loops), batch, length), max_loops)
        states: list[Tensor] = []
        with self._embedded(embeddings, order):
            if criterion is not None:
                logits, counts = evaluate(self.model, tokens, criterion, max_loops, noise)
                evaluations = counts.evaluations
            elif record:
                for stage in self.model.trace(tokens, loops, noise):
                    is_group = stage.stage is not None and stage.stage.is_group
                    # of a loop without the initial state
                    states += stage.states[1:] if is_group else stage.states
                logits = self.model.readout(stage.output)
            else:
                logits = self.model(tokens, loops, noise)

        def in_columns(values: Tensor) -> Tensor:
            return values.gather(1, order[..., None].expand_as(values))

        hidden = tuple(in_columns(state) for state in states) if record else None
        return in_columns(logits), evaluations.gather(2, order.expand_as(evaluations)), hidden

    @torch.no_grad()
    def _read(
        self,
        tokens: Tensor,
        embeddings: Tensor | None,
        mask: Tensor,
        cache: LoopCache | None,
        max_loops: int,
        criterion: ExitCriterion | None,
        keep: int,
        record: bool,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...] | None, LoopCache]:
        """Read new tokens (B, N).

        Returns logits (B, `keep` or N, V), evaluations (G, B, N), hidden states; and the cache.
        """
        if cache is None:
            cache = LoopCache(self.model, max_loops, len(tokens))
        # room for the new tokens, also for padding, which later tokens overwrite
        positions = cache.extend(mask)
        model = RecordedModel(self.model) if record else self.model
        engine = ParallelEngine(model, criterion or make_criterion("fixed", max_loops), max_loops)
        end = int(positions.max()) + 1  # positions that attention may see
        with self._embedded(embeddings):
            texts = TextKV(cache.kv, tokens, positions, end)
            hidden, counts, _ = read_parallel(engine, texts, self._noise(positions))
        # -0 keeps all tokens
        logits = self.model.readout(hidden[:, -keep:])
        states = (
            tuple(state.unflatten(0, tokens.shape) for state in model.states) if record else None
        )
        return logits, counts.evaluations, states, cache

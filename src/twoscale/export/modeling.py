"""The model as a class of the transformers library, with its cache and its config.

In a release this module is modeling_twoscale.py; the modules of the library that it imports are in files next to it
(`twoscale.export.sources`).

Loops are an argument: every call and `generate` take `max_loops`, the most loop steps of a token in each looped group,
and with `exit_criterion` and `exit_threshold` each token stops when its criterion fires. Without a criterion every
token takes all of them. Missing arguments come from the config.

Axes: B texts, N new tokens of each, T positions, C hidden size, V vocabulary, G looped groups.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import cached_file, logging

from twoscale.base import InputError
from twoscale.config.thresholds import check_threshold
from twoscale.exits.criteria import ExitCriterion, make_criterion
from twoscale.exits.kv_cache import allocate
from twoscale.exits.parallel import ParallelEngine, evaluate, stack_counts
from twoscale.exits.sampling import Sampling
from twoscale.export.plain_config import ModelConfig
from twoscale.model.attention import attention
from twoscale.model.interface import Attend, AttendAt, Noise, any_weight, run_stages
from twoscale.model.noise import EvaluationNoise
from twoscale.model.rotary import RotaryEmbedding
from twoscale.model.transformer import LoopedTransformer

logger = logging.get_logger(__name__)
PASSED_ON = ("tokenizer", "assistant_tokenizer")  # by `generate`, to every model
GROWTH = 64  # a cache that is full grows to a multiple of so many positions


class TwoscaleConfig(PreTrainedConfig):
    """Architecture of a released model, and how its loops run unless a call says otherwise.

    Args:
        model: Every key of the section `model` of the run's config.
        max_loops: Most loop steps of a token in each looped group.
        exit_criterion: Name of the exit criterion; None: every token takes `max_loops` loop steps.
        exit_threshold: Its threshold.
        noise_seed: Seed of the noise of the loops, see `PositionNoise`: the seed of the run.
        run: Name of the run.
        iteration: Optimizer updates that the weights have had.
        tokens_seen: Tokens that they were trained on.
        draw_noise: In train mode, draw the noise of each sequence of each call anew, by PyTorch's generator.
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
        draw_noise: bool = False,
        eos_token_id: int | None = None,
        padding_id: int | None = None,
        **common: Any,
    ) -> None:
        self.model = dict(model or {})
        self.max_loops, self.exit_criterion, self.exit_threshold = max_loops, exit_criterion, exit_threshold
        self.noise_seed, self.run, self.iteration, self.tokens_seen = noise_seed, run, iteration, tokens_seen
        self.draw_noise, self.eos_token_id, self.padding_id = draw_noise, eos_token_id, padding_id
        super().__init__(**{"tie_word_embeddings": False} | common)

    # what transformers and tools on top of it read of a config
    @property
    def vocab_size(self) -> int:
        return self._size("vocab_size")

    @property
    def hidden_size(self) -> int:
        return self._size("hidden_size")

    @property
    def num_hidden_layers(self) -> int:
        return self._size("num_layers")

    @property
    def num_attention_heads(self) -> int:
        return self._size("num_heads")

    @property
    def max_position_embeddings(self) -> int:
        return self._size("context_length")

    def _size(self, name: str) -> int:
        if name not in self.model:
            raise InputError(f"config.json: key model.{name} is missing.")
        return self.model[name]

    # `Trainer` sets it to the tokenizer's, and transformers warns of one that is not in the vocabulary
    pad_token_id = property(lambda self: None, lambda self, value: None)


class PositionNoise:
    """Noise of the loops as a function of (seed, group, position[, k]): in every text the noise of held-out sequence 0.

    So the same text has the same logits in every call, in any batch, read at once or token by token.
    """

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self._source = EvaluationNoise.of(config, seed, [0])
        self._arrays: dict[tuple[Any, ...], Tensor] = {}

    def at(self, positions: Tensor) -> Noise:
        """The noise of tokens at `positions` (B, N)."""

        def noise(group: int, k: int, like: Tensor) -> Tensor:
            key = (group, k, like.dtype, like.device)
            if key not in self._arrays:
                with torch.inference_mode(False):  # kept for later calls, which may need gradients
                    self._arrays[key] = self._source.rows(group, k, like.shape[-1], like)[0]  # (T, C)
            return self._arrays[key][positions].view_as(like)

        return noise


def drawn_noise(std: float) -> Noise:
    """Noise that is drawn anew by PyTorch's generator, of the distribution of `PositionNoise`."""

    def noise(group: int, k: int, like: Tensor) -> Tensor:
        return nn.init.trunc_normal_(torch.empty_like(like, requires_grad=False), std=std, a=-3 * std, b=3 * std)

    return noise


# --- cache -----------------------------------------------------------------------------------------------------------


class LoopCache:
    """Keys and values of B texts, a slot per (loop step, layer), which grow with the texts.

    A token that has exited fills the slots that it did not reach with its last evaluation. The methods are those that
    `generate` calls.

    Attributes:
        slots: Loop steps with a slot, `max_loops` of all calls with this cache.
        columns: Tokens read so far in each row of a batch, with the padding before the texts.
        padding: Padding before each text (B,).
    """

    is_compileable = False
    is_croppable = True

    def __init__(self, config: ModelConfig, slots: int, like: Tensor) -> None:
        self.config, self.slots, self.columns = config, slots, 0
        self._like = like
        self.padding: Tensor | None = None
        self._room = 0
        self._stored: dict[int, Tensor] = {}  # layer -> (slots, 2, B, H, T, D)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens read so far, with padding."""
        return self.columns

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let row i continue the text of row `beam_idx[i]` (beam search)."""
        self.padding = self.padding[beam_idx]
        self._stored = {layer: stored[:, :, beam_idx] for layer, stored in self._stored.items()}

    def crop(self, max_length: int) -> None:
        """Keep `max_length` columns, or drop -`max_length` where it is negative; what is dropped is overwritten."""
        self.columns = max_length if max_length > 0 else self.columns + max_length

    def extend(self, mask: Tensor | None, count: int, batch: int) -> Tensor:
        """Make room for `count` more tokens of each of `batch` texts. Returns their positions (B, N).

        Padding is computed like a token, at the positions after its text, which later tokens overwrite.

        Args:
            mask: Which columns belong to a text, (B, columns + N); None: all of them.
        """
        end = self.columns + count
        check_length(end, self.config)
        if self.padding is None or mask is not None:
            padding = leading_padding(mask, batch, end, self._like.device, behind=False)
            if self.padding is not None and not torch.equal(padding, self.padding):
                raise InputError("attention_mask: found padding that differs from the padding in the previous call.")
            self.padding = padding
        if end > self._room:
            self._grow(end, batch)
        positions = text_positions(self.padding, end)[:, self.columns :]
        self.columns = end
        return positions

    def _grow(self, end: int, batch: int) -> None:
        room = min(-(-end // GROWTH) * GROWTH, self.config.context_length)
        config = ModelConfig(vars(self.config) | {"context_length": room, "rotary_scaling": None})
        grown = allocate(config, self.slots, batch, self._like)
        for layer, stored in self._stored.items():
            grown[layer][..., : self._room, :] = stored
        self._stored, self._room = grown, room

    def attend(self, k: int, positions: Tensor, rows: Tensor) -> Attend:
        """Attention at loop step k for the tokens `rows` (M,) of those at `positions` (B, N), all texts in a row."""
        batch, count = positions.shape
        text, at = rows // count, positions.flatten()[rows]
        end = int(positions.max()) + 1
        mask = (torch.arange(end, device=positions.device) <= positions[..., None])[:, None]  # (B, 1, N, end)

        def attend(layer: int, q: Tensor, k_new: Tensor, v_new: Tensor) -> Tensor:
            keys, values = self._stored[layer][min(k, len(self._stored[layer]) - 1)]  # (B, H, T, D) each
            keys[text, :, at], values[text, :, at] = k_new, v_new
            # a query for every token, also for those that have exited: only projections are saved for these
            queries = q.new_zeros(batch * count, *q.shape[1:]).index_copy_(0, rows, q).unflatten(0, (batch, count))
            result = attention(queries.transpose(1, 2), keys[:, :, :end], values[:, :, :end], mask)
            return result.transpose(1, 2).flatten(0, 1)[rows]

        return AttendAt(at, attend)

    def fill(self, layers: Sequence[int], positions: Tensor, rows: Tensor, evaluations: int) -> None:
        """Copy the last evaluation of the tokens `rows` to the slots that they did not reach."""
        if evaluations >= self.slots:
            return
        text, at = rows // positions.shape[1], positions.flatten()[rows]
        for layer in layers:
            stored = self._stored[layer]
            stored[evaluations:, :, text, :, at] = stored[evaluations - 1, :, text, :, at][:, None]


@dataclass(frozen=True)
class CachedGroup:
    """`KVStore` of the layers of one group for new tokens at `positions` (B, N) of a `LoopCache`."""

    cache: LoopCache
    layers: Sequence[int]
    positions: Tensor

    def attend(self, k: int, active: Tensor) -> Attend:
        return self.cache.attend(k, self.positions, active)

    def freeze(self, rows: Tensor, evaluations: int) -> None:
        self.cache.fill(self.layers, self.positions, rows, evaluations)


def leading_padding(mask: Tensor | None, batch: int, length: int, device: torch.device, behind: bool) -> Tensor:
    """Columns of padding before each text (B,), from the mask (B, length) of columns that belong to a text.

    behind: whether there may be padding after a text too.
    """
    if mask is None:
        return torch.zeros(batch, dtype=torch.int64, device=device)
    if mask.shape != (batch, length):
        raise InputError(
            f"attention_mask: found the shape {tuple(mask.shape)}, expected {(batch, length)}, one column for each "
            "token read so far."
        )
    mask = mask.to(device).bool()
    before, column = (mask.cumsum(-1) == 0).sum(-1), torch.arange(length, device=device)
    end = before + mask.sum(-1) if behind else torch.full_like(before, length)
    if not torch.equal(mask, (column >= before[:, None]) & (column < end[:, None])):
        where = "inside a text, expected it before or after" if behind else "inside or after a text, expected it before"
        raise InputError(f'attention_mask: found padding {where} (padding_side="left").')
    return before


def text_positions(padding: Tensor, length: int) -> Tensor:
    """Position in its text of each column (B, length); columns of padding come after the text."""
    return (torch.arange(length, device=padding.device) - padding[:, None]) % length


def targets_of_text(labels: Tensor, mask: Tensor) -> Tensor:
    """Labels (B, N), -100 for padding and after padding, which is computed after its text and has read the label.

    mask: which columns belong to a text, the last N of (B, columns).
    """
    is_padding = ~mask[:, -labels.shape[1] :].to(labels.device).bool()
    return labels.masked_fill(is_padding | is_padding.roll(1, dims=1), -100)  # the first label is no target


def check_positions(found: Tensor, mask: Tensor | None, batch: int, end: int) -> None:
    """Refuse positions (B or 1, N) that differ from the positions of the last N of `end` columns in their texts."""
    expected = text_positions(leading_padding(mask, batch, end, found.device, behind=True), end)[:, -found.shape[1] :]
    if mask is not None:
        found = found.where(mask[:, -found.shape[1] :].to(found.device).bool(), expected)
    if not torch.equal(found.expand_as(expected), expected):
        raise InputError("position_ids: expected None, or 0, 1, 2, … in each text.")


def check_further(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that the model does not use, unless they are None or False."""
    for name, value in arguments.items():
        if name not in PASSED_ON and value is not None and value is not False:
            raise InputError(f"{name}: not supported by this model.")


def check_length(length: int, config: ModelConfig) -> None:
    """Refuse a text that is longer than the model's context."""
    if length > config.context_length:
        raise InputError(
            f"input_ids: found {length} tokens, expected at most {config.context_length}, the model's context length."
        )


# --- model -----------------------------------------------------------------------------------------------------------


@dataclass
class LoopedOutput(CausalLMOutputWithPast):
    """Logits (B, N, V), and with `labels` their mean cross-entropy in nats.

    Attributes:
        hidden_states: On request, the embedding and the output of each unlooped layer and looped group, (B, N, C) each;
            the head applies its norm to the last one.
        evaluations: Loop steps that each token was computed for, in each looped group: int64 (G, B, N).
    """

    evaluations: Tensor | None = None


def check_weights(config: TwoscaleConfig, path: str) -> None:
    """Refuse a config that does not describe the tensors of its file, before the memory for a model is taken."""
    with safe_open(path, "pt") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    section = ModelConfig(config.model)
    if section.num_layers > len(found):
        raise InputError(f"{path}: found {len(found)} tensors, expected those of {section.num_layers} layers.")
    with torch.device("meta"):
        tensors = LoopedTransformer(section).state_dict()
    expected = {f"model.{name}": tuple(tensor.shape) for name, tensor in tensors.items()}
    if wrong := sorted(name for name in found | expected if found.get(name) != expected.get(name)):
        name = wrong[0]
        shapes = [f"the shape {shapes[name]}" if name in shapes else "no such tensor" for shapes in (found, expected)]
        raise InputError(f"{path}: {name}: found {shapes[0]}, expected {shapes[1]}, as config.json says.")


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
        self.noise = PositionNoise(section, config.noise_seed)
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
    def from_pretrained(cls, folder: Any, *arguments: Any, revision: str | None = None, **options: Any) -> Any:
        """See transformers, which ignores the revision of a local folder."""
        if revision not in (None, "main") and Path(folder).is_dir():
            raise InputError(f'revision: found {revision!r} for a local folder, expected subfolder="iteration_…".')
        keys = ("subfolder", "cache_dir", "local_files_only", "token", "proxies", "force_download")
        place = {key: options[key] for key in keys if key in options}
        config = options.get("config")
        if not isinstance(config, cls.config_class):  # none, or the path of one
            config = cls.config_class.from_pretrained(config or folder, revision=revision, **place)
        try:
            weights = cached_file(folder, "model.safetensors", revision=revision, **place)
        except OSError:  # in several files, or none: an error of transformers
            weights = None
        if weights and not hasattr(config, "quantization_config"):
            check_weights(config, weights)
        return super().from_pretrained(folder, *arguments, revision=revision, **options)

    def resize_token_embeddings(self, *arguments: Any, **options: Any) -> nn.Module:
        raise InputError("resize_token_embeddings: not supported, because the vocabulary of the model is fixed.")

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # `forward` makes a LoopCache

    def _prepare_generated_length(self, *arguments: Any, **lengths: Any) -> GenerationConfig:
        """The lengths of a call of `generate`, which ends a text at the context."""
        check_length(lengths["input_ids_length"], self.model.config)
        config, room = super()._prepare_generated_length(*arguments, **lengths), self.model.config.context_length
        if config.max_length > room:
            found = f"generate: found a request for {config.max_length} tokens"
            logger.warning(f"{found}, expected at most {room}, the model's context length, so the text ends there.")
            config.max_length = room
        return config

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: LoopCache | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int = 0,
        max_loops: int | None = None,
        exit_criterion: str | None = None,
        exit_threshold: float | None = None,
        return_dict: bool | None = None,
        **further: Any,
    ) -> LoopedOutput | tuple[Tensor, ...]:
        """Logits of the tokens that follow.

        Without a cache and without a criterion gradients flow, through all loop steps.

        Args:
            input_ids: Token ids (B, N).
            attention_mask: 1 for tokens of a text, 0 for padding before it; with a cache for all columns read so far.
            past_key_values: Cache that the last call returned.
            position_ids: Positions of the tokens in their texts, (B or 1, N); others than 0, 1, 2, … are refused.
            labels: Token ids (B, N), usually `input_ids`: the loss is for token i + 1 given the logits of token i;
                -100 leaves a token out, and so does padding as token i or i + 1.
            use_cache: Return keys and values for a next call.
            output_hidden_states: Return the states between the stages, see `LoopedOutput`; not for a criterion without
                a cache.
            logits_to_keep: Return the logits of the last so many tokens; 0: of all.
            max_loops, exit_criterion, exit_threshold: See the class `TwoscaleConfig`. A criterion that is given comes
                with its threshold. "none" as criterion: all loop steps, whatever the config says.
            return_dict: False: a tuple.
            further: Unused arguments that `generate` passes to every model; others are refused.

        Raises:
            InputError: for a text that is longer than the context, unknown criteria, and other wrong arguments.
        """
        check_further(further)
        max_loops, criterion = self._loops(max_loops, exit_criterion, exit_threshold)
        input_ids, attention_mask = self._without_padding(input_ids, attention_mask, past_key_values is None)
        if position_ids is not None:
            before = 0 if past_key_values is None else past_key_values.columns
            check_positions(position_ids, attention_mask, len(input_ids), before + input_ids.shape[1])
        states = [] if output_hidden_states or self.config.output_hidden_states else None
        if past_key_values is not None or use_cache:
            logits, evaluations, past_key_values = self._read(
                input_ids, attention_mask, past_key_values, max_loops, criterion, logits_to_keep, states
            )
        else:
            logits, evaluations = self._evaluate(input_ids, attention_mask, max_loops, criterion, states)
        logits = logits[:, -logits_to_keep:]
        loss = None
        if labels is not None:
            targets = labels if attention_mask is None else targets_of_text(labels, attention_mask)
            loss = self.loss_function(logits, targets, vocab_size=self.config.vocab_size)
        states = None if states is None else tuple(states)
        output = LoopedOutput(loss, logits, past_key_values, states, evaluations=evaluations)
        return output.to_tuple() if return_dict is False else output

    def sampling(
        self, temperature: float = 0.8, top_k: int | None = None, top_p: float | None = None, seed: int = 0
    ) -> LogitsProcessor:
        """A logits processor with which `generate(do_sample=False)` samples what scripts/generate.py samples.

        The token at a position is a function of its logits, the seed and the position. In a batch the position is that
        of the column, with padding.
        """
        return SeededSampling(Sampling(temperature, top_k, top_p, seed))

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

    def _without_padding(self, tokens: Tensor, mask: Tensor | None, whole: bool) -> tuple[Tensor, Tensor | None]:
        """Tokens with padding as the end of text, which has an embedding, and the mask, of `whole` texts if None."""
        end, pad = self.config.eos_token_id, self.config.padding_id
        if pad in (None, end):
            return tokens, mask
        is_padding = tokens == pad
        return tokens.masked_fill(is_padding, end), ~is_padding if mask is None and whole else mask

    def _noise(self, batch: int, length: int, device: torch.device) -> Noise:
        """The noise of whole texts (B, N)."""
        if self.training and self.config.draw_noise:
            return drawn_noise(self.model.config.state_std)
        return self.noise.at(torch.arange(length, device=device).expand(batch, -1))

    def _evaluate(
        self,
        tokens: Tensor,
        mask: Tensor | None,
        max_loops: int,
        criterion: ExitCriterion | None,
        states: list[Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        """Logits (B, N, V) of whole texts and the evaluations (G, B, N) of their tokens. Adds to `states`, if any."""
        batch, length = tokens.shape
        check_length(length, self.model.config)
        padding, order = leading_padding(mask, batch, length, tokens.device, behind=True), None
        if padding.any():  # move it after the texts, where it changes nothing
            order = text_positions(padding, length)
            tokens = torch.zeros_like(tokens).scatter(1, order, tokens)
        noise, loops = self._noise(batch, length, tokens.device), [max_loops] * len(self.model.config.groups)
        evaluations = tokens.new_full((len(loops), batch, length), max_loops)
        if states is not None:
            if criterion is not None:
                raise InputError("output_hidden_states: requires use_cache=True under an exit criterion.")
            states += [stage.output for stage in self.model.trace(tokens, loops, noise)]
            logits = self.model.readout(states[-1])
        elif criterion is None:
            logits = self.model(tokens, loops, noise)
        else:
            logits, counts = evaluate(self.model, tokens, criterion, max_loops, noise)
            evaluations = counts.evaluations
        if order is not None:
            logits = logits.gather(1, order[..., None].expand_as(logits))
            evaluations = evaluations.gather(2, order.expand_as(evaluations))
            for number, state in enumerate(states or ()):
                states[number] = state.gather(1, order[..., None].expand_as(state))
        return logits, evaluations

    @torch.no_grad()
    def _read(
        self,
        tokens: Tensor,
        mask: Tensor | None,
        cache: LoopCache | None,
        max_loops: int,
        criterion: ExitCriterion | None,
        keep: int,
        states: list[Tensor] | None,
    ) -> tuple[Tensor, Tensor, LoopCache]:
        """Logits (B, `keep` or N, V) of new tokens (B, N), the evaluations (G, B, N), and the cache with them.

        Adds to `states`, if any.
        """
        model = self.model
        if cache is None:
            cache = LoopCache(model.config, max_loops, any_weight(model))
        if not isinstance(cache, LoopCache) or cache.slots != max_loops:
            found = f"a cache of {cache.slots} loop steps" if isinstance(cache, LoopCache) else type(cache).__name__
            raise InputError(
                f"past_key_values: found {found}, expected None or what a call with max_loops = {max_loops} returned."
            )
        positions = cache.extend(mask, tokens.shape[1], len(tokens))
        engine = ParallelEngine(model, criterion or make_criterion("fixed", max_loops), max_loops)
        attend = cache.attend(0, positions, torch.arange(positions.numel(), device=positions.device))
        noise, exits = self.noise.at(positions), []

        def kept(hidden: Tensor) -> Tensor:
            if states is not None:
                states.append(hidden)
            return hidden

        def layer(number: int, hidden: Tensor) -> Tensor:
            return kept(model.unlooped_layer(number, hidden.flatten(0, 1), attend).view_as(hidden))

        def group(index: int, hidden: Tensor) -> Tensor:
            exits.append(engine.loop(index, hidden, noise, CachedGroup(cache, model.config.groups[index], positions)))
            return kept(model.finish(index, exits[-1].states))

        hidden = run_stages(model, kept(model.embed(tokens, positions)), layer, group)
        return model.readout(hidden[:, -keep:]), stack_counts(exits, tokens).evaluations, cache


class SeededSampling(LogitsProcessor):
    """Leaves only the token that `Sampling.choose` chooses."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        chosen = [self._sampling.choose(row, input_ids.shape[1]) for row in scores]
        ids = torch.tensor(chosen, device=scores.device)[:, None]
        return torch.full_like(scores, -torch.inf).scatter(1, ids, 0.0)

"""Adaptive decoding: one sequence through a KV cache, each token looping until its criterion fires.

The semantics are as in `twoscale.exits.parallel`: decoding token by token and reading a text in
parallel are the same function.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from twoscale.base import InputError
from twoscale.exits.captured_loops import CapturedLoops
from twoscale.exits.contract import (
    Decided,
    Decisions,
    TokenExit,
    first_exit,
    is_sequential,
    make_readout,
    prescribed_exit,
)
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.parallel import (
    KVCache,
    LoopCounts,
    ParallelEngine,
    TextKV,
    distinct_slots,
    read_parallel,
)
from twoscale.model.interface import (
    Attend,
    LoopedModel,
    Noise,
    any_weight,
    last,
    loop_states,
    run_stages,
)
from twoscale.model.kernels import MULTIPLE, Linear
from twoscale.model.noise import EvaluationNoise


@dataclass(frozen=True)
class DecoderOptions:
    """How a decoder runs its loops.

    Attributes:
        kv_slots: Loop steps share this many slots of the cache; None: each has its own.
        warm_start: Start a token that is fed in each group from the state with which the token
            before left it (Geiping et al.). Tokens of a prompt still start as in training.
        replay: Tokens that are fed one by one loop through `CapturedLoops`. None: on CUDA only.
        compile: Loop steps are compiled before `replay` captures them.
        readout: "head" or "remaining_layers", see `twoscale.exits.contract`.
        steps_per_graph: Loop steps of one captured graph, at least 1.
    """

    kv_slots: int | None = None
    warm_start: bool = False
    replay: bool | None = None
    compile: bool = False
    readout: str = "head"
    steps_per_graph: int = 4

    def __post_init__(self) -> None:
        if self.kv_slots is not None and self.kv_slots < 1:
            raise InputError(f"kv_slots: found {self.kv_slots}, expected at least 1.")


DEFAULTS = DecoderOptions()


class Decoder:
    """Decodes one sequence under an exit criterion.

    Tokens are fed one by one (`feed`) or several at once (`feed_parallel`), with the same result.
    """

    def __init__(
        self,
        model: LoopedModel,
        criterion: ExitCriterion,
        max_loops: int,
        seed: int,
        options: DecoderOptions = DEFAULTS,
    ) -> None:
        self.model = model
        self.criterion = criterion
        self.max_loops = max_loops
        self.options = options
        self.position = 0
        # for a few tokens at once, such as drafts
        self._rows_model = with_row_kernels(model, "forward_rows")
        config = model.config
        like = any_weight(model)
        self.cache = KVCache(config, distinct_slots(options.kv_slots, max_loops), like)
        self.noise = EvaluationNoise.of(config, seed, [0])
        self._noise_arrays: dict[tuple[int, int], Tensor] = {}  # (group, k) -> (T, C)
        # exit states (T, C) of each group, from which the next token starts if that is warm
        shape = config.context_length, config.hidden_size
        self._exit_states = [like.new_zeros(shape) for _ in config.groups]
        self._positions = torch.arange(config.context_length, device=like.device)
        with torch.inference_mode():
            self._loops = make_loops(model, self.cache, max_loops, options)
            self._loops.prepare(criterion)

    @property
    def shares_slots(self) -> bool:
        return self.cache.slots < self.max_loops

    @property
    def is_sequential(self) -> bool:
        return self.shares_slots or is_sequential(self.criterion, self.options.readout)

    @torch.inference_mode()
    def reset(self, criterion: ExitCriterion | None = None, sequence: int | None = None) -> None:
        """Start a new text, with another criterion or the noise of another held-out sequence."""
        self.position = 0
        if criterion is not None:
            self.criterion = criterion
            self._loops.prepare(criterion)
        if self._loops.masks:
            # masked positions are read too, and a weight of 0 times a value that is not finite is
            # NaN
            self.cache.clear()
        if sequence is not None and sequence not in self.noise.sequences:
            self.noise = EvaluationNoise.of(self.model.config, self.noise.seed, [sequence])
            self._noise_arrays.clear()

    def rewind(self, position: int) -> None:
        """Remove the tokens from `position` on.

        Their rows in the cache are overwritten before they are read.
        """
        if not 0 <= position <= self.position:
            raise ValueError(f"{position} is not a position between 0 and {self.position}")
        self.position = position

    @torch.inference_mode()
    def feed(
        self,
        token: int,
        evaluations: Sequence[int] | None = None,
        decisions: ExitCriterion | None = None,
    ) -> tuple[Tensor, list[int]]:
        """Logits (V,) after one more token, and the evaluations of each group.

        With `evaluations`, at least 1 each, each group runs that many loop steps without the
        criterion: the baseline of the latency benchmark. The `decisions` of a criterion are then
        computed and read after each step, but not followed: so its cost is measured.
        """
        logits, exits = self._feed_one(token, self.options.warm_start, evaluations, decisions)
        return logits, [one.evaluations for one in exits]

    @torch.inference_mode()
    def feed_parallel(self, tokens: Sequence[int]) -> tuple[Tensor, LoopCounts]:
        """Logits (N, V) after each of N more tokens, computed in parallel, and their counts."""
        if self.shares_slots:
            raise InputError(
                f"kv_slots: found {self.cache.slots} slots for {self.max_loops} loops, expected"
                " one slot per loop step for positions computed in parallel; feed the tokens one"
                " by one."
            )
        # row kernels are for few rows; from MULTIPLE on, oneDNN may compute the products
        model = self._rows_model if len(tokens) < MULTIPLE else self.model
        engine = ParallelEngine(model, self.criterion, self.max_loops, self.options.readout)
        self._check_room(len(tokens))
        batch = self._as_tensor(tokens)
        end = self.position + len(tokens)
        positions = self._positions[None, self.position : end]  # (1, N)
        texts = TextKV(self.cache, batch, positions, end)
        hidden, counts, left = read_parallel(engine, texts, self._noise_rows)
        for states, of_group in zip(self._exit_states, left, strict=True):
            # from which the next token starts if it starts warm
            states[self.position : end] = of_group[0]
        self.position = end
        return self.model.readout(hidden[0]), counts

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int]) -> tuple[Tensor, LoopCounts]:
        """Read a prompt of N tokens, in parallel where possible.

        Returns logits (N, V) after each and counts (G, 1, N).
        """
        if not self.is_sequential:
            return self.feed_parallel(tokens)
        logits, counts = [], []
        for token in tokens:
            of_token, exits = self._feed_one(token, warm=False)
            logits.append(of_token)
            counts.append([(one.loop_steps, one.evaluations) for one in exits])
        # named, because `counts` has empty rows for a model without groups
        shape = len(tokens), len(self.model.config.groups), 2
        both = torch.tensor(counts, dtype=torch.int64).reshape(shape).permute(2, 1, 0)  # (2, G, N)
        return torch.stack(logits), LoopCounts(*both[:, :, None])

    def _feed_one(
        self,
        token: int,
        warm: bool,
        evaluations: Sequence[int] | None = None,
        decisions: ExitCriterion | None = None,
    ) -> tuple[Tensor, list[TokenExit]]:
        """Logits (V,) after one more token, and its exit from each group.

        warm: its loops start where the token before it left.
        """
        self._check_room(1)
        loops = self._loops
        model = loops.model  # computes the same as `self.model`, one row faster on the CPU
        exits: list[TokenExit] = []
        ids = self._as_tensor([token])
        loops.start(self.position, ids[0], self._noise_rows)

        def group(index: int, entered: Tensor) -> Tensor:
            if warm and self.position:
                # the last state of the token before, (1, C)
                x = self._exit_states[index][self.position - 1, None]
            else:
                x = model.init_state(index, entered, self._noise_rows)  # x^0 (1, C)
            if evaluations and decisions is None:
                taken = evaluations[index]
                one = TokenExit(loops.fixed(index, entered, x, taken), taken, taken)
            elif evaluations and decisions is not None:
                decided = loops.decided(decisions, index, entered, x)
                one = prescribed_exit(decided, evaluations[index])
            else:
                # eager loops compute a step when it is taken from `decided`; captured ones are
                # ahead of it, and `fill` overwrites what these wrote
                decided = loops.decided(self.criterion, index, entered, x)
                one = first_exit(decided, self.criterion.of_group(index), x, self.max_loops)
            exits.append(one)
            # at the loop steps that this token did not take, later tokens find its last evaluation
            self.cache.fill(model.config.groups[index], 0, self.position, one.evaluations)
            if self.options.warm_start:
                # a copy, as captured loops give the next state in the same memory
                self._exit_states[index][self.position] = one.state[0]
            return model.finish(index, one.state)

        hidden = model.embed(ids, loops.positions)[0]  # (1, C)
        hidden = run_stages(model, hidden, loops.layer, group)
        self.position += 1
        return model.readout(hidden)[0], exits

    def _noise_rows(self, group: int, k: int, like: Tensor) -> Tensor:
        """The rows of the positions that are being fed, shaped like `like` (…, N, C)."""
        if (group, k) not in self._noise_arrays:
            # (1, T, C) -> (T, C)
            self._noise_arrays[group, k] = self.noise.rows(group, k, like.shape[-1], like)[0]
        rows = self._noise_arrays[group, k][self.position :]
        return rows[: like.shape[-2]].view_as(like)

    def _check_room(self, count: int) -> None:
        room = self.model.config.context_length
        if self.position + count > room:
            raise InputError(
                f"text: found {self.position + count} tokens, expected at most"
                f" model.context_length = {room}."
            )

    def _as_tensor(self, tokens: Sequence[int]) -> Tensor:
        """Ids (1, N) on the device of the model."""
        host = torch.tensor([tokens], dtype=torch.int64)
        if not self._positions.is_cuda:
            return host
        # copied without a wait for the device
        return host.pin_memory().to(self._positions.device, non_blocking=True)


@torch.inference_mode()
def evaluate_by_position(
    decoder: Decoder, tokens: Tensor, criterion: ExitCriterion, sequences: Sequence[int]
) -> tuple[Tensor, LoopCounts]:
    """`parallel.evaluate` through the cache, one of the `sequences` (B,) after another.

    Slower, but it also works with shared slots and with criteria that read out through the
    remaining layers.
    """
    logits, loop_steps, evaluations = [], [], []
    for row, sequence in zip(tokens.tolist(), sequences, strict=True):
        decoder.reset(criterion, sequence)
        of_row, counts = decoder.prefill(row)
        logits.append(of_row)
        loop_steps.append(counts.loop_steps)  # (G, 1, T)
        evaluations.append(counts.evaluations)
    return torch.stack(logits), LoopCounts(torch.cat(loop_steps, 1), torch.cat(evaluations, 1))


@torch.inference_mode()
def evaluate_prescribed(
    decoder: Decoder, tokens: Tensor, evaluations: Tensor, sequences: Sequence[int]
) -> Tensor:
    """Logits (B, T, V) of `tokens` (B, T) with these `evaluations` (G, B, T), through the cache."""
    logits = []
    of_tokens = evaluations.permute(1, 2, 0).tolist()  # (B, T, G)
    for row, taken, sequence in zip(tokens.tolist(), of_tokens, sequences, strict=True):
        decoder.reset(sequence=sequence)
        # B T rows (V,), in the order of the texts
        logits += [decoder.feed(*token)[0] for token in zip(row, taken, strict=True)]
    return torch.stack(logits).unflatten(0, tokens.shape)


# --- the layers of one token ----------------------------------------------------------------------


class EagerLoops:
    """The layers of one token: the host starts each loop step and decides before the next.

    `CapturedLoops` has the same methods and attributes: the model for everything else that decoding
    computes of one token, the position of the token (1,), and whether attention `masks` the
    context, so the cache has to be finite.
    """

    masks = False

    def __init__(self, model: LoopedModel, cache: KVCache, max_loops: int, readout: str) -> None:
        self.model = with_row_kernels(model, "forward_row", by_columns=True)
        self._cache = cache
        self._max_loops = max_loops
        self._readout = readout

    def prepare(self, criterion: ExitCriterion) -> None:
        """Here `CapturedLoops` captures what tokens need under a criterion."""

    def start(self, position: int, token: Tensor, noise: Noise) -> None:
        """Begin with the token id (1,) at `position`, whose rows of the noise `noise` gives."""
        self._position, self._token, self._noise = position, token, noise
        self._attend = self._cache.attend(0, position, token)
        self.positions = self._attend.positions

    def layer(self, number: int, hidden: Tensor) -> Tensor:
        return self.model.unlooped_layer(number, hidden, self._attend)

    def decided(
        self, criterion: ExitCriterion, group: int, entered: Tensor, x: Tensor
    ) -> Iterator[Decided]:
        """The loop steps of the token that enters a group (1, C) with the state x (1, C), and their
        decisions.
        """
        criterion = criterion.of_group(group)
        decisions = Decisions(
            criterion, x, make_readout(self.model, criterion, self._readout, group, self._attend)
        )
        for k, x_new in enumerate(self._states(group, entered, x, self._max_loops)):
            should_exit = decisions.update(x_new)
            yield k, decisions.result(x_new), should_exit

    def fixed(self, group: int, entered: Tensor, x: Tensor, loops: int) -> Tensor:
        """The state (1, C) after so many loop steps, at least one, without a criterion."""
        return last(self._states(group, entered, x, loops))

    def _states(self, group: int, entered: Tensor, x: Tensor, loops: int) -> Iterator[Tensor]:
        """x^1 … x^loops (1, C); a step is computed when its state is taken."""

        def attend(k: int) -> Attend:
            return self._cache.attend(k, self._position, self._token)

        states = loop_states(self.model, group, entered, loops, attend, self._noise, x0=x)
        return islice(states, 1, None)


def make_loops(
    model: LoopedModel, cache: KVCache, max_loops: int, options: DecoderOptions
) -> EagerLoops | CapturedLoops:
    """The loops that compute the layers of one token, as the options and the device allow."""
    replay = any_weight(model).is_cuda if options.replay is None else options.replay
    if replay:
        return CapturedLoops(
            model, cache, max_loops, options.readout, options.compile, options.steps_per_graph
        )
    return EagerLoops(model, cache, max_loops, options.readout)


# --- faster kernels for few rows on the CPU

MAX_COPIED_BYTES = 2**30  # a larger model keeps its layout, because copies take memory


def with_row_kernels(model: LoopedModel, method: str, by_columns: bool = False) -> LoopedModel:
    """A model on the CPU that shares its weights and calls faster kernels for few rows.

    A module with this `method` calls it in place of `forward`: "forward_row" for one row (1, C),
    "forward_rows" for a few (N, C). Linear layers are prepared (`Linear.prepare`). For float32 and
    float64, without gradient. With `by_columns` linear weights are copies that are stored by
    columns, where a product with one row is then faster.

    Without the kernels a token takes 1.7 times as long at width 256, without the columns 1.07 to
    1.24 times (tests/benchmarks/bench_decode.py).
    """
    like = any_weight(model)
    if not like.is_cpu:
        return model
    copied = _copied(model)
    # at hidden sizes 64 to 768 these are 10 to 40 % faster, the projection from 4C to C is slower
    linear = [module for module in copied.modules() if isinstance(module, nn.Linear)]
    faster = [module for module in linear if module.in_features <= 2 * module.out_features]
    if by_columns and sum(module.weight.nbytes for module in faster) <= MAX_COPIED_BYTES:
        for module in faster:
            # (O, I) as before, with the O numbers of a column next to each other
            columns = module.weight.detach().t().contiguous().t()
            module.weight = nn.Parameter(columns, requires_grad=False)
    if like.dtype in (torch.float32, torch.float64):
        for module in copied.modules():
            if hasattr(module, method):
                module.forward = getattr(module, method)
            elif isinstance(module, Linear):
                module.prepare()
    return copied


def _copied(module: Any) -> Any:
    """A copy of a tree of modules that shares tensors and hooks."""
    copied = copy.copy(module)
    copied._parameters = dict(module._parameters)
    copied._modules = {name: child and _copied(child) for name, child in module._modules.items()}
    return copied

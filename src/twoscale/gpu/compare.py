"""A device against the CPU: the same small model, text and noise give the same numbers."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from twoscale import config, rng
from twoscale.config.exits import DENSE_GRIDS
from twoscale.data.batches import HeldOut
from twoscale.exits.batched import BatchedDecoder, given_texts
from twoscale.exits.criteria import ExitCriterion, make_criterion
from twoscale.exits.decoder import Decoder
from twoscale.exits.parallel import evaluate
from twoscale.gpu.latency import KINDS
from twoscale.gpu.report import FAILED, PASSED, Row
from twoscale.model import registry
from twoscale.model.interface import LoopedModel, any_weight
from twoscale.model.noise import EvaluationNoise
from twoscale.training.recipe import autocast

PRESET = "tiny"
SEED = 0
SEQUENCES = (0, 1)
LOOPS = 5
MAX_LOOPS = 12
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}  # relative, in norm
BF16_TOLERANCE = 0.05  # of the loss, in nats
SAME_EXITS = 0.995  # share of exits at the same step; rounding may decide a tie


class Comparison:
    """The small model on `device` and on the CPU."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.config = config.checked(config.preset(PRESET))
        self.model = self.config.model
        shape = (len(SEQUENCES), self.model.context_length + 1)
        tokens = torch.from_numpy(rng.stream(SEED, "gpu_check").integers(0, self.model.vocab_size, size=shape))
        self.inputs, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self.noise = EvaluationNoise(SEED, SEQUENCES, self.model.context_length)
        grids = DENSE_GRIDS.items()
        self.points = [(name, threshold) for name, thresholds in grids for threshold in thresholds[1::3]]

    def of(self, device: str, dtype: torch.dtype) -> LoopedModel:
        return registry.architecture(self.model.architecture).initialise(self.model, SEED).to(device, dtype)

    def _difference(self, name: str, dtype: torch.dtype, found: Sequence[Tensor], expected: Sequence[Tensor]) -> Row:
        """The largest relative difference, in norm, over tensors; NaN if there is one in any."""
        pairs = [(a.detach().cpu(), b.detach()) for a, b in zip(found, expected, strict=True)]
        value = torch.stack([(a - b).norm() / b.norm().clamp_min(1e-30) for a, b in pairs]).max().item()
        return judged(name, str(dtype).removeprefix("torch."), value, value <= TOLERANCE[dtype])

    def _loss(self, model: LoopedModel) -> Tensor:
        device = any_weight(model).device
        hidden = model.hidden_states(self.inputs.to(device), [LOOPS] * len(self.model.groups), self.noise)
        return model.loss(hidden, self.targets.to(device))

    def gradients(self) -> list[Row]:
        """Loss and gradients at fixed loop counts."""
        return [row for dtype in TOLERANCE for row in self._gradients(dtype)]

    def _gradients(self, dtype: torch.dtype) -> Iterator[Row]:
        losses, gradients = [], []
        for device in (self.device, "cpu"):
            model = self.of(device, dtype)
            losses.append(self._loss(model))
            losses[-1].backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        yield self._difference("loss", dtype, losses[:1], losses[1:])
        yield self._difference("gradient of each parameter", dtype, *gradients)

    def states(self) -> list[Row]:
        """The states that `trace` yields."""
        return [self._states(dtype) for dtype in TOLERANCE]

    @torch.inference_mode()
    def _states(self, dtype: torch.dtype) -> Row:
        states = []
        for device in (self.device, "cpu"):
            model = self.of(device, dtype)
            trace = model.trace(self.inputs.to(device), [LOOPS] * len(self.model.groups), self.noise)
            states.append([state for stage in trace for state in stage.states])
        return self._difference("states of each stage and loop step", dtype, *states)

    @torch.inference_mode()
    def mixed_precision(self) -> list[Row]:
        """The loss in the precision of training, which is bfloat16 on CUDA."""
        with autocast(self.device, self.config.train.precision_on(self.device)):
            found = self._loss(self.of(self.device, torch.float32)).item()
        value = abs(found - self._loss(self.of("cpu", torch.float32)).item())
        return [judged("loss in training's precision", "against float32", value, value <= BF16_TOLERANCE, "nats")]

    def exits(self, engine: str) -> list[Row]:
        """Criteria on a third of their dense grids in float64: an engine exits where the parallel one does on CPU."""
        found = self._evaluations(ENGINES[engine](self, self.of(self.device, torch.float64)))
        share = (found == self._expected[..., : found.shape[-1]]).double().mean().item()
        setting = "against the parallel engine on CPU"
        return [judged(f"same exits, {engine}", setting, share, share >= SAME_EXITS, "share")]

    @cached_property
    def _expected(self) -> Tensor:
        return self._evaluations(self._parallel(self.of("cpu", torch.float64)))

    def _evaluations(self, engine: Callable[[ExitCriterion], Tensor]) -> Tensor:
        """(criteria and thresholds, G, positions)."""
        return torch.stack([engine(make_criterion(*point)).cpu() for point in self.points])

    def _parallel(self, model: LoopedModel) -> Callable[[ExitCriterion], Tensor]:
        """criterion -> evaluations (G, T) of the first sequence."""
        noise = EvaluationNoise(SEED, SEQUENCES[:1], self.model.context_length)
        tokens = self.inputs[:1].to(next(model.parameters()).device)
        return lambda criterion: evaluate(model, tokens, criterion, MAX_LOOPS, noise)[1].evaluations[:, 0]

    def _decoding(self, model: LoopedModel, kind: str) -> Callable[[ExitCriterion], Tensor]:
        """criterion -> evaluations (G, T) of the first sequence, token by token."""
        decoder = Decoder(model, make_criterion("fixed", MAX_LOOPS), MAX_LOOPS, SEED, KINDS[kind])

        def evaluations(criterion: ExitCriterion) -> Tensor:
            decoder.reset(criterion)
            return torch.tensor([decoder.feed(token)[1] for token in self.inputs[0].tolist()]).T

        return evaluations

    def _batched(self, model: LoopedModel) -> Callable[[ExitCriterion], Tensor]:
        """criterion -> evaluations (G, T - 1) of the first sequence beside the second; a full context ends the text."""
        full = make_criterion("fixed", MAX_LOOPS)
        decoder = BatchedDecoder(model, full, MAX_LOOPS, SEED, len(SEQUENCES))
        text = HeldOut(self.inputs, self.targets, SEQUENCES, SEQUENCES)

        def evaluations(criterion: ExitCriterion) -> Tensor:
            decoder.reset(criterion)
            decoded = decoder.decode(given_texts(text, prompt=1, tokens=self.model.context_length))
            return torch.tensor([token.evaluations for number, token, _ in decoded if number == 0]).T

        return evaluations


ENGINES = {
    "parallel engine": Comparison._parallel,
    **{f"decoder, {kind} steps": partial(Comparison._decoding, kind=kind) for kind in KINDS},
    "sequences decoded together": Comparison._batched,
}


def judged(quantity: str, setting: str, value: float, passed: bool, unit: str = "relative") -> Row:
    return Row(quantity, setting, value, unit, PASSED if passed else FAILED)

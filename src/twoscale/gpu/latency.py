"""Latency of decoding: each criterion with captured and with eager steps, against the bare matrix products."""

from collections.abc import Callable

import torch

from twoscale import config
from twoscale.exits.benchmark import time_tokens
from twoscale.exits.criteria import CRITERIA, ExitCriterion, make_criterion
from twoscale.exits.decoder import Decoder, DecoderOptions
from twoscale.exits.products import bare_products
from twoscale.gpu.report import Row
from twoscale.model import registry

TOKENS = 16  # timed in a row, in the middle of the context
NEVER = 1e-30  # a threshold that no step is below
PRODUCTS_SECONDS = 0.5
PRODUCTS = "bare matrix products"
KINDS = {  # of loop steps
    "compiled and captured": DecoderOptions(replay=True, compile=True),
    "captured": DecoderOptions(replay=True),
    "eager": DecoderOptions(replay=False),
}


class Latency:
    """One token at a time in a preset's untrained model, in exits.dtype, at exits.max_loops loop steps."""

    def __init__(self, preset: str, device: str) -> None:
        run = config.checked(config.preset(preset))
        self.max_loops, self.seed, self.device = run.exits.max_loops, run.seed, device
        model = registry.architecture(run.model.architecture).initialise(run.model, run.seed)
        self.model = model.to(device, getattr(torch, run.exits.dtype)).eval().requires_grad_(False)
        self.loops = [self.max_loops] * len(run.model.groups)
        self.position = run.model.context_length // 2
        self.setting = f"{self.max_loops} loop steps, {run.exits.dtype}"
        self._decoders: dict[str, Decoder] = {}

    def products(self, kind: str) -> list[Row]:
        """The bare matrix products of a token, called one by one ("eager") or as one graph ("captured", on CUDA)."""
        call = bare_products(self.model, self.loops)  # type: ignore[arg-type]
        ms = _milliseconds(_captured(call) if kind == "captured" else call)
        return [Row(PRODUCTS, f"{self.setting}, {kind}", ms, "ms/token")]

    def rows(self, criterion: str, kind: str, floor: float | None) -> list[Row]:
        """A criterion that decides at every step and never exits, and the same steps without it.

        `floor` is ms/token of the bare products, if they were measured.
        """
        never = make_criterion(criterion, self.max_loops + 1 if CRITERIA[criterion].larger_is_later else NEVER)
        times, setting = self._seconds(never, kind), f"{self.setting}, {kind} steps"
        rows = []
        for quantity, seconds in zip((criterion, f"{criterion}, loops alone"), times, strict=True):
            ms = 1e3 * seconds / TOKENS
            note = f"{ms / floor:.2f} x the bare products" if floor else ""
            rows.append(Row(quantity, setting, ms, "ms/token", note=note))
        return rows

    def _seconds(self, criterion: ExitCriterion, kind: str) -> tuple[float, float]:
        """Seconds of the timed tokens under the criterion and with the same loop steps without it."""
        decoder = self._decoder(kind)
        decoder.criterion = criterion
        tokens = [0] * TOKENS
        times = []
        for evaluations in (None, [self.loops] * TOKENS):
            for timed in (tokens[:2], tokens):  # a short warm-up before each
                decoder.rewind(self.position)
                seconds, _ = time_tokens(decoder, timed, evaluations)
            times.append(seconds)
        return times[0], times[1]

    def _decoder(self, kind: str) -> Decoder:
        """A decoder that has read the text before the timed tokens; captured steps are captured once."""
        if kind not in self._decoders:
            full = make_criterion("fixed", self.max_loops)
            decoder = Decoder(self.model, full, self.max_loops, self.seed, KINDS[kind])
            decoder.prefill([0] * (self.position + TOKENS))
            self._decoders[kind] = decoder
        return self._decoders[kind]


def _milliseconds(call: Callable[[], object]) -> float:
    """torch's timer waits for the device."""
    from torch.utils.benchmark import Timer  # looks for CUDA, and warns where it finds none

    return 1e3 * Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=PRODUCTS_SECONDS).median


def _captured(call: Callable[[], None]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries initialise at their first call, which no graph may contain
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        call()
    return graph.replay

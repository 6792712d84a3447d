"""Latency of decoding: each criterion with captured and with eager steps, and the bare matrix
products.
"""

import pytest
import torch

from tests.products import bare_products
from tests.small import LATER_IF_LARGER
from twoscale.exits.benchmark import time_tokens
from twoscale.exits.criteria import CRITERIA, make_criterion
from twoscale.exits.decoder import Decoder, DecoderOptions
from twoscale.model import registry

pytestmark = [pytest.mark.gpu, pytest.mark.limit(60, turn=2)]
TOKENS = 16  # timed in a row, in the middle of the context
NEVER = 1e-30  # a threshold that no step is below
KINDS = {  # of loop steps
    "compiled and captured": DecoderOptions(replay=True, compile=True),
    "captured": DecoderOptions(replay=True),
    "eager": DecoderOptions(replay=False),
}


class Latency:
    """One token at a time in the untrained model, in exits.dtype, at exits.max_loops loop steps."""

    def __init__(self, run) -> None:
        self.max_loops, self.seed = run.exits.max_loops, run.seed
        model = registry.architecture(run.model.architecture).initialise(run.model, run.seed)
        self.model = (
            model.to(run.compute.device, getattr(torch, run.exits.dtype))
            .eval()
            .requires_grad_(False)
        )
        self.loops = [self.max_loops] * len(run.model.groups)
        self.position = run.model.context_length // 2
        self.setting = f"{self.max_loops} loop steps, {run.exits.dtype}"
        self.floor: float | None = None  # ms/token of the bare products
        self._decoders: dict[str, Decoder] = {}

    def decoder(self, kind: str) -> Decoder:
        """A decoder that has read the text before the timed tokens; its steps are captured once."""
        if kind not in self._decoders:
            full = make_criterion("fixed", self.max_loops)
            self._decoders[kind] = Decoder(self.model, full, self.max_loops, self.seed, KINDS[kind])
            self._decoders[kind].prefill([0] * (self.position + TOKENS))
        return self._decoders[kind]


@pytest.fixture(scope="module")
def latency(run) -> Latency:
    return Latency(run)


@pytest.mark.parametrize("kind", ["captured", "eager"])
def test_bare_products(latency, record, kind, device):
    from torch.utils.benchmark import Timer  # looks for CUDA, and warns where it finds none

    if (kind, device) == ("captured", "cpu"):
        record("bare matrix products", kind, None, verdict="not on a CPU")
        return
    call = bare_products(latency.model, latency.loops)
    if kind == "captured":
        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        call = graph.replay
    ms = 1e3 * Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=0.5).median
    latency.floor = min(ms, latency.floor or ms)
    record("bare matrix products", f"{latency.setting}, {kind}", ms, "ms/token")


@pytest.mark.filterwarnings(
    "error:exits.compile", "error:exit criterion .* cannot be captured"
)  # another row's way
@pytest.mark.parametrize(
    "name", [name for name, criterion in CRITERIA.items() if not criterion.needs_gate]
)
@pytest.mark.parametrize("kind", KINDS)
def test_latency(latency, record, kind, name):
    """A criterion that decides at every step and never exits, and the same steps without it."""
    decoder = latency.decoder(kind)
    threshold = latency.max_loops + 1 if name in LATER_IF_LARGER else NEVER
    decoder.criterion = make_criterion(name, threshold)
    for quantity, evaluations in ((name, None), (f"{name}, loops alone", [latency.loops] * TOKENS)):
        for tokens in ([0, 0], [0] * TOKENS):  # a short warm-up before each
            decoder.rewind(latency.position)
            seconds, _ = time_tokens(decoder, tokens, evaluations and evaluations[: len(tokens)])
        ms = 1e3 * seconds / TOKENS
        note = f"{ms / latency.floor:.2f} x the bare products" if latency.floor else ""
        record(quantity, f"{latency.setting}, {kind} steps", ms, "ms/token", note=note)

"""Recorded modules beyond their trained loops: spectrum, exits, predictions and the depth card,
with known answers.
"""

import json
import re
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from tests.small import ROOT
from twoscale import tables
from twoscale.base import InputError
from twoscale.claims import regime
from twoscale.dynamics.state_paths import read_states
from twoscale.exits.criteria import ExitGate, StepNorm
from twoscale.recorder.recorded import RecordedBatch, StateTables, table_path
from twoscale.recorder.recorder import Output, Recorder
from twoscale.recorder.run import draw_run, write_card
from twoscale.recorder.spectrum import record_spectrum
from twoscale.replay.run_tables import read_recorded

SIZE, TRAINED = 4, 3


class Affine(nn.Module):
    """One loop step x <- A x + b of every token, and what it returns."""

    def __init__(self, matrix, shift=0.0, wrap=lambda x: x):
        super().__init__()
        self.matrix, self.wrap = nn.Parameter(torch.as_tensor(matrix, dtype=torch.float64)), wrap
        self.shift = nn.Parameter(torch.full((len(self.matrix),), shift, dtype=torch.float64))

    def forward(self, x):
        return self.wrap(x @ self.matrix.T + self.shift)


class Looped(nn.Module):
    """A module in a loop, whose result `take` picks; `between` is what the model does between two
    calls.
    """

    def __init__(self, step, loops=12, take=lambda found: found, between=lambda x, k: x):
        super().__init__()
        self.step, self.loops, self.take, self.between = step, loops, take, between

    def forward(self, x):
        for k in range(self.loops):
            x = self.take(self.step(self.between(x, k)))
        return x


def states(sequences=2, length=3, size=SIZE):
    return torch.randn(
        sequences, length, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )


def spectrum(model, tmp_path, loops=None, given=None, **options):
    given = states() if given is None else given
    frame = record_spectrum(
        model, loops or {"core": "step"}, tmp_path, 7, lambda: model(given), **options
    )
    return frame.set_index(["reading", "sequence"])


NON_NORMAL = [[0.9, 5.0, 0, 0], [0, 0.5, 3.0, 0], [0, 0, 0.1, 1.0], [0, 0, 0, -0.3]]
TURN = [[0.0, -0.8, 0, 0], [0.8, 0.0, 0, 0], [0, 0, 0.2, 0], [0, 0, 0, 0.1]]


@pytest.mark.parametrize(
    ("matrix", "radius", "angle"), [(NON_NORMAL, 0.9, 0.0), (TURN, 0.8, np.pi / 2)]
)
def test_the_spectrum_of_an_affine_loop_is_that_of_its_matrix(matrix, radius, angle, tmp_path):
    found = spectrum(Looped(Affine(matrix, 1.0)), tmp_path).loc["state"]
    assert len(found) == 2
    np.testing.assert_allclose(found["radius"], radius, rtol=1e-7)
    np.testing.assert_allclose(found["angle"], angle, atol=1e-6)
    assert (found["error"] < 1e-6).all()
    assert (found["difference"] < 1e-6).all()
    assert set(found["k"]) == {11}
    stored = tables.read("recorded_spectrum", table_path(tmp_path, "recorded_spectrum", 7))
    assert set(stored["reading"]) == {"state", "direction"}


@pytest.mark.parametrize(
    ("wrap", "take", "pick"),
    [
        (lambda x: (x.new_ones(3), x), lambda found: found[1], 1),
        (lambda x: (None, x), lambda found: found[1], None),
        (lambda x: {"aux": None, "x": x}, lambda found: found["x"], "x"),
        (lambda x: [x, x.long()], lambda found: found[0], None),
    ],
)
def test_the_state_may_be_a_part_of_what_the_module_returns(wrap, take, pick, tmp_path):
    model = Looped(Affine(TURN, wrap=wrap), take=take)
    found = spectrum(model, tmp_path, {"core": Output("step", pick)})
    np.testing.assert_allclose(found.loc["state"]["radius"], 0.8, rtol=1e-7)


# the mean over tokens has the eigenvalue 1, the differences have 0: tokens that see one another are
# one operator
BETWEEN = {
    0.3: lambda x, k: 0.3 * x + 1,
    0.7: lambda x, k: 0.7 * x.mean(1, keepdim=True).expand_as(x),
}


@pytest.mark.parametrize("radius", BETWEEN)
def test_what_the_model_does_between_two_calls_belongs_to_the_step(radius, tmp_path):
    model = Looped(Affine(np.eye(SIZE)), between=BETWEEN[radius])
    np.testing.assert_allclose(spectrum(model, tmp_path).loc["state"]["radius"], radius, rtol=1e-7)


def test_a_state_that_grows_has_a_direction_that_settles(tmp_path):
    """x <- x + 1: a radius of 1, and directions that contract by the ratio of successive norms."""
    model, given = Looped(Affine(np.eye(SIZE), 1.0), loops=40), states(1, 1)
    found = spectrum(model, tmp_path, given=given)
    np.testing.assert_allclose(found.loc["state"]["radius"], 1, rtol=1e-7)
    before, after = given + 39, given + 40
    ratio = (before.norm() / after.norm()).item()
    np.testing.assert_allclose(found.loc["direction"]["radius"], ratio, rtol=1e-5)


def test_a_transformer_layer_has_forward_derivatives(tmp_path):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model, given = Looped(layer.eval(), loops=6).double(), states(1, 3, 8)
    found = spectrum(model, tmp_path, given=given).loc["state"]
    last = Looped(layer, loops=5)(given).detach()
    jacobian = torch.autograd.functional.jacobian(layer, last).reshape(24, 24)
    expected = torch.linalg.eigvals(jacobian).abs().max().item()
    np.testing.assert_allclose(found["radius"], expected, rtol=1e-6)


class Hidden(Affine):
    def forward(self, x):
        return super().forward(x.detach())


@pytest.mark.parametrize(
    ("model", "loops", "message"),
    [
        (Looped(Affine(TURN)).float(), None, "spectrum: found float32, expected float64"),
        (
            Looped(Hidden(TURN)),
            None,
            "group core: found Jacobian products that differ from finite differences by 1 of"
            " their length",
        ),
        (
            Looped(Affine(TURN, torch.nan)),
            None,
            "group core, loop step 11, sequence 0, position 0: found a state of",
        ),
        (
            Looped(Affine(TURN), loops=1),
            None,
            "found 1 loop steps in a forward pass, expected at least 2",
        ),
        (
            Looped(Affine(TURN)),
            {"core": Output("step", lambda x: x)},
            "found a function that picks the state",
        ),
    ],
)
def test_a_spectrum_that_cannot_be_had_is_one_sentence(model, loops, message, tmp_path):
    given = states().to(next(model.parameters()).dtype)
    with pytest.raises(InputError, match=message):
        spectrum(model, tmp_path, loops, given)
    assert not any(tmp_path.rglob("*.parquet"))


# --- predictions, exits, cards --------------------------------------------------------------------

TOKENS = torch.arange(24).reshape(4, 6) % 5  # each token is followed by its successor


class Overthinking(nn.Module):
    """A counter as state; decoded, the next token is most likely after `best` loop steps and less
    so before and after.

    The first channel counts the loop steps, the others are the one-hot token.
    """

    def __init__(self, best=TRAINED, loops=TRAINED):
        super().__init__()
        self.step, self.best, self.loops = Affine(np.eye(6)), best, loops
        self.step.shift.data = torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=torch.float64)

    def forward(self, tokens):
        x = nn.functional.pad(nn.functional.one_hot(tokens, 5).double(), (1, 0))
        for _ in range(self.loops):
            x = self.step(x)
        return x

    def decode(self, x):
        return x[..., 1:].roll(1, -1) * (4 - 0.2 * (x[..., :1] - self.best).abs())


def record(folder, model=None, decode=None, loops=8 * TRAINED, **options):
    model = model or Overthinking()
    model.loops = loops
    further = {"trained_loops": TRAINED} | options
    with Recorder(
        model, {"core": "step"}, folder, iteration=9, decode=decode or model.decode, **further
    ):
        model(TOKENS[:2])
        model(TOKENS[2:])


def ce_of(scale):
    """Nats of the right one of five tokens whose logit is `scale`, the others' 0."""
    return np.log(np.exp(scale) + 4) - scale


def quality(folder):
    return tables.read("depth_quality", table_path(folder, "depth_quality", 9))


def test_loops_beyond_training_are_recorded(tmp_path):
    record(tmp_path)
    found = quality(tmp_path)
    facts = json.loads((tmp_path / "recorded" / "iteration_000009.json").read_text())
    assert facts | {"text_sha256": ""} == {
        **{
            "model": "Overthinking, 42 parameters",
            "modules": {"core": "step"},
            "precision": "float64",
        },
        **{
            "trained_loops": 3,
            "loops": {"core": 24},
            "sequences": 4,
            "tokens": 24,
            "text_sha256": "",
        },
    }
    assert sorted(found["loops"].unique()) == [1, 2, 3, 6, 9, 12, 15, 18, 21, 24]
    for loops, rows in found.groupby("loops"):
        scale = 4 - 0.2 * abs(loops - TRAINED)
        np.testing.assert_allclose(rows["ce"], ce_of(scale))
        p = np.exp(scale) / (np.exp(scale) + 4)
        entropy = -p * np.log(p) - (1 - p) * np.log((1 - p) / 4)
        np.testing.assert_allclose(rows["entropy"], entropy)
        assert set(rows["flips"].fillna(-1)) == (
            {-1} if loops == 1 else {0} if loops <= 21 else {0, 1} & {*rows["flips"]}
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exits": {"step_norms": [1.0]}}, "exit criterion 'step_norms': unknown"),
        ({"exits": {ExitGate: [0.5]}}, "exits.ExitGate: found a criterion with a gate"),
    ],
)
def test_wrong_options_are_one_sentence(options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        record(tmp_path, **options)
    assert not any(tmp_path.rglob("*.parquet"))


def test_a_second_recording_replaces_the_first_only_if_it_is_told(tmp_path):
    record(tmp_path, exits={"step_norm": [2.0]})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(
        InputError, match=r"iteration_000009\.parquet: found an earlier recording of iteration 9"
    ):
        record(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    model = Overthinking()
    with Recorder(model, {"core": "step"}, tmp_path, iteration=9, replace=True):
        model(TOKENS)
    left = {path.parent.name for path in tmp_path.rglob("iteration_*")}
    assert left == {
        "trajectories",
        "paths",
        "drift",
        "recorded",
    }  # no predictions of the first recording


def test_decode_gets_the_tokens_if_it_asks_for_them(tmp_path):
    seen = []

    def decode(x, tokens):
        seen.append(tokens)
        return nn.functional.one_hot(tokens.roll(-1, 1), 5).double() * 4

    record(tmp_path, decode=decode)
    assert all(torch.equal(tokens, TOKENS[:2]) for tokens in seen[: len(seen) // 2])
    np.testing.assert_allclose(quality(tmp_path)["ce"], ce_of(4))
    head = nn.Linear(6, 5, bias=False).double()  # one parameter: states only
    record(tmp_path / "head", decode=head)
    record(tmp_path / "default", decode=lambda x, temperature=1.0: head(x) / temperature)
    pd.testing.assert_frame_equal(quality(tmp_path / "head"), quality(tmp_path / "default"))


def test_a_model_that_continues_no_text_is_measured_on_its_targets(tmp_path):
    """Every token has its successor as target, but 0 has none: four or five of the six in each
    sequence count.
    """
    record(
        tmp_path,
        targets=lambda tokens: torch.where(tokens == 0, -1, (tokens + 1) % 5),
        exits={"kl": [1e-3]},
    )
    of_loops, exits = (
        tables.read(name, table_path(tmp_path, name, 9))
        for name in ("scaling_quality", "recorded_exits")
    )
    (taken,) = exits["evaluations"].unique()
    for rows, loops, expected in (
        (quality(tmp_path), 2, ce_of(3.8)),
        (exits.assign(loops=taken), taken, of_loops[of_loops["loops"] == taken]["ce"]),
    ):
        rows = rows[rows["loops"] == loops]
        assert rows["tokens"].tolist() == (TOKENS != 0).sum(1).tolist()
        np.testing.assert_allclose(rows["ce"], expected)
    assert any(path.name == "depth-card.md" for path in write_card(tmp_path))
    with pytest.raises(
        InputError, match=r"^decode: found the id 3 to predict from logits of 3 ids, expected `tar"
    ):
        record(tmp_path / "few", decode=lambda x: Overthinking().decode(x)[..., :3])


class Slowing(Overthinking):
    """The counter approaches 8 by half of the distance: loop step k has the norm 4 / 2^k."""

    def __init__(self):
        super().__init__(best=8, loops=10)
        self.step = Affine(np.diag([0.5, 1, 1, 1, 1, 1]))
        self.step.shift.data = torch.tensor([4.0, 0, 0, 0, 0, 0], dtype=torch.float64)


def test_exits_have_the_loss_of_the_loop_step_at_which_the_criterion_says_so(tmp_path):
    module = Slowing()

    class Twice(StepNorm):
        keeps, patience = "previous", 2

    exits = {"step_norm": [0.3, 1e-9], "argmax_stability": [2], "kl": [1e-2], Twice: [0.3]}
    with Recorder(
        module, {"core": "step"}, tmp_path, iteration=9, decode=module.decode, exits=exits
    ):
        module(TOKENS)
    rows = tables.read("recorded_exits", table_path(tmp_path, "recorded_exits", 9))
    losses = [ce_of(4 - 0.2 * 8 * 0.5**k) for k in range(11)]
    for (criterion, threshold), steps, evaluations in (
        (("step_norm", 0.3), 5, 5),  # 4 / 2^4 = 0.25 is the fifth step
        (("step_norm", 1e-9), 10, 10),
        (("argmax_stability", 2), 3, 3),
        (("Twice", 0.3), 5, 6),  # the sixth evaluation is the second one below, and is discarded
    ):
        found = rows[(rows["criterion"] == criterion) & (rows["threshold"] == threshold)]
        assert found["tokens"].tolist() == [5] * 4
        np.testing.assert_allclose(found["ce"], losses[steps])
        np.testing.assert_allclose(found["evaluations"], evaluations)
    probabilities = [np.exp(-loss) for loss in losses]
    kl = [
        p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)) for q, p in pairwise(probabilities)
    ]
    first = next(k for k, value in enumerate(kl, start=1) if value < 1e-2)
    assert set(rows[rows["criterion"] == "kl"]["evaluations"]) == {first}
    write_card(tmp_path)
    run = read_recorded(tmp_path)
    gains = {
        name: (units[:, 2] - units[:, 1]).sum() / run.tokens.sum()
        for (name, _), units in run.points.items()
    }
    # as random exits: all tokens leave at once
    assert gains["argmax_stability"] == pytest.approx(0)
    # pays for a step that it discards
    assert gains["Twice"] == pytest.approx(losses[6] - losses[5])
    excess, gain = losses[5] - losses[10], losses[6] - losses[5]
    row = f"| Twice | 0.3 | 6.00 | {excess:.3g} | {excess + gain:.3g} | {gain:.3g} |"
    assert row in (tmp_path / "depth-card.md").read_text()


def test_the_card_of_a_model_whose_loss_rises_beyond_its_loops_says_so(tmp_path):
    record(tmp_path / "mine")
    model = Overthinking()
    record_spectrum(model, {"core": "step"}, tmp_path / "mine", 9, lambda: model(TOKENS))
    paths = write_card(tmp_path / "mine", text="counts", tolerance=0.02)
    assert [path.name for path in paths] == [
        *("depth-card.md", "depth_card.svg", "depth_card.parquet", "depth_findings.parquet")
    ]
    found = tables.read("depth_findings", tmp_path / "mine" / "tables" / "depth_findings.parquet")
    values = found[found["group"] == ""].set_index("quantity")["value"]
    assert values[["trained_loops", "best_loops", "plateau_first", "plateau_last"]].tolist() == [
        3,
        3,
        2,
        3,
    ]
    card = tables.read("depth_card", tmp_path / "mine" / "tables" / "depth_card.parquet")
    losses = card[card["quantity"] == "ce"].set_index("loops")["value"]
    np.testing.assert_allclose(losses, [ce_of(4 - 0.2 * abs(loops - 3)) for loops in losses.index])
    (regime,) = found[found["quantity"] == "regime"]["statement"]
    assert regime.startswith("drifting")
    page = (tmp_path / "mine" / "depth-card.md").read_text()
    assert "| core | state | 2 | 1.0000 |" in page
    assert "counts, 24 tokens in 4 sequences" in page
    assert "at the loop steps of its last group" in page


def test_a_card_of_fewer_loop_steps_than_those_of_training_is_refused(tmp_path):
    record(tmp_path, loops=2)
    with pytest.raises(InputError, match=r"found 2 loop steps .* expected at least 3"):
        write_card(tmp_path)


def test_the_card_compares_with_a_recording_without_loops(tmp_path):
    record(tmp_path / "mine")
    plain = Overthinking(best=2)  # after one loop step, its loss is that of a logit of 3.8
    record(tmp_path / "plain", plain, loops=2, trained_loops=1)
    write_card(tmp_path / "mine", unlooped=tmp_path / "plain")
    found = tables.read("depth_findings", tmp_path / "mine" / "tables" / "depth_findings.parquet")
    assert found.set_index("quantity").loc["loop_gain", "value"] == pytest.approx(
        ce_of(3.8) - ce_of(4)
    )
    other = Overthinking()
    with Recorder(other, {"core": "step"}, tmp_path / "other", iteration=9, decode=other.decode):
        other(TOKENS.flip(0))
    with pytest.raises(InputError, match="other: found other recorded tokens"):
        write_card(tmp_path / "mine", unlooped=tmp_path / "other")


class Approaching(nn.Module):
    """States approach 1 by the factor of their token; a token with the factor -1 jumps back and
    forth.
    """

    def __init__(self):
        super().__init__()
        self.step = Affine(np.zeros((5, 5)), 1.0)
        self.factors = torch.tensor([0.4, 0.5, 0.6, 0.7, -1.0], dtype=torch.float64)

    def forward(self, tokens):
        factors = self.factors[tokens][..., None]
        fixed_point = torch.ones(5, dtype=torch.float64)
        self.step.wrap = lambda ones: ones + factors * (self.state - fixed_point)
        self.state = 1 + nn.functional.one_hot(tokens, 5).double()
        for _ in range(8 * TRAINED):
            self.state = self.step(self.state)
        return self.state


MEASURED = torch.tensor([[1, 1, 0, 1, 1, 1], [0, 1, 1, 1, 1, 0]])
# of the two sequences of TOKENS, with the mask above and without: positions among the tokens that
# are measured, tokens, and their successors
COUNTED = {False: ([0, 1, 2, 3, 4], "ABCDE", "BCDEA"), True: ([0, 2, 3], "ADE", "BEA")}


@pytest.mark.parametrize("masked", [False, True])
def test_each_token_of_the_page_has_its_successor_as_target(masked, tmp_path):
    positions, _, targets = COUNTED[masked]
    options = {"mask": lambda tokens: MEASURED} if masked else {}
    module = Overthinking(loops=4)
    with Recorder(
        module,
        {"core": "step"},
        tmp_path,
        9,
        decode=module.decode,
        word="ABCDE".__getitem__,
        **options,
    ):
        module(TOKENS[:2])
    rows = tables.read("loop_tokens", table_path(tmp_path, "loop_tokens", 9))
    for k, of_step in rows.groupby("k"):
        assert of_step["position"].tolist() == positions
        assert "".join(of_step["target"]) == "".join(of_step["predicted"]) == targets
        assert of_step["is_right"].all()
        np.testing.assert_allclose(of_step["ce"], ce_of(4 - 0.2 * abs(k - TRAINED)))
    assert rows["k"].unique().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("masked", [False, True])
def test_each_token_leaves_by_its_own_steps_with_the_loss_of_its_successor(masked, tmp_path):
    """Loop step k of a token with factor f has the norm f^(k - 1) (1 - f), and 2 if f is -1, which
    never leaves. Decoded, the token has a logit of f^k more than the others, of which one is its
    successor.
    """
    tokens = torch.tensor([[0, 1, 4, 3, 4, 2], [3, 2, 0, 1, 4, 1]])
    threshold, module = 0.05, Approaching()
    with Recorder(
        module,
        {"core": "step"},
        tmp_path,
        9,
        mask=(lambda tokens: MEASURED) if masked else None,
        decode=lambda x: x,
        exits={"step_norm": [threshold]},
    ):
        module(tokens)
    measured = MEASURED.bool() if masked else MEASURED >= 0
    counted = (measured[:, 1:] & measured[:, :-1]).numpy()
    factors = module.factors[tokens[:, :-1]].numpy()
    # f^(k - 1) (1 - f) < threshold for the first time
    rates = abs(factors)
    with np.errstate(divide="ignore"):
        loops = np.floor(np.log(threshold / (1 - factors)) / np.log(rates)) + 2
    loops[factors < 0] = 8 * TRAINED
    losses = np.log(4 + np.exp(factors**loops))
    assert len(np.unique(loops)) == 5
    rows = tables.read("recorded_exits", table_path(tmp_path, "recorded_exits", 9))
    found = rows[rows["criterion"] == "step_norm"]
    assert found["tokens"].tolist() == counted.sum(1).tolist()
    for name, values in (("evaluations", loops), ("ce", losses)):
        expected = [
            of_sequence[kept].mean() for of_sequence, kept in zip(values, counted, strict=True)
        ]
        np.testing.assert_allclose(found[name], expected)
    depths = tables.read("recorded_depths", table_path(tmp_path, "recorded_depths", 9))
    depths = depths[depths["criterion"] == "step_norm"]
    for sequence, rows in depths.groupby("sequence"):
        steps, numbers = np.unique(loops[sequence][counted[sequence]], return_counts=True)
        assert rows["depth"].tolist() == steps.tolist()
        assert rows["tokens"].tolist() == numbers.tolist()
    rows = tables.read("loop_tokens", table_path(tmp_path, "loop_tokens", 9))
    for k, of_step in rows.groupby("k"):
        logits = factors[0][counted[0]] ** k
        p = np.exp(logits) / (np.exp(logits) + 4)
        np.testing.assert_allclose(of_step["ce"], np.log(4 + np.exp(logits)))
        np.testing.assert_allclose(
            of_step["entropy"], -p * np.log(p) - (1 - p) * np.log((1 - p) / 4)
        )
    page = tables.read("loop_exits", table_path(tmp_path, "loop_exits", 9))
    assert page["loops"].tolist() == loops[0][counted[0]].tolist()
    assert page["position"].tolist() == COUNTED[masked][0]
    assert page["left"].tolist() == (factors > 0)[0][counted[0]].tolist()


def test_predictions_are_compared_with_the_loop_count_before_and_with_that_of_training(tmp_path):
    """After k loop steps the k-th successor of each of five tokens is predicted."""

    def decode(x):
        return 4 * x[..., 1:].roll(int(x[0, 0, 0]), -1)

    record(tmp_path, decode=decode)
    found = quality(tmp_path)
    for loops, rows in found.groupby("loops"):
        assert set(rows["agreement"]) == {float(loops % 5 == TRAINED)}
        assert set(rows["flips"].fillna(-1)) == {-1.0 if loops == 1 else 1.0}
        np.testing.assert_allclose(rows["ce"], ce_of(4) + 4 * (loops % 5 != 1))
    assert {3, 18} < set(found["loops"])


def test_targets_outside_the_mask_do_not_count(tmp_path):
    """The targets of measured tokens are successors, those of the others are not."""
    record(
        tmp_path,
        mask=lambda tokens: MEASURED,
        targets=lambda tokens: (tokens + MEASURED) % 5,
        exits={"step_norm": [0.5]},
    )
    depths = tables.read("depth_quality", table_path(tmp_path, "depth_quality", 9))
    exits = tables.read("recorded_exits", table_path(tmp_path, "recorded_exits", 9))
    losses = depths.set_index(["loops", "sequence"])["ce"]
    for rows in (depths[depths["loops"] == TRAINED], exits):
        assert rows["tokens"].tolist() == [5, 4, 5, 4]
    np.testing.assert_allclose(losses[TRAINED], ce_of(4))
    for row in exits.itertuples():  # all tokens leave at once
        assert row.ce == pytest.approx(losses[row.evaluations, row.sequence])


def test_the_page_of_a_masked_text_has_the_words_and_states_that_are_measured(tmp_path):
    module = Overthinking(loops=4)
    words = {"word": "ABCDE".__getitem__, "mask": lambda tokens: MEASURED}
    with Recorder(module, {"core": "step"}, tmp_path, 9, **words):
        module(TOKENS[:2])
    states = read_states(tmp_path / "states.safetensors")
    assert "".join(states.tokens) == "ABDEA"
    tokens = TOKENS[0][MEASURED[0].bool()]
    for values in torch.as_tensor(states.values):
        assert values[:, 1:].argmax(-1).tolist() == tokens.tolist()


def test_without_more_a_token_has_left_if_it_did_not_take_all_loop_steps(tmp_path):
    states = [torch.full((1, 3, 2), float(k)) for k in range(5)]
    evaluations = torch.tensor([[2, 4]])
    with StateTables(tmp_path, iteration=9) as recorded:
        exits = {("mine", 0.5): {"ce": torch.ones(1, 2), "evaluations": evaluations}}
        recorded.append(RecordedBatch({"core": states}, exits=exits))
    page = tables.read("loop_exits", table_path(tmp_path, "loop_exits", 9))
    assert page["loops"].tolist() == [2, 4]
    assert page["left"].tolist() == [True, False]


def test_the_card_and_the_claims_of_a_recording_say_the_same_of_its_loops_and_of_those_that_do_not_settle(
    tmp_path,
):
    """In three of 16 sequences, one of the six tokens does not settle."""
    tokens = torch.arange(96).reshape(16, 6) % 4
    tokens[[2, 7, 8], 1] = 4
    module = Approaching()
    with Recorder(
        module, {"core": "step"}, tmp_path, iteration=9, decode=lambda x: x, trained_loops=TRAINED
    ):
        module(tokens)
    draw_run(tmp_path)
    write_card(tmp_path)
    pages = [(tmp_path / name).read_text() for name in ("claims.md", "depth-card.md")]
    (claims,) = re.findall("^- core: (.*)$", pages[0], re.M)
    (card,) = re.findall("^- Group core: (.*)$", pages[1], re.M)
    assert claims == card
    assert "; 3 of 16 sequences (19%) do not settle." in card
    assert all(regime.STATISTIC in page for page in pages)
    by_step = tables.read("depth_card", tmp_path / "tables" / "depth_card.parquet").set_index(
        ["quantity", "loops"]
    )
    # after 21 loop steps only the three tokens move, each by 2, and they are at 0
    expected = 3 * 2 / 96
    assert by_step.loc[("step_norm", 21), "value"] == pytest.approx(expected, rel=1e-3)
    path = tmp_path / "tables" / "depth_findings.parquet"
    last = tables.read("depth_findings", path).set_index("quantity")["value"]
    assert last["unsettled_share"] == 3 / 16
    assert last["last_step"] == pytest.approx(expected / (5**0.5), rel=0.05)


@pytest.mark.runs
def test_the_command_draws_a_recording_or_writes_its_card_or_one_sentence(tmp_path):
    record(tmp_path / "mine")
    command = [sys.executable, "-m", "twoscale.cli"]
    source = ROOT / "src"
    for options, written in (
        (["card", "--text", "counts"], "depth-card.md"),
        (["draw"], "fig1.pdf"),
    ):
        done = subprocess.run(
            [*command, *options, tmp_path / "mine"], capture_output=True, text=True, cwd=source
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == str(tmp_path / "mine" / written)
    empty = subprocess.run(
        [*command, "card", tmp_path / "none"], capture_output=True, text=True, cwd=source
    )
    assert empty.returncode == 1
    assert (
        "none: found no depth/iteration_*.parquet, expected a recording with decode."
        in empty.stderr
    )

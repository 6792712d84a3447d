"""The recorder: tables of modules with known loops, and of the project's own model against those of
extraction.
"""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from tests.figures import CATALOGUE
from tests.small import ROOT, checkpoint, held_out, model_config
from twoscale import tables
from twoscale.base import InputError
from twoscale.config import PathTypesConfig, TrajectoriesConfig
from twoscale.dynamics import trajectories
from twoscale.dynamics.state_paths import read_states, state_paths
from twoscale.figures import fig1
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import initialise
from twoscale.recorder.recorded import RecordedBatch, StateTables, table_path
from twoscale.recorder.recorder import Input, Loop, Output, Recorder
from twoscale.recorder.run import draw_run, write_card

LOOPS, CHANNELS = 6, 4


class Cell(nn.Module):
    """One loop step towards a target: x <- target + rate (x - target), a contraction by `rate`."""

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, target, state, mask=None):
        return target + self.rate * (state - target)


class Model(nn.Module):
    """Embedding, then cells in loops one after the other or in turns, then a head."""

    def __init__(self, *cells: Cell, in_turns: bool = False, loops: int = LOOPS) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, CHANNELS)
        self.cells, self.head = nn.ModuleList(cells), nn.Linear(CHANNELS, 11, bias=False)
        self.in_turns, self.loops = in_turns, loops

    def forward(self, tokens, attention_mask=None):
        target = self.embedding(tokens)
        state = torch.zeros_like(target)
        for _ in range(self.loops if self.in_turns else 1):
            for cell in self.cells:
                for _ in range(1 if self.in_turns else self.loops):
                    state = cell(target, state=state)
        return self.head(state)


def model(*cells: Cell, **options) -> Model:
    torch.manual_seed(0)
    return Model(*(cells or (Cell(),)), **options).double().requires_grad_(False)


def tokens(sequences: int = 2, length: int = 3) -> torch.Tensor:
    return torch.randint(
        11, (sequences, length), generator=torch.Generator().manual_seed(sequences)
    )


CORE = {"core": Loop("cells.0", initial=Input("cells.0", "state"))}


def record(
    folder: Path, module: nn.Module, loops=CORE, texts=None, **options
) -> dict[str, pd.DataFrame]:
    with Recorder(module, loops, folder, iteration=3, **options):
        for text in [tokens()] if texts is None else texts:
            module(text)
    return read(folder)


def read(folder: Path, iteration: int = 3) -> dict[str, pd.DataFrame]:
    return {
        table: tables.read(table, table_path(folder, table, iteration))
        for table in trajectories.TABLES
    }


def column(frames: dict[str, pd.DataFrame], measure: str, k: int) -> np.ndarray:
    rows = frames["trajectories"]
    return rows[rows["k"] == k][measure].to_numpy()


def test_the_tables_of_the_own_model_are_those_of_extraction(tmp_path):
    config = model_config(num_layers=6, groups=[[2], [3, 4], [6]])
    own = initialise(config, seed=3).double().requires_grad_(False)
    texts = torch.randint(37, (4, 8), generator=torch.Generator().manual_seed(0))
    outputs = {table: tmp_path / "extracted" / f"{table}.parquet" for table in trajectories.TABLES}
    settings = TrajectoriesConfig(loops=LOOPS, tokens=32, batch_size=2, dtype="float64")
    text = held_out(texts, sequences=range(4))
    trajectories.extract(
        checkpoint(own, 5, 3), text, settings, PathTypesConfig(window=4, max_period=3), outputs
    )

    groups = {label: f"groups.{number}" for number, label in enumerate(config.group_labels)}
    criteria = PathTypesConfig(window=4, max_period=3)
    with Recorder(own, groups, tmp_path / "recorded", iteration=3, criteria=criteria):
        for rows in (slice(0, 2), slice(2, 4)):
            own(texts[rows], [LOOPS] * 3, EvaluationNoise(5, range(4)[rows], config.context_length))

    recorded = read(tmp_path / "recorded")
    for table, path in outputs.items():
        wanted = tables.read(table, path).assign(document=lambda frame: frame["sequence"])
        if table == "token_drift":  # a projection of state and input is known of the own model only
            wanted = wanted[wanted["reference_state"] != "projected"].reset_index(drop=True)
        pd.testing.assert_frame_equal(recorded[table], wanted, check_dtype=False, check_exact=True)


def test_a_rotation_has_its_known_angle_and_its_orbit_is_found_in_a_loop_shorter_than_the_window(
    tmp_path,
):
    class Rotation(nn.Module):
        def forward(self, x):
            return torch.stack([-x[..., 1], x[..., 0]], dim=-1)

    class Loops(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = Rotation()

        def forward(self, x):
            for _ in range(8):
                x = self.step(x)

    module = Loops()
    with Recorder(module, {"turn": "step"}, tmp_path, iteration=3):
        module(torch.randn(5, 2, dtype=torch.float64))  # without an axis of tokens
    frames = read(tmp_path)
    np.testing.assert_allclose(column(frames, "cosine", 4), 0, atol=1e-7)
    assert set(
        zip(frames["token_paths"]["path_type"], frames["token_paths"]["period"], strict=True)
    ) == {("orbiting", 4)}
    assert (frames["token_paths"]["sequence"].tolist(), set(frames["token_paths"]["position"])) == (
        [*range(5)],
        {0},
    )


@pytest.mark.parametrize(
    ("initial", "starts"),
    [
        (None, "target"),  # the first floating-point tensor that enters the cell
        (Input("cells.0", 0), "target"),
        (Input("cells.0", "target"), "target"),  # the name of an argument that is given by position
        (Input("cells.0", "state"), "zero"),
        (Input("cells.0", lambda target, state: state), "zero"),
        (Output("embedding"), "target"),
        (Output("embedding", lambda embedded: 0 * embedded), "zero"),
    ],
)
def test_the_initial_state_is_the_tensor_that_is_named(initial, starts, tmp_path):
    module = model()
    frames = record(tmp_path, module, {"core": Loop("cells.0", initial)})
    wanted = module.embedding(tokens()).norm(dim=-1).flatten() * (starts == "target")
    np.testing.assert_allclose(column(frames, "state_norm", 0), wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_dtypes_are_measured_in_float32_with_their_own_rounding_floor(dtype, tmp_path):
    module = model(Cell(0.5), loops=8).to(dtype)
    frames, steps = record(tmp_path, module), []
    with torch.no_grad():
        target = module.embedding(tokens())
        state = torch.zeros_like(target)
        states = [state] + [state := module.cells[0](target, state) for _ in range(8)]
    for before, after in pairwise(states):
        steps.append((after.float() - before.float()).norm(dim=-1).flatten().numpy())
    floor = 16 * torch.finfo(dtype).eps
    for k in range(8):
        np.testing.assert_allclose(column(frames, "step_norm", k), steps[k], rtol=1e-6)
        size = states[k].float().norm(dim=-1).flatten().numpy()
        if k:
            known = np.minimum(steps[k], steps[k - 1]) > floor * size
            np.testing.assert_array_equal(~np.isnan(column(frames, "cosine", k)), known)


def test_states_are_copied_so_that_a_model_may_change_them_in_place(tmp_path):
    class InPlace(Cell):
        def forward(self, target, state):
            return state.sub_(target).mul_(self.rate).add_(target)

    found = record(tmp_path / "found", model(InPlace()))
    wanted = record(tmp_path / "wanted", model())
    pd.testing.assert_frame_equal(found["trajectories"], wanted["trajectories"], rtol=1e-6)


def test_masked_tokens_have_no_row_and_positions_count_the_others(tmp_path):
    module, text = model(), tokens(2, 4)
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])
    with Recorder(module, CORE, tmp_path / "masked", iteration=3, mask="attention_mask"):
        module(text, attention_mask=mask)
    masked = read(tmp_path / "masked")["token_paths"]
    assert masked["position"].tolist() == [0, 1, 0, 1, 2]
    assert masked["sequence"].tolist() == [0, 0, 1, 1, 1]
    whole = record(tmp_path / "whole", module, texts=[text])["token_paths"]
    names = ["contraction_rate", "effective_dimension"]
    np.testing.assert_array_equal(masked[names], whole[mask.flatten().bool().numpy()][names])


TWO = {
    name: Loop(f"cells.{i}", Input(f"cells.{i}", "state"))
    for i, name in enumerate(("slow", "fast"))
}


def test_decoded_states_give_the_cross_entropy_of_as_many_loops(tmp_path):
    module, text = model(), tokens(2, 5)
    record(tmp_path, module, texts=[text], decode=module.head)
    quality = tables.read("scaling_quality", table_path(tmp_path, "scaling_quality", 3))
    assert quality["loops"].unique().tolist() == list(range(1, LOOPS + 1))
    for loops, rows in quality.groupby("loops"):
        module.loops = loops
        logits = module(text)[:, :-1]
        wanted = nn.functional.cross_entropy(
            logits.transpose(1, 2), text[:, 1:], reduction="none"
        ).mean(1)
        np.testing.assert_allclose(rows["ce"], wanted, rtol=1e-12)
        assert set(rows["tokens"]) == {4}


def test_no_hook_is_left_and_the_model_computes_what_it_computed(tmp_path):
    module = model()
    before = module(tokens())
    with Recorder(module, CORE, tmp_path, iteration=3):
        assert torch.equal(module(tokens()), before)
    hooks = [
        h for part in module.modules() for h in (*part._forward_hooks, *part._forward_pre_hooks)
    ]
    assert hooks == []


def test_a_failure_leaves_the_old_files(tmp_path):
    record(tmp_path, model(), decode=lambda state: torch.zeros(*state.shape[:-1], 11))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = {"iteration": 3, "replace": True}
    with pytest.raises(ZeroDivisionError), Recorder(model(), CORE, tmp_path, **again):
        raise ZeroDivisionError
    with (
        pytest.raises(InputError, match="found no forward pass"),
        Recorder(model(), CORE, tmp_path, **again),
    ):
        pass
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert len(before) == 8


@pytest.mark.parametrize(
    ("loops", "options", "message"),
    [
        ({}, {}, "found no looped group, expected at least one"),
        ({"core": "cells"}, {}, "group core: found no call of cells in a forward pass"),
        ({"core": Output("cells.0", lambda x: None)}, {}, "found the state NoneType"),
        (
            {"core": Loop("cells.0", Output("embedding", lambda x: x[:1]))},
            {},
            r"found x\^0 of shape \(1, 3, 4\)",
        ),
        (
            CORE,
            {"mask": lambda tokens: tokens[:, 1:]},
            r"mask of the model's call: found the shape \(2, 2\)",
        ),
        (
            {"core": Output("head", lambda logits: logits[..., :4])},
            {},
            "found 1 loop steps in a forward pass",
        ),
        (CORE, {"decode": lambda x: torch.zeros(2, 4, 5, 1)}, r"decode: found \(2, 4, 5, 1\)"),
    ],
)
def test_wrong_input_is_one_sentence(loops, options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        record(tmp_path, model(), loops, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"loops": {"core": "cels.0"}},
            r"^group core: found no module 'cels.0' in Model, .*\(did you mean cells\.0\?\)",
        ),
        (
            {"loops": {"core": Loop("cells.0", Input("embed"))}},
            "no module 'embed' in Model, .* such as embedding, cells, cells.0",
        ),
        (
            {"exits": {"step_norm": ["0.1"]}},
            "^exits.step_norm: found '0.1', expected a number > 0.$",
        ),
        (
            {"exits": {"step_norm": "0.1"}},
            "^exits.step_norm: found '0.1', expected a list of thresholds.$",
        ),
        ({"exits": {"kl": 0.1}}, "^exits.kl: found 0.1, expected a list of thresholds.$"),
        ({"exits": {"kl": [float("nan")]}}, "^exits.kl: found nan, expected a number > 0.$"),
        ({"exits": {"argmax_stability": [0.5]}}, "found 0.5, expected a whole number"),
        ({"iteration": "3"}, "found iteration = '3', expected a whole number"),
        ({"trained_loops": 0}, "found trained_loops = 0, expected a whole number, at least 1"),
    ],
)
def test_wrong_options_are_refused_when_the_recorder_is_made(options, message, tmp_path):
    module = model()
    defaults = {"loops": CORE, "folder": tmp_path, "iteration": 3, "decode": module.head}
    with pytest.raises(InputError, match=message):
        Recorder(module, **(defaults | options))


@pytest.mark.parametrize("thresholds", [np.array([0.1, 1], np.float32), torch.tensor([0.5]), (1,)])
def test_thresholds_may_be_numbers_of_numpy_and_torch(thresholds, tmp_path):
    record(tmp_path, model(), decode=model().head, exits={"step_norm": thresholds})
    exits = tables.read("recorded_exits", table_path(tmp_path, "recorded_exits", 3))
    of_norms = exits[exits["criterion"] == "step_norm"]
    assert of_norms["threshold"].nunique() == len(thresholds)


@pytest.mark.parametrize(
    ("loops", "options", "message"),
    [
        (
            CORE,
            {"mask": "attention_mask"},
            "Model: found no argument 'attention_mask' in a call, expected one of tok",
        ),
        (CORE, {"tokens": 1}, "Model: found no argument 1 in a call, expected one of tokens, 0"),
        (
            {"core": Output("cells.0", "state")},
            {},
            "cells.0: found no 'state' in the Tensor that the module returns",
        ),
    ],
)
def test_an_argument_or_entry_that_a_call_lacks_is_one_sentence(loops, options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        record(tmp_path, model(), loops, **options)


class Changing(Model):
    """With `change` more loop steps in each pass than in the one before."""

    def __init__(self, change):
        super().__init__(Cell(), loops=5)
        self.change = change

    def forward(self, tokens):
        self.loops += self.change
        return super().forward(tokens)


@pytest.mark.parametrize(("change", "found"), [(1, "7"), (-1, "3")])
def test_a_number_of_loop_steps_that_changes_is_refused_with_what_is_possible(
    change, found, tmp_path
):
    module, calls = Changing(change), []
    module.cells[0].register_forward_hook(lambda *_: calls.append(1))
    expected = (
        f"found {found} loop steps in a forward pass, expected {5 + change} as in the first one;"
        f" record each loop"
    )
    with pytest.raises(InputError, match=f"group core: {expected} count into a folder of its own"):
        record(tmp_path, module, texts=[tokens()] * 3)
    assert len(calls) == 2 * 5 + 3 * change  # the third pass does not run


def test_decode_may_call_the_looped_module(tmp_path):
    module = model()
    record(
        tmp_path, module, texts=[tokens()] * 2, decode=lambda x: module.head(module.cells[0](x, x))
    )
    quality = tables.read("scaling_quality", table_path(tmp_path, "scaling_quality", 3))
    assert quality["loops"].max() == LOOPS


class Failing(Cell):
    """A state that is not finite at one loop step, sequence and token."""

    def __init__(self, place, value):
        super().__init__()
        self.place, self.value, self.calls = place, value, 0

    def forward(self, target, state, mask=None):
        self.calls += 1
        state = super().forward(target, state, mask)
        if self.calls == self.place[0]:
            state[self.place[1:]] = self.value
        return state


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])  # the last one is infinite in the tables
def test_the_first_state_that_is_not_finite_is_named(value, tmp_path):
    """The first text has two sequences and LOOPS loop steps."""
    place = LOOPS + 2, 1, 2, 0
    module = model(Failing(place, value))
    where = (
        f"^group core, loop step 2, sequence 3, position 2: found a state of norm"
        f" {min(value, np.inf):g}, expected"
    )
    with pytest.raises(InputError, match=where.replace("1e+200", "inf")):
        record(tmp_path, module, texts=[tokens()] * 2, decode=module.head)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_token_that_is_not_measured_may_have_any_state(tmp_path):
    module = model(Failing((2, 1, 2, 0), np.nan))
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    with Recorder(module, CORE, tmp_path, iteration=3, mask="attention_mask"):
        module(tokens(), attention_mask=mask)
    assert len(read(tmp_path)["token_paths"]) == 5


def test_the_first_loss_that_is_not_finite_is_named(tmp_path):
    module = model()

    def decode(states):
        logits = module.head(states)
        logits[1, 0, 3] = np.inf
        return logits

    with pytest.raises(
        InputError,
        match=r"^decode, loop step 1, sequence 1, position 0: found a loss of nan, expected",
    ):
        record(tmp_path, module, decode=decode)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("measure", [draw_run, write_card])
def test_a_recording_of_an_older_version_with_such_states_is_refused_before_anything_is_drawn(
    measure, tmp_path
):
    module = model()
    record(tmp_path, module, decode=module.head)
    path = table_path(tmp_path, "trajectories", 3)
    table = pq.read_table(path)
    norms = table["state_norm"].to_pylist()
    norms[7] = None
    place = table.schema.get_field_index("state_norm")
    pq.write_table(
        table.set_column(place, table.schema.field(place), [pa.array(norms, pa.float32())]), path
    )
    with pytest.raises(
        InputError, match=r"group core, k 1, .*measure state_norm, .*expected finite numbers"
    ):
        measure(tmp_path)
    assert not [*tmp_path.glob("*.svg"), *tmp_path.glob("*.pdf"), *tmp_path.glob("*.md")]


def test_states_from_elsewhere_are_appended_with_their_documents_and_drift(tmp_path):
    states = torch.randn(3, 5, CHANNELS, generator=torch.Generator().manual_seed(0))
    b, a = (
        [start * rate**k for k in range(LOOPS + 1)]
        for start, rate in ((states, 0.5), (states * 0.5**LOOPS, 0.8))
    )
    mask = torch.ones(3, 5).tril().bool()
    with StateTables(tmp_path, iteration=3) as recorded:
        recorded.append(
            RecordedBatch({"b": b, "a": a}, frozenset({"a"}), mask=mask, documents=[7, 7, 9])
        )
    found = read(tmp_path)
    rates = found["token_paths"].groupby("group")["contraction_rate"].median().to_dict()
    assert rates == pytest.approx({"a": 0.8, "b": 0.5}, rel=1e-5)
    assert found["token_drift"]["boundary"].unique().tolist() == ["b->a"]
    rows = found["token_paths"].query("group == 'a'")
    assert rows["document"].tolist() == [7] * 3 + [9] * 3
    assert rows["position"].tolist() == [0, 0, 1, 0, 1, 2]


def drawn(*names):
    """The files of these figures, as far as their studies are here, and of the claims."""
    return [f"{name}.pdf" for name in CATALOGUE if name in names] + ["claims.md"]


def test_a_recorded_run_has_the_figures_that_its_tables_allow(tmp_path):
    module = model(Cell(0.9), Cell(0.5))
    record(tmp_path / "two", module, TWO, decode=module.head)
    record(tmp_path / "one", module, CORE)
    assert [path.name for path in draw_run(tmp_path / "two")] == drawn(
        "fig1", "fig2", "fig3", "fig5", "path_types", "scaling"
    )
    assert [path.name for path in draw_run(tmp_path / "one")] == drawn(
        "fig1", "fig3", "fig5", "path_types"
    )
    assert all(path.stat().st_size > 1000 for path in tmp_path.glob("*/*.pdf"))


def test_the_claims_about_geometry_are_judged_on_a_recorded_run(tmp_path):
    module = model(loops=30)
    record(tmp_path, module, texts=[tokens(32, 6)])
    draw_run(tmp_path, text="random ids")
    judged = tables.read("claims", tmp_path / "tables" / "claims.parquet")
    verdicts = judged[judged["scope"] == "all"].set_index("claim")["verdict"].to_dict()
    assert sorted(verdicts) == [1, 2, 3, 4, 5, 6, 12, 13]
    assert verdicts[1] == "holds"  # a contraction by 0.5 reaches a tenth within ten steps
    assert verdicts[4] == "does not hold"  # its cosine is 1
    page = (tmp_path / "claims.md").read_text()
    assert "on random ids" in page
    assert "exit criteria from" not in page


class Drift(nn.Module):
    """One loop step x <- x + target: the state grows, and its direction has a limit."""

    def forward(self, target, state, mask=None):
        return state + target


def test_a_drifting_module_is_recorded_with_its_regime_and_figures_of_directions(tmp_path):
    record(tmp_path, model(Drift(), loops=12), texts=[tokens(4, 6)])
    draw_run(tmp_path)
    of_states = (tmp_path / "fig5.pdf").read_bytes()
    draw_run(tmp_path, reading="direction")
    assert (tmp_path / "fig5.pdf").read_bytes() != of_states
    page = (tmp_path / "claims.md").read_text()
    assert "the state norm goes as k^1.00" in page
    assert "; the direction freezes" in page
    assert "- core: drifting: over loop steps 6 to 11" in page
    assert "The state drifts, with a norm that grows, in:\ncore." in page


def test_figure_1_has_a_hand_off_only_between_groups_that_follow_one_another(tmp_path):
    for in_turns in (False, True):
        folder = tmp_path / str(in_turns)
        record(
            folder,
            model(Cell(0.9), Cell(0.5), in_turns=in_turns),
            TWO,
            word=lambda token: f"w{token}",
        )
        states = read_states(folder / "states.safetensors")
        paths = fig1.paths_of(state_paths(states, "mine"))
        assert len(paths.hand_offs) == (not in_turns)
        assert states.tokens == [f"w{token}" for token in tokens()[0].tolist()]
        assert states.values.shape == (2 * (LOOPS + 1), 3, CHANNELS)


def run_examples(folder, *names):
    """Run code blocks of the page one after another, as one script in a folder."""
    page = (ROOT / "docs" / "recorder.md").read_text()
    code = {
        block.partition("\n")[0]: block
        for block in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    }
    script = folder / "example.py"
    script.write_text("".join(code[f"# {name}.py"] for name in names))
    subprocess.run([sys.executable, script.name], cwd=folder, check=True)


@pytest.mark.runs
def test_the_examples_of_the_page_run_as_printed(tmp_path):
    run_examples(tmp_path, "record", "save", "beyond")
    for run in ("mine", "saved"):
        names = [path.name for path in draw_run(tmp_path / "results" / run)]
        assert names == drawn("fig1", "fig3", "fig5", "path_types")
    assert (write_card(tmp_path / "results" / "beyond")[0]).read_text().count("## ") == 5


@pytest.mark.runs
def test_states_of_a_trace_of_nnsight_give_the_tables_of_the_recorder(tmp_path):
    pytest.importorskip("nnsight", reason="needs nnsight: pip install nnsight")
    run_examples(tmp_path, "record", "save", "traced")
    assert [path.name for path in draw_run(tmp_path / "results/traced")] == drawn(
        "fig1", "fig3", "fig5", "path_types"
    )

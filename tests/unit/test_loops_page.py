"""The page loops.html: its tables against the model, and what a browser shows against the tables."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

from tests.small import ROOT, held_out, perturbed
from tests.unit.test_recorder import CORE, model, record
from twoscale import tables
from twoscale.config import PathTypesConfig, TrajectoriesConfig
from twoscale.dynamics import trajectories
from twoscale.dynamics.run_tables import read_table
from twoscale.dynamics.state_paths import read_states, state_paths
from twoscale.dynamics.states import save_states
from twoscale.exits.contract import frozen_exits
from twoscale.exits.criteria import make_criterion
from twoscale.exits.loop_tokens import TABLES, make_criteria, measure_sequence
from twoscale.recorder.run import draw_run
from twoscale.report.loops import LoopTables, loops_page

LOOPS, LENGTH = 5, 7
TOKENS = torch.randint(37, (1, LENGTH + 1), generator=torch.Generator().manual_seed(0))
TEXT = held_out(TOKENS[:, :-1], TOKENS[:, 1:], sequences=[3])
ENTRIES = {
    "fixed": {"thresholds": [2]},
    "step_norm": {"thresholds": [0.5, 2.0]},
    "kl": {"thresholds": [1e-3, 0.1]},
}
WORDS = ("</script>", "a b", "\n", "&", *map(str, range(4, 37)))  # of the token ids


def measured(readout: str = "head", max_loops: int = LOOPS) -> dict[str, pd.DataFrame]:
    criteria = make_criteria(ENTRIES)
    found = measure_sequence(
        perturbed(1), TEXT, LOOPS, criteria, (readout, max_loops), WORDS.__getitem__
    )
    return {table: pd.DataFrame(found[table]) for table in TABLES}


def states(group: int, k: int) -> tuple[list[Tensor], Tensor]:
    """x^0 … of a group with k loop steps, others with all, and the logits at the end (T, V)."""
    checkpoint = perturbed(1)
    loops = [k if number == group else LOOPS for number in range(2)]
    found = list(checkpoint.model.trace(TEXT.inputs, loops, checkpoint.noise(TEXT.sequences)))
    (of_group,) = (each for each in found if each.stage and each.stage.group == group)
    return of_group.states, checkpoint.model.readout(found[-1].output)[0]


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("k", [1, LOOPS])
def test_a_token_predicts_what_the_model_does_if_the_group_has_only_k_loop_steps(group, k):
    rows = measured()["loop_tokens"].query(f"group == '{group + 2}' and k == {k}")
    _, logits = states(group, k)
    log_p = logits.log_softmax(-1)
    assert rows["predicted"].tolist() == [WORDS[token] for token in logits.argmax(-1).tolist()]
    assert rows["is_right"].tolist() == (logits.argmax(-1) == TEXT.targets[0]).tolist()
    losses = -log_p.gather(-1, TEXT.targets[0][:, None])[:, 0]
    assert rows["ce"].to_numpy() == pytest.approx(losses.numpy())
    assert rows["entropy"].to_numpy() == pytest.approx(-(log_p.exp() * log_p).sum(-1).numpy())


def test_tokens_leave_where_the_criterion_says_on_the_states_of_the_run():
    rows = measured(max_loops=3)["loop_exits"]
    assert set(rows["criterion"]) == {"step_norm", "kl"}
    for group in (0, 1):
        of_group, _ = states(group, LOOPS)
        frozen = [state[0] for state in of_group[:4]]
        for name, threshold in make_criteria(ENTRIES):
            criterion = make_criterion(name, threshold)
            expected = frozen_exits(frozen, criterion, perturbed(1).model.readout)
            point = f"group == '{group + 2}' and criterion == '{name}' and threshold == {threshold}"
            assert rows.query(point)["loops"].tolist() == expected.evaluations.tolist()
            assert rows.query(point)["left"].tolist() == expected.left.tolist()


def test_a_criterion_with_the_remaining_layers_reads_the_prediction_of_the_page():
    both = measured("remaining_layers")
    entries = {"argmax_stability": {"thresholds": [1]}}
    found = measure_sequence(
        perturbed(1),
        TEXT,
        LOOPS,
        make_criteria(entries),
        ("remaining_layers", LOOPS),
        WORDS.__getitem__,
    )
    predicted = both["loop_tokens"].query("group == '3'").pivot(index="k", columns="position")
    predicted = predicted["predicted"]
    for row in found["loop_exits"]:
        if row["group"] == "3":
            said = predicted[row["position"]].tolist()
            repeats = [k for k in range(2, LOOPS + 1) if said[k] == said[k - 1]]
            assert row["loops"] == (repeats or [LOOPS])[0]


# --- the page -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> LoopTables:
    folder = tmp_path_factory.mktemp("tables")
    outputs = {table: folder / f"{table}.parquet" for table in trajectories.TABLES}
    config = TrajectoriesConfig(loops=LOOPS, tokens=LENGTH, batch_size=1, dtype="float64")
    criteria = PathTypesConfig(window=4, max_period=2)
    trajectories.extract(perturbed(1), TEXT, config, criteria, outputs)
    words = [WORDS[token] for token in TEXT.inputs[0].tolist()]
    save_states(perturbed(1), TEXT, words, LOOPS, folder / "states.safetensors")
    rows = tables.read("trajectories", outputs["trajectories"], sequence=3)
    paths = state_paths(read_states(folder / "states.safetensors"), "small")
    return LoopTables(rows, paths, **measured())


def test_the_page_has_the_cells_of_its_tables_and_loads_nothing(found):
    page = loops_page(found, "<small>", "a text", tokens=5)
    assert "<h1>Loops of &lt;small&gt;, step by step</h1>" in page
    assert not re.search(
        r"(?:src|href)=\"(?!data:,)|https?://(?!www\.w3\.org)|@import|fetch\(", page
    )
    (text,) = re.findall(r'<script id="data" type="application/json">(.*)</script>', page)
    data = json.loads(text)
    assert data["tokens"] == [WORDS[token] for token in TEXT.inputs[0, :5].tolist()]
    rows = found.trajectories.set_index(["group", "k", "position"])
    for group in data["groups"]:
        for k, values in enumerate(group["values"]["step_norm"]):
            wanted = rows.loc[(group["label"], k)]["step_norm"].to_numpy()[:5]
            if k < LOOPS:
                assert values == pytest.approx(wanted, rel=1e-4)
            else:
                assert values == [None] * 5


def test_a_page_of_long_loops_has_fewer_tokens(found, monkeypatch):
    monkeypatch.setattr("twoscale.report.loops.MOST_STATES", 2 * (LOOPS + 1) * 3)
    assert "\n<p>3 tokens of a text." in loops_page(found, "small", "a text", tokens=5)


# Presses keys, and writes what the page then shows into its body.
PROBE = """
<script>
const problems = [], said = [];
addEventListener("error", (event) => problems.push(event.message));
console.error = console.warn = (...words) => problems.push(words.join(" "));
</script>
"""
SCRIPT = """
<script>
const press = (key, times = 1) => {
  for (let i = 0; i < times; i++)
    document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
};
const channel = (text) => text.match(/[\\d.]+/g).map(Number);
const probe = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
function luminance(colour) {  // of WCAG 2.2
  probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1);
  const [r, g, b] = [...probe.getImageData(0, 0, 1, 1).data].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function contrast(node) {  // of its text and the first background below
  let below = node;
  while (below.parentElement && /, 0\\)$|transparent/.test(getComputedStyle(below).backgroundColor)) below = below.parentElement;
  const [a, b] = [getComputedStyle(node).color, getComputedStyle(below).backgroundColor].map(luminance);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}
function look() {
  const text = [...document.querySelectorAll("main *, header *, footer *")].filter((node) =>
    !node.closest("svg") && [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()));
  const shown = Object.fromEntries([...document.querySelectorAll("dd")].map((node) => [node.id, node.textContent]));
  return {where: $("where").textContent, name: $("name").textContent, shown,
    predicted: document.querySelector("[aria-current] .next").textContent,
    left: [...document.querySelectorAll("#options label span:last-child")].map((node) => node.textContent),
    exits: {...S.exits}, all: document.querySelector("main").textContent, spoken: document.querySelector("[aria-current]").getAttribute("aria-label"),
    contrast: Math.min(...text.map(contrast)), overflow: document.documentElement.scrollWidth - innerWidth,
    unnamed: document.querySelectorAll("button:not([aria-label]):not(:has(*)), svg:not([aria-label])").length,
    playing: $("play").getAttribute("aria-label") === "Pause"};
}
const tell = (name) => said.push({when: name, ...look()});
press("Home"); press("ArrowUp", 99); tell("start");
press("ArrowRight", 2); press("ArrowDown", 4); tell("second");
press("End"); press("ArrowLeft", 3); press("ArrowUp"); tell("third");
for (const colour of measures) { $("colour").value = colour; $("colour").onchange(); press("Home"); tell(colour) }
if (groups.length > 1) { $("loop").value = "1"; $("loop").onchange() }
tell("one loop");
for (const view of ["rest", "all"]) { $("view").value = view; $("view").onchange(); press("End"); tell(view) }
press(" "); tell("playing");
press(" "); tell("paused");
const result = document.createElement("pre");
result.id = "result";
result.textContent = JSON.stringify({said, problems});
document.body.replaceChildren(result);
</script>
"""


def in_browser(page: str, folder: Path, width: int, *options: str) -> dict:
    """What `SCRIPT` writes in a window of this width, of which the height is 844."""
    if (browser := shutil.which("chromium")) is None:
        pytest.skip("no chromium on this machine")
    file = folder / "page.html"
    file.write_text(
        page.replace("<style>", PROBE + "<style>").replace("</body>", SCRIPT + "</body>")
    )
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--window-size={width},844", f"--user-data-dir={folder / 'profile'}", *options]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=120)
    (text,) = re.findall(r'<pre id="result">(.*)</pre>', done.stdout) or [done.stderr]
    return json.loads(text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@pytest.mark.parametrize(
    ("width", "options"), [(1400, ()), (390, ("--blink-settings=preferredColorScheme=0",))]
)
def test_a_browser_shows_the_numbers_of_the_tables_and_its_keys_work(
    found, tmp_path, width, options
):
    result = in_browser(loops_page(found, "small", "a text", LENGTH), tmp_path, width, *options)
    assert result["problems"] == []
    said = {each["when"]: each for each in result["said"]}
    # group, loop step, position
    expected = {"start": ("2", 0, 0), "second": ("2", 2, 4), "third": ("3", LOOPS - 3, 3)}
    measures = found.trajectories.set_index(["group", "k", "position"])
    predictions = found.loop_tokens.set_index(["group", "k", "position"])
    for name, (group, k, position) in expected.items():
        shown = said[name]
        assert shown["where"] == f"group {group}, loop step {k} of {LOOPS}"
        assert shown["name"].startswith(f"token {position + 1} of {LENGTH} ")
        row = predictions.loc[(group, k, position)]
        values = measures.loc[(group, k, position)][["step_norm", "cosine"]].to_dict()
        for measure, value in (values | row[["entropy", "ce"]].to_dict()).items():
            text = shown["shown"][measure]
            assert (text == "–") == pd.isna(value)
            assert pd.isna(value) or float(text) == pytest.approx(value, rel=1e-3)
        word = row["predicted"].replace(" ", "·").replace("\n", "↵")
        assert shown["predicted"] == f"→{word}" + " ✓" * int(row["is_right"])
        assert row["predicted"] in shown["spoken"]
    left = found.loop_exits.query("left and group == '3' and loops <= 2")
    points = left[["criterion", "threshold"]].value_counts()
    assert said["third"]["left"] == [
        f"{points.get(point, 0)} of {LENGTH} left" for point in said["third"]["exits"].items()
    ]
    assert said["one loop"]["where"] == f"group 3, loop step 0 of {LOOPS}"
    assert (said["playing"]["playing"], said["paused"]["playing"]) == (True, False)
    legends = {name: said[name]["all"] for name in ("step_norm", "cosine", "entropy", "ce")}
    assert "-11" in legends["cosine"]  # from -1 to 1
    assert re.search(r"\d, logarithmic", legends["step_norm"])
    assert re.search(r"\d nats", legends["entropy"])
    for shown in said.values():
        assert not re.search("undefined|NaN|null|Infinity", shown["all"])
        assert shown["contrast"] >= 4.5
        assert shown["overflow"] <= 0
        assert shown["unnamed"] == 0


def test_the_page_of_a_recording_has_its_predictions_and_exits(tmp_path):
    two = model(loops=4)
    exits = {"step_norm": [0.1, 0.5], "entropy": [2.0]}
    record(tmp_path / "mine", two, CORE, decode=two.head, exits=exits)
    page, *_ = draw_run(tmp_path / "mine", html=True)
    assert page == tmp_path / "mine" / "loops.html"
    result = in_browser(page.read_text(), tmp_path, 1400)
    assert result["problems"] == []
    said = {each["when"]: each for each in result["said"]}
    rows = read_table(tmp_path / "mine", "loop_tokens").set_index(["k", "position"])
    assert said["start"]["predicted"] == "→–"  # x^0 was not decoded
    # the last token of three has no target
    row = rows.loc[(1, 1)]
    assert float(said["third"]["shown"]["ce"]) == pytest.approx(row["ce"], rel=1e-3)
    assert said["third"]["predicted"].startswith(f"→{row['predicted']}")
    exits = read_table(tmp_path / "mine", "loop_exits").query("left and loops <= 1")
    points = exits[["criterion", "threshold"]].value_counts()
    assert said["third"]["left"] == [
        f"{points.get(point, 0)} of 2 left" for point in said["third"]["exits"].items()
    ]


def test_a_recording_without_decode_has_a_page_of_its_states(tmp_path):
    record(tmp_path / "mine", model(), CORE)
    page, *_ = draw_run(tmp_path / "mine", html=True)
    (text,) = re.findall(r'"application/json">(.*)</script>', page.read_text())
    (group,) = json.loads(text)["groups"]
    assert group["values"]["entropy"][1] == [None] * 3
    assert group["exits"] == []


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "loops").glob("*.html")), ids=lambda page: page.name
)
def test_the_shipped_pages_have_the_style_and_the_script_of_the_template(page):
    template = (ROOT / "src" / "twoscale" / "report" / "templates" / "loops.html.j2").read_text()
    shipped = page.read_text()
    for start, end in (("<style>", "</style>"), ("<script>", "</script>")):
        part = template[template.index(start) : template.index(end, template.index(start))]
        assert part in shipped

"""Tables of known content for figures, all figures drawn of them, and captions: what the tests of
figures share.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import jinja2
import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from safetensors.numpy import save_file

from twoscale import tables
from twoscale.config import PROJECT, checked, merge, preset
from twoscale.dynamics.state_paths import read_states, state_paths
from twoscale.figures import fig1, fig2, fig3, fig4, fig5, style
from twoscale.figures.catalogue import caption_values, figures, report_values

LOOPS = 6
RUN = {"context": style.FigureContext("demo", "python_docs", LOOPS)}
ITERATIONS = (0, 50, 600)
DRIFT_MEASURES = ("dlr", "jump")
CATALOGUE = {figure.name: figure for figure in figures()}


def statistics(mean, std=0.1, count=10, nulls=0):
    return {"mean": mean, "std": std, "count": count, "nulls": nulls}


def loop_metrics(groups=("4", "5-6"), iterations=ITERATIONS):
    rows = [
        {"run": "demo", "iteration": iteration, "group": group, "k": k, "measure": measure}
        | statistics(mean)
        for iteration in iterations
        for group in groups
        for k in range(LOOPS)
        for measure, mean in (("state_norm", 8.0), ("step_norm", 2.0 ** (3 - k)), ("cosine", 0.6))
        if not (measure == "cosine" and k == 0)
    ]
    return pd.DataFrame(
        rows, columns=["run", "iteration", "group", "k", "measure", "mean", "std", "count", "nulls"]
    )


def drift_table(boundaries=("4->5-6", "5-6->7")):
    keys = ["run", "iteration", "boundary", "reference_state", "measure"]
    rows = [
        dict(zip(keys, ("demo", iteration, boundary, state, measure), strict=True))
        | statistics(mean)
        for iteration in ITERATIONS
        for boundary in boundaries
        for state, mean in (("first_state", 3.0), ("initial", 9.0))
        for measure in DRIFT_MEASURES
    ]
    return pd.DataFrame(rows, columns=[*keys, *statistics(0)])


def exit_tables(criteria=("fixed", "step_norm", "kl", "acceleration")):
    """The tables exit_latency, exit_quality, exit_loops, exit_cost_matched and exit_costs: 3.5 and 4
    loops in two sequences.
    """
    cases = [
        (criterion, float(threshold))
        for criterion in criteria
        for threshold in ([3, LOOPS] if criterion == "fixed" else [1e-5, 1e-3, 1e-2])
    ]
    latency = [(*case, ms, ms - 1) for case in cases for ms in (10.0, 20.0, 30.0, 40.0, 100.0)]
    sequences = list(enumerate(((100, 3.0), (300, 4.0))))
    quality = [
        (*case, sequence, sequence, tokens, ce)
        for case in cases
        for sequence, (tokens, ce) in sequences
    ]
    loops = [
        (*case, sequence, group, evaluations, evaluations)
        for case in cases
        for sequence, _ in sequences
        for group, evaluations in (("4", 3.0), ("5-6", sequence + 4.0))
    ]
    cost_matched = [
        (*case, reference, draw, sequence, sequence, tokens, 3.5, ce + 0.1 * draw)
        for case in cases
        if case[0] != "fixed"
        for reference, draw in (("random", 1), ("random", 3), ("fixed", 0))
        for sequence, (tokens, ce) in sequences
    ]
    costs = [
        (criterion, group, repeat, step, 1.0 + number, 5.0, 0.5)
        for number, criterion in enumerate(criteria)
        if criterion != "fixed"
        for repeat in range(3)
        for group, step in (("4", 1.0), ("5-6", 2.0))
    ]
    point = ["criterion", "threshold"]
    return (
        pd.DataFrame(latency, columns=[*point, "latency_ms", "baseline_ms"]),
        pd.DataFrame(quality, columns=[*point, "sequence", "document", "tokens", "ce"]),
        pd.DataFrame(loops, columns=[*point, "sequence", "group", "evaluations", "loop_steps"]),
        pd.DataFrame(cost_matched, columns=list(tables.columns("exit_cost_matched"))[1:]),
        pd.DataFrame(costs, columns=list(tables.columns("exit_costs"))[1:]),
    )


def sites(groups=("4", "5-6")):
    loops = [
        {"stage": "loop", "layer": None, "group": g, "k": k}
        for g in groups
        for k in range(LOOPS + 1)
    ]
    first, last = ({"stage": "layer", "layer": n, "group": None, "k": None} for n in (1, 7))
    return [{"stage": "embedding", "layer": None, "group": None, "k": None}, first, *loops, last]


def saved_states(path, groups=("4", "5-6"), jump=1.0, **changed):
    """Random states (P, T, 5), the start x^0 of every loop `jump` times as far out."""
    way = sites(groups)
    values = np.random.default_rng(0).normal(size=(len(way), 4, 5)).astype(np.float32)
    values[[i for i, site in enumerate(way) if site["k"] == 0]] *= jump
    described = {
        "sites": way,
        "tokens": ["a", " b", "\n", "$x"],
        "iteration": 600,
        "sequence": 0,
    } | changed
    save_file({"states": values}, path, metadata={"twoscale": json.dumps(described)})
    return path


def paths_of(path):
    return state_paths(read_states(path), "demo")


QUANTILES = {"q05": 1.0, "q25": 2.0, "q50": 3.0, "q75": 4.0, "q95": 5.0, "mean": 0.75, "count": 10}


def quantile_table(measures, groups=("4", "5-6")):
    """Quantiles of measures in "loop_metrics" and tables alike, the same at every checkpoint."""
    return pd.DataFrame(
        [
            {"iteration": iteration, "group": group, "measure": measure} | QUANTILES
            for iteration in ITERATIONS
            for group in groups
            for measure in measures
        ],
        columns=["iteration", "group", "measure", *QUANTILES],
    )


def under_seeds(table, *factors):
    """The table of the run demo, and of it under further seeds with means so many times as
    large.
    """
    further = [
        table.assign(run=f"demo-seed{n}", mean=table["mean"] * factor)
        for n, factor in enumerate(factors)
    ]
    return pd.concat([table, *further], ignore_index=True)


def draw(name, folder) -> Figure:
    """A figure by its name. Those of a study are drawn by the functions of their names in its
    module `samples`.
    """
    match name:
        case "fig1":
            return fig1.draw(paths_of(saved_states(folder / "states.safetensors")), tokens=3, **RUN)
        case "fig2":
            return fig2.draw(drift_table(), reference_state="first_state", **RUN)
        case "fig3":
            return fig3.draw(loop_metrics(), **RUN)
        case "fig4":
            return fig4.draw(*exit_tables(), **RUN)
        case "fig5":
            return fig5.draw(loop_metrics(), **RUN)
        case _:
            return getattr(
                import_module(f"tests.studies.{CATALOGUE[name].study_folder}.samples"), name
            )()


def legend_texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def one_sentence(error):
    message = str(error.value)
    return "\n" not in message and message.endswith(".")


DRAW = """
import pathlib, sys
sys.path[:0] = sys.argv[1:3]
from tests import figures
from twoscale.figures import style
folder = pathlib.Path(sys.argv[3])
for name in sys.argv[4:]:
    figure = figures.draw(name, folder)
    for suffix in ("pdf", "svg"):  # as scripts/draw.py
        style.save(figure, folder / f"{name}.{suffix}")
print("torch" in sys.modules)  # the modules of these figures are imported by now
"""


def draw_elsewhere(folder, *names) -> bool:
    """Draw figures in another process with another hash seed. Returns whether that loaded torch."""
    command = [sys.executable, "-c", DRAW, PROJECT / "src", PROJECT, folder, *names]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    return json.loads(
        subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.lower()
    )


def assert_the_same_bytes(name, here, elsewhere):
    """A figure drawn in the folder `here` has the bytes of the files in `elsewhere`, with its fonts
    and no date.
    """
    figure = draw(name, here)
    for suffix in ("pdf", "svg"):
        style.save(figure, here / f"again.{suffix}")
        assert (here / f"again.{suffix}").read_bytes() == (
            elsewhere / f"{name}.{suffix}"
        ).read_bytes()
    assert b"<dc:date>" not in (here / "again.svg").read_bytes()
    written = (here / "again.pdf").read_bytes()
    assert b"/FontFile2" in written
    assert b"/Subtype /Type3" not in written
    assert b"CreationDate" not in written


HELD_OUT = ("documents", "tokens", "dropped_documents", "dropped_tokens", "ngram_tokens")


def render_caption(name, values=MappingProxyType({}), **further):
    """The caption of `caption_source` as one line."""
    return " ".join(caption_source(name, values, **further).split())


def caption_source(name, values=MappingProxyType({}), **further):
    """The caption of a figure of the run "mine" with these keys over the preset demo. A value that
    is missing raises.

    `further` values take precedence over those of the workflow.
    """
    config = checked(
        merge(
            preset(values.get("preset", "demo")), {k: v for k, v in values.items() if k != "preset"}
        )
    )
    figure = CATALOGUE[name]
    known = (
        report_values("mine", config)
        | caption_values(figure, config)
        | {"results": "", "held_out": None}
    )
    template = jinja2.Template(
        (PROJECT / figure.caption_file).read_text(), undefined=jinja2.StrictUndefined
    )
    return template.render(snakemake={"params": {"caption": known | further}})


NUMBER = re.compile(r"(?<![\w#.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?!\w)")
NAME = re.compile(r'(?<=id=")[^"]+|(?<=url\(#)\w+|(?<=href="#)\w+')


class Drawings:
    """What identifies drawings that have been looked at, by name, in tests/golden; of one version
    of matplotlib.

    Last digits of coordinates depend on the processor. So a drawing is its elements without
    coordinates, and two weighted sums of these.
    """

    def __init__(self, file):
        self.file = PROJECT / "tests" / "golden" / file

    def check(self, name, figure, folder):
        golden = json.loads(self.file.read_text())
        if golden["matplotlib"] != matplotlib.__version__:
            pytest.skip(f"drawn with matplotlib {golden['matplotlib']}")
        elements, *sums = self.identity(figure, folder)
        assert elements == golden[name][0]
        assert sums == pytest.approx(golden[name][1:], abs=0.02)  # points

    def identity(self, figure, folder):
        style.save(figure, folder / "figure.svg")
        text = NAME.sub("", (folder / "figure.svg").read_text())  # names are made of coordinates
        numbers = np.array([float(number) for number in NUMBER.findall(text)])
        weights = np.random.default_rng(1).uniform(-1, 1, (2, len(numbers)))
        elements = hashlib.sha256(NUMBER.sub("#", text).encode()).hexdigest()[:16]
        return [elements, *(weights @ numbers).round(3).tolist()]

    def write(self, figures):
        with tempfile.TemporaryDirectory() as folder:
            found = {name: self.identity(figure, Path(folder)) for name, figure in figures.items()}
        lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()]
        version = f' "matplotlib": "{matplotlib.__version__}"'
        self.file.write_text("{\n" + ",\n".join([version, *lines]) + "\n}\n")

"""docs/zoo.md: depth cards of several models side by side, and what predicts overthinking at the trained loops.

    python -m twoscale.studies.depth_card.zoo keep NAME results/RUN/depth_card/iteration_000000 TRAINED_LOOPS
    python -m twoscale.studies.depth_card.zoo

The first command adds the measurements of a model to docs/zoo, the second writes the page and its figure. What is not
measured, such as where a model is from, is in docs/zoo/models.json.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from twoscale import tables
from twoscale.base import InputError, replacing
from twoscale.config import PROJECT
from twoscale.figures import style
from twoscale.jobs import command
from twoscale.report.render import blocks, table
from twoscale.studies.depth_card import compare

FOLDER = PROJECT / "docs" / "zoo"
PAGE, PICTURE, MODELS = "zoo.md", "zoo.svg", "models.json"
TABLES = ("depth_card", "depth_findings")
SEED, TOLERANCE = 0, 0.01  # of the bootstraps; nats of the plateau
FAR = 8.0  # times the trained loops
LEAST = 1e-3  # nats; less overthinking counts as this
BESIDE = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}  # a label
COLOURS = {"settling": style.BLUE, "marginal": style.GREY, "drifting": style.BROWN, "undetermined": "black"}


@dataclass(frozen=True)
class Model:
    """One model of the zoo.

    Attributes:
        name: In the column `run` of the tables.
        what: Layers, size and text, for the page.
        label: In the figure; empty for one that shares the line of another.
        role: "fit" or "test" of the prediction; "course" for an earlier checkpoint, "untrained" for fresh weights.
        of: The trained model that it is compared with; empty for a trained one.
        source: Where the weights are from, as Markdown.
        published: Published loss at the trained loops, nats per token.
        measured: The loss that was measured on `tokens` tokens of the same text.
        tokens: As said.
        card, findings: Its rows of these tables.
    """

    name: str
    card: pd.DataFrame
    findings: pd.DataFrame
    what: str = ""
    label: str = ""
    role: str = ""
    of: str = ""
    source: str = ""
    published: float | None = None
    measured: float | None = None
    tokens: int | None = None

    @cached_property
    def losses(self) -> pd.Series:
        """Multiple of the trained loops, 1 and more -> loss above that at the trained loops."""
        ce = self.card[self.card["quantity"] == "ce"].set_index("multiple")["value"].sort_index()
        return (ce - ce[1.0])[lambda values: values.index >= 1]

    @property
    def loss(self) -> float:
        """At the trained loops."""
        return self._at_trained("ce").iloc[0]

    @property
    def overthinking(self) -> float:
        """Nats per token that `FAR` times the trained loops lose."""
        return self.losses[FAR]

    @property
    def regimes(self) -> dict[str, str]:
        """Group -> its regime."""
        rows = self.findings[self.findings["quantity"] == "step_exponent"]
        return dict(zip(rows["group"], rows["statement"], strict=True))

    @property
    def regime(self) -> str:
        """The one that is last in settling, marginal, drifting of all groups."""
        return max(self.regimes.values(), key=list(COLOURS).index)

    def _at_trained(self, quantity: str) -> pd.Series:
        """One value per group."""
        rows = self.card[(self.card["quantity"] == quantity) & (self.card["multiple"] == 1)]
        return rows.set_index("group")["value"]

    @property
    def predictors(self) -> dict[str, float]:
        """Known at the trained loops, of the group that is farthest from a fixed point: long steps, a low cosine."""
        step = self._at_trained("step_norm") / self._at_trained("state_norm")
        return {
            "log of the step of the direction": np.log10(self._at_trained("direction_step_norm").max()),
            "log of the step over the state": np.log10(step.max()),
            "cosine of the last two updates": self._at_trained("cosine").min(),
            "entropy of the prediction": self._at_trained("entropy").iloc[0],
        }


# --- the kept tables ------------------------------------------------------------------------------------------------


def keep(folder: Path, name: str, source: Path, trained: int) -> None:
    """Add the depth card of the measurements `source`.quality.parquet and .states.parquet to the tables in `folder`.

    Raises InputError for a file that cannot be read or has other columns.
    """
    quality, states = (
        tables.read(f"depth_{kind}", source.with_name(f"{source.name}.{kind}.parquet"))
        for kind in ("quality", "states")
    )
    found = {
        "depth_card": compare.summarise(quality, states, trained, SEED),
        "depth_findings": compare.findings(quality, states, trained, TOLERANCE, None, SEED),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for kind, frame in found.items():
        path = folder / f"{kind}.parquet"
        known = tables.read(kind, path) if path.exists() else pd.DataFrame()
        others = known[known["run"] != name] if len(known) else known
        frame = frame.assign(run=name).reindex(columns=list(tables.columns(kind)))
        tables.write(kind, pd.concat([others, frame], ignore_index=True) if len(others) else frame, path)


def models(folder: Path) -> list[Model]:
    """The models in the order of models.json. Raises InputError for one without measurements."""
    card, findings = (tables.read(kind, folder / f"{kind}.parquet") for kind in TABLES)
    found = []
    for entry in json.loads((folder / MODELS).read_text(encoding="utf-8")):
        parts = [frame[frame["run"] == entry["name"]] for frame in (card, findings)]
        if parts[0].empty:
            raise InputError(f"{folder / MODELS}: found {entry['name']}, expected a model whose depth card was kept.")
        found.append(Model(card=parts[0], findings=parts[1], **entry))
    return found


# --- prediction -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """Overthinking of the tested models as a function of one predictor, fitted on others.

    Attributes:
        name: Of the predictor.
        predicted: Name of a tested model -> nats per token, at least `LEAST`.
        factor: Geometric mean over the tested models of max(predicted / measured, measured / predicted).
        worst: The largest of these.
        order: Spearman's rank correlation of predicted and measured over the tested models.
    """

    name: str
    predicted: Mapping[str, float]
    factor: float
    worst: float
    order: float


def predictions(found: Sequence[Model]) -> list[Prediction]:
    """One per predictor, the best one first, and the mean of the fitted models, which predicts the same for all."""
    fit, test = ([model for model in found if model.role == role] for role in ("fit", "test"))
    target, truth = (np.log10([max(model.overthinking, LEAST) for model in part]) for part in (fit, test))
    names = [model.name for model in test]
    made = [_prediction("the mean of the fitted models", np.full(len(test), target.mean()), truth, names)]
    for name in fit[0].predictors:
        known, asked = (np.array([model.predictors[name] for model in part]) for part in (fit, test))
        if np.isfinite([*known, *asked]).all() and np.ptp(known) > 0:
            slope, offset = np.polyfit(known, target, 1)
            made.append(_prediction(name, offset + slope * asked, truth, names))
    return sorted(made, key=lambda prediction: prediction.factor)


def _prediction(name: str, predicted: np.ndarray, truth: np.ndarray, names: Sequence[str]) -> Prediction:
    ranks = pd.DataFrame({"predicted": predicted, "truth": truth}).rank()
    order = np.nan if np.ptp(predicted) == 0 else float(ranks.corr().loc["predicted", "truth"])
    predicted = np.maximum(predicted, np.log10(LEAST))  # as the truth
    factors = 10 ** np.abs(predicted - truth)
    return Prediction(
        name,
        dict(zip(names, 10**predicted, strict=True)),
        float(10 ** np.abs(predicted - truth).mean()),
        float(factors.max()),
        order,
    )


# --- figure ---------------------------------------------------------------------------------------------------------


@style.look()
def draw(found: Sequence[Model]) -> Figure:
    """(i) Loss against multiples of the trained loops, coloured by regime; (ii) overthinking against a predictor.

    Trained models are solid and named; untrained ones are thin and dashed.
    """
    figure = Figure(figsize=(style.DOUBLE, 3.2), layout="constrained")
    lines, points = figure.subplots(1, 2)
    for model in found:
        if model.role == "course":
            continue
        is_trained = model.role != "untrained"
        look = {"color": COLOURS[model.regime], "linewidth": 1.4 if is_trained else 0.8}
        lines.plot(model.losses.index, model.losses, linestyle="-" if is_trained else (0, (3, 1.5)), **look)
        if is_trained:
            lines.annotate(
                model.label, (FAR, model.overthinking), xytext=(3, 0), textcoords="offset points", va="center"
            )
    lines.set_yscale("symlog", linthresh=0.1)
    lines.set_xlabel("loops over the trained loops")
    lines.set_ylabel("loss above that at the trained loops (nats/token)")
    lines.set_title(f"{style.panel_number(1)}  loss beyond the trained loops", loc="left")
    lines.set_xlim(1, 10.5)
    name = next(iter(found[0].predictors))
    for model in (model for model in found if model.role != "untrained"):
        filled = model.role == "fit"
        small = model.role == "course"
        place = 10 ** model.predictors[name], max(model.overthinking, LEAST)
        face = COLOURS[model.regime] if filled or small else "white"
        points.plot(*place, "o", color=COLOURS[model.regime], markerfacecolor=face, markersize=2.5 if small else 5)
        if not small:
            points.annotate(model.label, place, **BESIDE)
    points.set_xscale("log")
    points.set_yscale("log")
    points.margins(0.25, 0.1)
    points.set_xlabel("step of the direction at the trained loops")
    points.set_ylabel(f"loss at {FAR:g} times the trained loops\nabove that at the trained ones (nats/token)")
    points.set_title(f"{style.panel_number(2)}  prediction: fitted (filled), tested (open)", loc="left")
    handles = [lines.plot([], [], color=COLOURS[name])[0] for name in list(COLOURS)[:3]]
    handles.append(lines.plot([], [], color="black", linewidth=0.8, linestyle=(0, (3, 1.5)))[0])
    figure.legend(handles, [*list(COLOURS)[:3], "untrained"], loc="outside upper center", ncols=4)
    return figure


# --- page -----------------------------------------------------------------------------------------------------------

HEADER = """\
# A zoo of looped models

This page compares looped models trained by others and by this project at 1 to 8 times their trained loop count, and
also with fresh weights. The [regime](reproduction.md#the-regime-of-a-loop) is fitted over the second half of the loop
steps up to 8 times the trained loop count.

![Loss beyond the trained loops, and what predicts it](zoo.svg)

Small points are earlier checkpoints of the demo. The lines of its seeds and of FineWeb coincide.
[shortest_path](models.md#a-solver-of-shortest-paths) is not shown: it has no next-token loss.
"""
LOSSES = """\
## Published losses

The table shows the loss at the trained loop count in nats per token. The published loss is over a whole validation
set, ours over one file of that set ([losses.py](zoo/losses.py)); the standard error of ours over sequences is 0.011 to
0.013.
"""
PREDICTION = """\
## What predicts overthinking

Overthinking is the loss at 8 times the trained loop count minus the loss at that count. Each predictor is known at
the trained loop count. A line is fitted to log10 of the overthinking of {fit}; it is then
applied to the models below, which were not used for the fit. Less than {least:g} nats counts as {least:g}. *Factor* is
the geometric mean of the ratio of predicted and measured overthinking, inverted where it is below 1, and *worst* is the
largest such ratio; *order* is Spearman's rank correlation.
"""
BETTER = "The best is the {name}: it errs by a factor of {factor:.2g}, the mean of the fitted models by {mean:.2g}."
NOTHING = "Nothing predicts: the {name} errs by a factor of {factor:.2g}, the mean of the fitted models by {mean:.2g}."
FEW = """\
The {fits} fitted and {tests} tested models are few, and they differ in size and text. Of the tested models, {none} lose
at most {least:g} nats, so for them the prediction says only that they lose nothing."""
CLOSING = """\
## Tables

`python -m twoscale.studies.depth_card.zoo` writes this page from the tables in [zoo/](zoo/). The models were
measured by `snakemake results/depth-card.md` with the configs in [models](models.md#parcae); fresh weights of Parcae's
models come from [fresh_weights.py](zoo/fresh_weights.py)."""


def page(found: Sequence[Model]) -> str:
    """Markdown of the page."""
    shown = [model for model in found if model.role != "course"]
    header = ("model", "what", "regime", "loss", *(f"at {n} ×" for n in (2, 4, 8)), "fresh weights: regime", "at 8 ×")
    known = {model.of: model for model in found if model.role == "untrained"}
    rows = [_row(model, known.get(model.name)) for model in shown if model.role != "untrained"]
    published = [model for model in shown if model.published is not None]
    losses = [(m.name, m.source, f"{m.published:.4f}", f"{m.measured:.4f}", f"{m.tokens:,}") for m in published]
    return blocks(
        HEADER,
        "*Loss* is in nats per token at the trained loop count; the next three columns are differences from it.",
        table(header, rows),
        *([LOSSES, table(("model", "source", "published", "measured", "tokens"), losses)] if losses else []),
        *_predicted(found),
        CLOSING,
    )


def _row(model: Model, fresh: Model | None) -> tuple[str, ...]:
    differences = [f"{model.losses[float(multiple)]:+.3f}" for multiple in (2, 4, 8)]
    of_fresh = ("", "") if fresh is None else (_regimes(fresh), f"{fresh.overthinking:+.3f}")
    return (model.name, model.what, _regimes(model), f"{model.loss:.3f}", *differences, *of_fresh)


def _regimes(model: Model) -> str:
    """One word if all groups have the same regime, otherwise each with its group."""
    if len(set(model.regimes.values())) == 1:
        return model.regime
    return ", ".join(f"{group}: {regime}" for group, regime in model.regimes.items())


def _predicted(found: Sequence[Model]) -> Iterator[str]:
    test = [model for model in found if model.role == "test"]
    made = predictions(found)
    fit = ", ".join(model.name for model in found if model.role == "fit")
    yield PREDICTION.format(least=LEAST, fit=fit)
    rows = [
        (e.name, *(_least(e.predicted[m.name]) for m in test), _ratio(e.factor), _ratio(e.worst), _correlation(e.order))
        for e in made
    ]
    measured = ("**measured**", *(f"**{_least(model.overthinking)}**" for model in test), "", "", "")
    yield table(("predictor", *(model.name for model in test), "factor", "worst", "order"), [*rows, measured])
    mean = next(each for each in made if np.isnan(each.order))
    best = next(each for each in made if each is not mean)
    sentence = BETTER if best.factor < mean.factor else NOTHING
    yield sentence.format(name=best.name, factor=best.factor, mean=mean.factor)
    none = sum(model.overthinking <= LEAST for model in test)
    fits = sum(model.role == "fit" for model in found)
    yield FEW.format(fits=fits, tests=len(test), none=none, least=LEAST)


def _least(nats: float) -> str:
    """Overthinking in print."""
    return f"{nats:.2g}" if nats > LEAST else f"≤ {LEAST:g}"


def _ratio(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def _correlation(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.2f}"


def main(arguments: argparse.Namespace) -> None:
    if arguments.command == "keep":
        keep(FOLDER, arguments.name, arguments.source, arguments.trained)
        return
    found = models(FOLDER)
    style.save(draw(found), FOLDER.parent / PICTURE)
    with replacing(FOLDER.parent / PAGE) as temporary:
        temporary.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kept = options.add_subparsers(dest="command").add_parser("keep")
    kept.add_argument("name")
    kept.add_argument("source", type=Path)
    kept.add_argument("trained", type=int)
    command.run(main, options)

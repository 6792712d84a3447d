"""Rewrite the tables of docs/zoo.md and the figure docs/zoo.svg from the depth cards in this
folder.

python docs/zoo/zoo.py                              # what is not measured is in models.json
python docs/zoo/zoo.py NAME results/RUN/tables      # first adds the depth card of a run as NAME
"""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from twoscale.figures import style

FOLDER, FAR, LEAST = (
    Path(__file__).parent,
    8,
    1e-3,
)  # times the trained loops; less overthinking counts as these nats
COLOURS = {"settling": style.BLUE, "marginal": style.GREY, "drifting": style.BROWN}
UNTRAINED = {"linewidth": 0.8, "linestyle": (0, (3, 1.5))}
STEP = "log of the step of the direction"
PREDICTORS = {  # of the group that is farthest from a fixed point, at the trained loops
    STEP: lambda at: np.log10(at["direction_step_norm"].max()),
    "log of the step over the state": lambda at: np.log10(
        (at["step_norm"] / at["state_norm"]).max()
    ),
    "cosine of the last two updates": lambda at: at["cosine"].min(),
    "entropy of the prediction": lambda at: at.loc["", "entropy"],
}


def measured(entry: dict, card: pd.DataFrame, findings: pd.DataFrame) -> dict:
    """An entry of models.json with its losses above that at the trained loops, its regimes and its
    predictors.
    """
    card, found = (rows[rows["run"] == entry["name"]] for rows in (card, findings))
    ce = card[card["quantity"] == "ce"].set_index("multiple")["value"].sort_index()
    at = card[card["multiple"] == 1].pivot(index="group", columns="quantity", values="value")
    regimes = found[found["quantity"] == "step_exponent"].set_index("group")["statement"]
    worst = max(regimes, key=list(COLOURS).index)
    each = (
        worst
        if regimes.nunique() == 1
        else ", ".join(f"{group}: {regime}" for group, regime in regimes.items())
    )
    values = {
        "loss": ce[1],
        "above": (ce - ce[1])[ce.index >= 1],
        "over": ce[FAR] - ce[1],
        "worst": worst,
    }
    return (
        entry | values | {"regimes": each} | {name: rule(at) for name, rule in PREDICTORS.items()}
    )


def predictions(fit: list[dict], test: list[dict]) -> list[list]:
    """Rows of the table of predictors, the best first: a line fitted on some models, applied to the
    others.

    A prediction is between `LEAST` and the nats that are left to a uniform prediction of the
    vocabulary. The factor is over the models that lose more than `LEAST`.
    """
    target, truth = (
        np.log10([max(model["over"], LEAST) for model in part]) for part in (fit, test)
    )
    most, lose = (
        np.log10([np.log(model["vocab"]) - model["loss"] for model in test]),
        truth > np.log10(LEAST),
    )
    rows = [("the mean of the fitted models", np.full(len(test), target.mean()))]
    rows.append((f"nothing, {LEAST:g} nats for all", np.full(len(test), np.log10(LEAST))))
    for name in PREDICTORS:
        known, asked = (np.array([model[name] for model in part]) for part in (fit, test))
        slope, offset = np.polyfit(known, target, 1)
        rows.append((name, offset + slope * asked))
    cells = []
    for name, guess in rows:
        guess = np.clip(guess, np.log10(LEAST), most)
        order = (
            ""
            if np.ptp(guess) == 0
            else f"{pd.Series(guess).rank().corr(pd.Series(truth).rank()):.2f}"
        )
        distance = np.abs(guess - truth)
        factor, worst = 10 ** distance[lose].mean(), 10 ** distance.max()
        cells.append(
            (factor, [name, *map(nats, 10**guess), f"{factor:.2g}", f"{worst:,.0f}", order])
        )
    return [row for _, row in sorted(cells)]


def nats(value: float) -> str:
    return f"{value:.2g}" if value > LEAST else f"≤ {LEAST:g}"


@style.look()
def draw(models: list[dict]) -> None:
    """(i) Loss against multiples of the trained loops; (ii) overthinking against a predictor.
    Coloured by regime.
    """
    figure = Figure(figsize=(style.DOUBLE, 3.2), layout="constrained")
    lines, points = figure.subplots(1, 2)
    beside = {"textcoords": "offset points", "va": "center"}
    for model in models:
        role, colour, label = model["role"], COLOURS[model["worst"]], model.get("label", "")
        trained, place = role in ("fit", "test"), (10 ** model[STEP], max(model["over"], LEAST))
        if role != "course":
            look = {"linewidth": 1.4} if trained else UNTRAINED
            lines.plot(model["above"].index, model["above"], color=colour, **look)
        if role != "untrained":
            look = {
                "markerfacecolor": "white" if role == "test" else colour,
                "markersize": 5 if trained else 2.5,
            }
            points.plot(*place, "o", color=colour, **look)
        if trained:
            lines.annotate(label, (FAR, model["over"]), xytext=(3, 0), **beside)
            points.annotate(label, place, xytext=(5, 0), **beside)
    lines.set(
        xlabel="loops over the trained loops",
        ylabel="loss above that at the trained loops (nats/token)",
    )
    lines.set_yscale("symlog", linthresh=0.1)
    lines.set_xlim(1, 10.5)
    lines.set_title("(i)  loss beyond the trained loops", loc="left")
    points.set(xlabel="step of the direction at the trained loops", xscale="log", yscale="log")
    points.set_ylabel(
        f"loss at {FAR} times the trained loops\nabove that at the trained ones (nats/token)"
    )
    points.set_title("(ii)  prediction: fitted (filled), tested (open)", loc="left")
    points.margins(0.25, 0.1)
    handles = [lines.plot([], [], color=colour)[0] for colour in COLOURS.values()]
    handles += lines.plot([], [], color="black", **UNTRAINED)
    figure.legend(handles, [*COLOURS, "untrained"], loc="outside upper center", ncols=4)
    style.save(figure, FOLDER.parent / "zoo.svg")


def main() -> None:
    frames = {
        kind: pd.read_parquet(FOLDER / f"depth_{kind}.parquet") for kind in ("card", "findings")
    }
    models = [
        measured(entry, **frames)
        for entry in json.loads((FOLDER / "models.json").read_text(encoding="utf-8"))
    ]
    draw(models)
    roles = {
        role: [model for model in models if model["role"] == role]
        for role in ("fit", "test", "untrained")
    }
    fresh = {
        model["of"]: [model["regimes"], f"{model['over']:+.3f}"] for model in roles["untrained"]
    }
    each = [
        [model["name"], model["what"], model["regimes"], f"{model['loss']:.3f}"]
        + [f"{model['above'][times]:+.3f}" for times in (2, 4, 8)]
        + fresh.get(model["name"], ["", ""])
        for model in roles["fit"] + roles["test"]
    ]
    found = ["**measured**", *(f"**{nats(model['over'])}**" for model in roles["test"]), "", "", ""]
    page = (FOLDER.parent / "zoo.md").read_text(encoding="utf-8")
    for first, rows in {
        "model | what": each,
        "predictor": [*predictions(roles["fit"], roles["test"]), found],
    }.items():
        lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        page = re.sub(rf"(\| {re.escape(first)} .*\n\|[-| ]+\n)(?:\|.*\n)+", rf"\1{lines}", page)
    (FOLDER.parent / "zoo.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

"""The page results/explore.html: one figure of plotly with a slider over the tokens, in one file without network."""

import html
import unicodedata
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from twoscale.claims.exits import criterion_name
from twoscale.figures import style

if TYPE_CHECKING:
    from twoscale.jobs.rows import StudyJob

SIGNS = {"\n": "⏎", "\r": "␍", "\t": "→"}
# marks that reverse the direction of the text after them (Cf), ends of lines (Zl, Zp), and what has no shape
INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
PATH, ALL = "path in the plane of two principal components", "all states"
HOVER = ["k", "probability", "step_norm", "cosine", "next_token"]


def run(job: "StudyJob") -> None:
    states, exits = (job.read(f"explore_{name}", name) for name in ("states", "exits"))
    job.write_text("page", page(figure(states, exits, job.config.text)))


def page(drawn: go.Figure) -> str:
    """The figure with plotly.js in one page that needs no network; the same figure gives the same page."""
    return drawn.to_html(include_plotlyjs=True, div_id="explore", auto_play=False, config={"displaylogo": False})


def figure(states: pd.DataFrame, exits: pd.DataFrame, text: str) -> go.Figure:
    """One frame per token from the tables "explore_…"; `text` names the text that the tokens are from.

    All states of the token are a grey path, each group is a line in colour with its measures, and the exits of each
    criterion are stars, which a click on the legend shows.
    """
    states = states.sort_values(["position", "site"]).reset_index(drop=True)
    states = states.assign(**{name: states[name].map(shown, "ignore") for name in ("next_token", "prediction")})
    states["frame"] = states["position"].astype(str) + " " + states["token"].map(shown)
    loops = states.dropna(subset="group")
    loops = loops.assign(line="group " + loops["group"].map(style.group_name))
    exits = exits.drop(columns=["run", "iteration"], errors="ignore").rename(columns={"loop_steps": "k"})
    exits["line"] = [f"exit: {criterion_name(row.criterion)} {row.threshold:g}" for row in exits.itertuples()]
    paths = [states.assign(line=ALL), loops, exits.merge(states, on=["position", "group", "k"])]
    on_path = pd.concat(paths).assign(panel=PATH, x=lambda rows: rows["pc1"], y=lambda rows: rows["pc2"])
    measured = [loops.assign(panel=name.replace("_", " "), x=loops["k"], y=loops[name]) for name in HOVER[2:4]]
    rows = pd.concat([on_path[on_path["k"] != 0], *measured])  # x^0 is not on the path
    colours = {ALL: "#bbb"} | dict(zip(loops["line"].unique(), style.COLOURS * len(loops), strict=False))
    first = states.iloc[0]
    about = f"run {first['run']}, iteration {first['iteration']}, held-out sequence {first['sequence']} of {text}"
    shown_in = dict.fromkeys(("x", "y", "panel"), False) | dict.fromkeys(HOVER, True)
    found = px.line(
        *(rows, "x", "y"),
        **{"color": "line", "color_discrete_map": colours, "facet_col": "panel", "animation_frame": "frame"},
        **{
            "hover_name": "prediction",
            "hover_data": shown_in,
            "labels": {"frame": "token", "line": ""},
            "markers": True,
        },
        **{"title": html.escape(about), "height": 780, "template": "plotly_white"},
    )
    for trace in [trace for frame in (found, *found.frames) for trace in frame.data if trace.name.startswith("exit")]:
        trace.update(mode="markers", marker={"symbol": "star", "size": 12})
    found.for_each_annotation(lambda annotation: annotation.update(text=annotation.text.removeprefix("panel=")))
    found.update_traces(visible="legendonly", selector=lambda trace: trace.name.startswith("exit"))
    for axis, update in enumerate((found.update_xaxes, found.update_yaxes), start=1):
        update(matches=None, showticklabels=True)
        shares = f"PC {axis} ({100 * first[f'pc{axis}_share']:.2g} %)"
        update(title_text=shares, range=_range(on_path.loc[on_path["k"] != 0, f"pc{axis}"]), col=1)
    norms = _range(np.log10(states["step_norm"].replace(0, np.nan)))
    found.update_yaxes(type="log", exponentformat="power", range=norms, title_text="", col=2)
    found.update_yaxes(range=[-1.05, 1.05], title_text="", col=3)
    for column in (2, 3):
        found.update_xaxes(title_text="loop step k", col=column)
    return found


def _range(values: pd.Series) -> list[float]:
    margin = 0.06 * (values.max() - values.min()) + 1e-6
    return [values.min() - margin, values.max() + margin]


def shown(token: str) -> str:
    """A token as text of HTML, with visible line ends and tabs; other control and format characters are replaced."""
    replaced = {sign: "\N{REPLACEMENT CHARACTER}" for sign in token if unicodedata.category(sign) in INVISIBLE} | SIGNS
    return html.escape("".join(replaced.get(sign, sign) for sign in token))

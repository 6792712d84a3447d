"""The page results/explore.html: one figure of plotly with a slider over the tokens, in one file without network."""

import html
import unicodedata
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from twoscale.claims.exits import criterion_name
from twoscale.figures import style

if TYPE_CHECKING:
    from twoscale.jobs.rows import StudyJob

SIGNS = {"\n": "⏎", "\r": "␍", "\t": "→"}
# marks that reverse the direction of the text after them (Cf), ends of lines (Zl, Zp), and what has no shape
INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
PATH = {"xaxis": "pc1", "yaxis": "pc2"}


def run(job: "StudyJob") -> None:
    states, exits = (job.read(f"explore_{name}", name) for name in ("states", "exits"))
    job.write_text("page", page(figure(states, exits, job.config.text)))


def page(drawn: go.Figure) -> str:
    """The figure with plotly.js in one page that needs no network; the same figure gives the same page."""
    return drawn.to_html(include_plotlyjs=True, div_id="explore", auto_play=False, config={"displaylogo": False})


def figure(states: pd.DataFrame, exits: pd.DataFrame, text: str) -> go.Figure:
    """One frame per token from the tables "explore_…"; `text` names the text that the tokens are from."""
    states = states.sort_values(["position", "site"])
    first, groups = states.iloc[0], states["group"].dropna().unique()
    frames, labels = [], []
    for position, own in states.groupby("position"):
        labels.append(shown(own["token"].iloc[0]))
        title = f"token {position} “{labels[-1]}”; the text continues with “{shown(own['next_token'].iloc[0])}”"
        traces = _traces(own, exits[exits["position"] == position], groups)
        layout = {axis: {"range": _range(own.loc[own["k"] != 0, column])} for axis, column in PATH.items()}
        frames.append(go.Frame(name=str(position), data=traces, layout=layout | {"title": {"text": title}}))
    middle = frames[len(frames) // 2]
    found = make_subplots(2, 2, specs=[[{"rowspan": 2}, {}], [None, {}]], shared_xaxes="columns")
    found.add_traces(middle.data)
    found.update_traces(visible="legendonly", selector=lambda trace: (trace.name or "").startswith("exit"))
    found.frames = frames
    at_once = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    steps = [
        {"method": "animate", "args": [[frame.name], at_once], "label": label}
        for frame, label in zip(frames, labels, strict=True)
    ]
    slider = {"steps": steps, "active": len(frames) // 2, "currentvalue": {"prefix": "token "}}
    found.update_layout(middle.layout, sliders=[slider], template="plotly_white", height=780)
    for axis, update in enumerate((found.update_xaxes, found.update_yaxes), start=1):
        update(title_text=f"PC {axis} ({100 * first[f'pc{axis}_share']:.2g} %)", row=1, col=1)
    norms = _range(np.log10(states["step_norm"].replace(0, np.nan)))
    found.update_yaxes(title_text="step norm", type="log", exponentformat="power", range=norms, row=1, col=2)
    found.update_yaxes(title_text="cosine", range=[-1.05, 1.05], row=2, col=2)
    found.update_xaxes(title_text="loop step k", row=2, col=2)
    about = f"run {first['run']}, iteration {first['iteration']}, held-out sequence {first['sequence']} of {text}"
    found.add_annotation(text=html.escape(about), xref="paper", yref="paper", x=0, y=1.05, showarrow=False)
    return found


def _traces(states: pd.DataFrame, exits: pd.DataFrame, groups: list[str]) -> list[go.Scatter]:
    """One token: all its states as a grey path, each group in colour, its measures, and the exits of each criterion."""
    grey = {"mode": "lines", "line": {"color": "#bbb", "width": 1}, "hoverinfo": "skip", "showlegend": False}
    through = states[states["k"] != 0]  # x^0 is not on the path
    traces = [go.Scatter(x=through["pc1"], y=through["pc2"], xaxis="x", yaxis="y", **grey)]
    for group, colour in zip(groups, style.COLOURS * len(groups), strict=False):
        rows = states[states["group"] == group]
        name, look = f"group {style.group_name(group)}", {"mode": "lines+markers", "line": {"color": colour}}
        hover = [
            f"{name}, k = {row.k}<br>predicts “{shown(row.prediction)}” ({row.probability:.2g})<br>"
            f"step norm {row.step_norm:.3g}, cosine {row.cosine:.3g}"
            for row in rows.itertuples()
        ]
        look |= {"text": hover, "hoverinfo": "text", "legendgroup": name, "name": name}
        path = rows.assign(pc1=rows["pc1"].where(rows["k"] > 0))  # as many points as hover texts
        traces.append(go.Scatter(x=path["pc1"], y=path["pc2"], xaxis="x", yaxis="y", **look))
        for measure, axis in (("step_norm", "2"), ("cosine", "3")):
            axes = {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": False}
            traces.append(go.Scatter(x=rows["k"], y=rows[measure], **look, **axes))
    for (criterion, threshold), rows in exits.groupby(["criterion", "threshold"], sort=False):
        at = rows.merge(states, left_on=["group", "loop_steps"], right_on=["group", "k"])
        name = f"exit: {criterion_name(criterion)} {threshold:g}"
        marker = {"symbol": "star", "size": 12, "line": {"width": 1}}
        look = {"mode": "markers", "marker": marker, "name": name}
        traces.append(go.Scatter(x=at["pc1"], y=at["pc2"], xaxis="x", yaxis="y", **look))
    return traces


def _range(values: pd.Series) -> list[float]:
    margin = 0.06 * (values.max() - values.min()) + 1e-6
    return [values.min() - margin, values.max() + margin]


def shown(token: str) -> str:
    """A token as text of HTML, with visible line ends and tabs; other control and format characters are replaced."""
    replaced = {sign: "\N{REPLACEMENT CHARACTER}" for sign in token if unicodedata.category(sign) in INVISIBLE} | SIGNS
    return html.escape("".join(replaced.get(sign, sign) for sign in token))

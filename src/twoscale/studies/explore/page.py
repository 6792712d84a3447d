"""The page results/explore.html: the template page.html with plotly.js and the data in it.

The page is one file that needs no network. Its script reads the data from JSON; text of tokens enters the page only as
text, never as markup.
"""

import base64
import gzip
import json
import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from plotly.offline import get_plotlyjs

from twoscale.base import InputError
from twoscale.claims.scale import criterion_name

if TYPE_CHECKING:
    from twoscale.jobs.study_job import StudyJob

PLOTLY_MARK, DATA_MARK = "/* plotly.js */", "/* data */"
SIGNS = {"\n": "⏎", "\r": "␍", "\t": "→"}
COMPONENTS = ("pc1", "pc2", "pc3")
DIGITS = 4


def run(job: "StudyJob") -> None:
    """Write results/explore.html."""
    frames = {name: job.read(f"explore_{name}", name) for name in ("tokens", "states", "components", "exits")}
    template = job.file("template").read_text(encoding="utf-8")
    job.write_text("page", page(template, **frames, text=job.config.text))


def page(
    template: str,
    *,
    tokens: pd.DataFrame,
    states: pd.DataFrame,
    components: pd.DataFrame,
    exits: pd.DataFrame,
    text: str,
) -> str:
    """The page of the tables "explore_…"; the same tables give the same bytes.

    Args:
        template: A page with the comments `PLOTLY_MARK` and `DATA_MARK` where the library and the data belong.
        tokens, states, components, exits: The tables.
        text: Name of the text that the tokens are from.

    Raises:
        InputError: The template has no site for the library or for the data, or more than one.
    """
    for mark in (PLOTLY_MARK, DATA_MARK):
        if template.count(mark) != 1:
            raise InputError(f"template of explore.html: found {mark} {template.count(mark)} times, expected it once.")
    before, _, rest = template.partition(PLOTLY_MARK)
    between, _, after = rest.partition(DATA_MARK)
    return "".join([before, library(), between, embedded(data(tokens, states, components, exits, text)), after])


def library() -> str:
    """plotly.js, compressed and in base64: a third of its size. The page expands it."""
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def embedded(value: Any) -> str:
    """JSON that may stand in a script element: a "<" in a string can neither close it nor open a comment."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), sort_keys=True).replace("<", "\\u003c")


def data(
    tokens: pd.DataFrame, states: pd.DataFrame, components: pd.DataFrame, exits: pd.DataFrame, text: str
) -> dict[str, Any]:
    """What the script of the page reads. Arrays per token have the order of `tokens`, inner ones that of `sites`."""
    tokens = tokens.sort_values("position")
    states = states.sort_values(["position", "site"])
    first = tokens.iloc[0]
    sites = states[states["position"] == first["position"]]
    return {
        "run": first["run"],
        "text": text,
        "iteration": int(states["iteration"].iloc[0]),
        "sequence": int(first["sequence"]),
        "tokens": [shown(token) for token in tokens["token"]],
        "next": [shown(token) for token in tokens["next_token"]],
        "shares": [rounded(share) for share in components.sort_values("component")["share"]],
        "sites": [_site(site) for site in sites.to_dict("records")],
        "coordinates": _by_token(states, list(COMPONENTS)),
        "measures": {name: _by_token(states, name) for name in ("step_norm", "cosine", "probability")},
        "predictions": [
            [None if pd.isna(prediction) else shown(prediction) for prediction in rows["prediction"]]
            for _, rows in states.groupby("position")
        ],
        "exits": _exits(exits),
    }


def shown(token: str) -> str:
    """A token with visible line ends and tabs; other control and format characters are replaced."""
    return "".join(SIGNS.get(sign) or (sign if _is_visible(sign) else "\N{REPLACEMENT CHARACTER}") for sign in token)


def _is_visible(sign: str) -> bool:
    # Cf has the marks that reverse the direction of the text behind them; Zl and Zp end lines
    return unicodedata.category(sign) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def rounded(value: float) -> float | None:
    """A number with four significant digits, None for NaN."""
    return None if np.isnan(value) else float(f"{value:.{DIGITS}g}")


def _site(site: dict[str, Any]) -> dict[str, Any]:
    """Stage, layer, group and k of a state, without those that it does not have."""
    known = {name: site[name] for name in ("stage", "layer", "group", "k") if not pd.isna(site[name])}
    return {name: value if isinstance(value, str) else int(value) for name, value in known.items()}


def _by_token(states: pd.DataFrame, columns: str | list[str]) -> list[list[Any]]:
    """Numbers [token][site], or [token][site][column] for a list of columns."""
    parts = (rows[columns].to_numpy(dtype=float) for _, rows in states.groupby("position"))
    return [_rounded_list(part) for part in parts]


def _rounded_list(values: np.ndarray) -> list[Any]:
    return [rounded(value) if np.isscalar(value) else _rounded_list(value) for value in values]  # type: ignore[arg-type]


def _exits(exits: pd.DataFrame) -> list[dict[str, Any]]:
    """One entry per criterion and threshold, in the order of the table: {name, threshold, groups: label -> counts}.

    Counts are [loop steps, evaluations] per token.
    """
    points = []
    for (name, threshold), rows in exits.groupby(["criterion", "threshold"], sort=False):
        groups = {
            label: part.sort_values("position")[["loop_steps", "evaluations"]].to_numpy().tolist()
            for label, part in rows.groupby("group", sort=False)
        }
        points.append({"name": criterion_name(name), "threshold": threshold, "groups": groups})
    return points

"""Tables of the page results/explore.html with known content: four tokens, and two groups of three loop steps."""

import pandas as pd

TOKENS = ["a", "</script><b>x</b>", "tab\tand\n", "\x1b[31mred\u202e"]
GROUPS = ("2", "3-4")
LOOPS = 3
CRITERION, THRESHOLD = "halving", 0.1
SITES = [
    {"stage": "embedding", "layer": None, "group": None, "k": None},
    {"stage": "layer", "layer": 1, "group": None, "k": None},
    *({"stage": "loop", "layer": None, "group": group, "k": k} for group in GROUPS for k in range(LOOPS + 1)),
]
KEYS = {"run": "small", "iteration": 20}


def explore_tables() -> dict[str, pd.DataFrame]:
    """The four tables as `twoscale.studies.explore.page.page` takes them."""
    tokens = [
        {"run": "small", "sequence": 7, "document": 1, "position": i, "token": token, "next_token": "next"}
        for i, token in enumerate(TOKENS)
    ]
    states = [state(site, position) for site in range(len(SITES)) for position in range(len(TOKENS))]
    components = [KEYS | {"component": n, "share": 0.5 / n} for n in (1, 2, 3)]
    exits = [
        KEYS
        | {"criterion": CRITERION, "threshold": THRESHOLD, "group": group, "position": position}
        # token 0 exits from the first group after one loop step; nothing else exits
        | (
            {"loop_steps": 1, "evaluations": 2}
            if (group, position) == ("2", 0)
            else {"loop_steps": 3, "evaluations": 3}
        )
        for group in GROUPS
        for position in range(len(TOKENS))
    ]
    return {
        name: pd.DataFrame(rows)
        for name, rows in {"tokens": tokens, "states": states, "components": components, "exits": exits}.items()
    }


def state(site: int, position: int) -> dict:
    """One row: in a loop the step norm is 2^-k, and the prediction names token and loop step."""
    row = KEYS | {"site": site, "position": position} | SITES[site]
    row |= {"pc1": site + position, "pc2": site**0.5, "pc3": -float(position)}
    measured = dict.fromkeys(("state_norm", "step_norm", "cosine", "prediction", "probability"))
    if (k := SITES[site]["k"]) is not None:
        measured = {"state_norm": 1.0, "probability": 0.25, "prediction": f"<i>{position}.{k}</i>"}
        measured |= {"step_norm": 2.0**-k if k < LOOPS else None, "cosine": 0.5 if 0 < k < LOOPS else None}
    return row | measured

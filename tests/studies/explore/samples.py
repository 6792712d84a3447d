"""Tables of the page results/explore.html with known content: four tokens, and two groups of three loop steps."""

import pandas as pd

TOKENS = ["a", "</script><b>x</b>", "tab\tand\n", "\x1b[31mred\u202e"]
GROUPS = ("2", "3-4")
LOOPS = 3
SITES = [
    {"stage": "embedding", "layer": None, "group": None, "k": None},
    {"stage": "layer", "layer": 1, "group": None, "k": None},
    *({"stage": "loop", "layer": None, "group": group, "k": k} for group in GROUPS for k in range(LOOPS + 1)),
]
KEYS = {"run": "small", "iteration": 20}


def explore_tables() -> dict[str, pd.DataFrame]:
    """The tables as `twoscale.studies.explore.draw.page` takes them."""
    places = range(len(TOKENS))
    exits = [
        KEYS | {"criterion": "halving", "threshold": 0.1, "group": g, "position": p} for g in GROUPS for p in places
    ]
    for row in exits:  # token 0 exits from the first group after one loop step; nothing else exits
        early = (row["group"], row["position"]) == ("2", 0)
        row |= {"loop_steps": 1, "evaluations": 2} if early else {"loop_steps": 3, "evaluations": 3}
    states = [state(site, position) for site in range(len(SITES)) for position in places]
    return {"states": pd.DataFrame(states), "exits": pd.DataFrame(exits)}


def state(site: int, position: int) -> dict:
    """One row: in a loop the step norm is 2^-k, and the prediction names token and loop step."""
    row = KEYS | {"sequence": 7, "site": site, "position": position} | SITES[site]
    row |= {"token": TOKENS[position], "next_token": "next", "pc1": site + position, "pc2": site**0.5}
    row |= {"pc1_share": 0.5, "pc2_share": 0.25} | dict.fromkeys(("step_norm", "cosine", "prediction", "probability"))
    if (k := SITES[site]["k"]) is not None:
        row |= {"probability": 0.25, "prediction": f"<i>{position}.{k}</i>"}
        row |= {"step_norm": 2.0**-k if k < LOOPS else None, "cosine": 0.5 if 0 < k < LOOPS else None}
    return row

"""Tables of the study with known content, and its figures of them."""

import itertools

import numpy as np
import pandas as pd

from tests.figures import RUN, exit_tables
from twoscale.exits.table import of_run
from twoscale.replay import arena as arena_page
from twoscale.replay import gains
from twoscale.studies.arena import draw as drawing

DOCUMENTS = 12
THRESHOLDS = (0.1, 1.0, 10.0)
COST = {0.1: 8.0, 1.0: 5.0, 10.0: 2.0}  # mean evaluations of the criterion
LOSS = {0.1: 3.0, 1.0: 3.1, 10.0: 3.4}  # and its cross-entropy
GROUPS = ("4", "5-6")


def matched_tables(gain=0.2, noise=0.0, criterion="kl", documents=DOCUMENTS, seed=0):
    """Tables exit_quality, exit_loops and exit_cost_matched: the latter lose `gain` nats more than
    the criterion.

    noise: standard deviation over documents of the difference between cost-matched exits and the
    criterion.
    """
    random = np.random.default_rng(seed)
    quality, loops, cost_matched = [], [], []
    for (sequence, document), threshold in itertools.product(
        enumerate(range(documents)), THRESHOLDS
    ):
        key = {
            "criterion": criterion,
            "threshold": threshold,
            "sequence": sequence,
            "document": document,
        }
        ce = LOSS[threshold] + 0.3 * np.sin(document)  # texts differ more than exits do
        quality.append(key | {"tokens": 100, "ce": ce})
        for group, more in zip(GROUPS, (-1, 1), strict=True):
            evaluations = COST[threshold] + more
            loops.append(
                key | {"group": group, "loop_steps": evaluations, "evaluations": evaluations}
            )
        for reference, draw in (("random", 0), ("random", 1), ("fixed", 0)):
            nats = ce + gain + noise * random.normal()
            row = {
                "reference": reference,
                "draw": draw,
                "tokens": 100,
                "evaluations": COST[threshold],
                "ce": nats,
            }
            cost_matched.append(key | row)
    return tuple(map(pd.DataFrame, (quality, loops, cost_matched)))


def regret_tables(documents=DOCUMENTS, worse=0.05):
    """Tables exit_regret and oracle_frontier of tokens whose loss is 1 / k after k evaluations, in
    both groups.

    The criterion kl leaves every token after 2 evaluations and loses `worse` nats more than the
    state does.
    """
    regret, frontier = [], []
    for document, group in itertools.product(range(documents), GROUPS):
        key = {"group": group, "sequence": document, "document": document, "tokens": 50}
        regret.append(
            key | {"criterion": "kl", "threshold": 1.0, "evaluations": 2.0, "ce": 0.5 + worse}
        )
        for price in 10.0 ** np.arange(-6, 1.25, 0.125):
            k = min(range(1, 9), key=lambda k: 1 / k + price * k)
            frontier.append(key | {"price": price, "evaluations": float(k), "ce": 1 / k})
    return pd.DataFrame(regret), pd.DataFrame(frontier)


def compared(**changes):
    return gains.summarise(of_run(*matched_tables(**changes)), *regret_tables())


def draw_pareto(criteria=("fixed", "kl", "mine")):
    return drawing.draw_pareto(*exit_tables(criteria)[:3], **RUN)


def pareto():
    return draw_pareto(("fixed", "kl", "cosine", "mine"))


def arena():
    """The figure with intervals."""
    parts = [
        matched_tables(gain=0.05, noise=0.1, criterion=name, seed=i)
        for i, name in enumerate(("kl", "step_norm"))
    ]
    cost_matched = [pd.concat(frames) for frames in zip(*parts, strict=True)]
    return arena_page.draw_arena(gains.summarise(of_run(*cost_matched), *regret_tables()), **RUN)


def exit_check():
    """The criterion is within the tolerance of full depth at its first threshold only."""
    quality, loops, cost_matched = matched_tables(gain=0.05, noise=0.01)
    at_full = quality[quality["threshold"] == THRESHOLDS[0]]
    at_full = at_full.assign(criterion="fixed", threshold=9.0)
    both = pd.concat([quality, at_full], ignore_index=True)
    return drawing.draw_exit_check(both, loops, cost_matched, **RUN)

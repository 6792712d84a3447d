"""The tables of a synthetic run, whose geometry, quality and times are given by a few numbers."""

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.claims import evidence
from twoscale.claims import verdicts as claims

GROUPS = ("4", "5-6")
BOUNDARY = "4->5-6"
SEQUENCES, TOKENS, PROMPTS, REPEATS = 8, 50, 5, 11
LOOP_STEPS = {"4": 0.4, "5-6": 0.6}  # milliseconds
DECISIONS = {"acceleration": 0.0, "step_norm": 0.0, "kl": 0.15}
SPREAD = np.linspace(
    -1, 1, SEQUENCES
)  # how the sequences differ, in units of each test's own; a document each
LOOP_SEQUENCES = 32  # of the trajectories; claims 3 and 4 need so many
ITERATIONS = (0, 10, 20, 50, 100)
WARMUP = 5
HALF_DECADES = [1e-5, 3.16e-5, 1e-4, 3.16e-4, 1e-3, 3.16e-3, 1e-2, 3.16e-2, 0.1, 0.316]
LATE_LOSS = 0.015  # nats per half decade beyond 1e-2
# nats that the step norm loses
CLIFF = {3.16e-3: 0.05, 1e-2: 0.3, 3.16e-2: 0.5, 0.1: 0.7, 0.316: 0.9}


@cache
def loop_rows(iteration, group="4", nulls=0.0, loops=30, **shape):
    """Rows of "loop_sequences" of one checkpoint and group; `nulls` is the share of tokens without
    an angle.
    """
    shape = {
        "rate": 0.6,
        "spread": 0.0,
        "level": 0.55,
        "level_spread": 0.01,
        "start": 0.1,
        "wobble": 0.0,
    } | shape
    shape = {"scale": 1.0, "floor": 0.02, "bend": 1.0} | shape
    k = np.arange(loops + 1)
    parts = []
    for sequence, unit in enumerate(np.linspace(-1, 1, LOOP_SEQUENCES)):
        norms = shape["scale"] * np.maximum(
            (shape["rate"] + shape["spread"] * unit) ** k, shape["floor"]
        )
        level = shape["level"] + shape["level_spread"] * unit
        angles = (
            level
            - (shape["level"] - shape["start"]) * np.exp(-(k - 1.0))
            + shape["wobble"] * np.sin(k)
        )
        # with a bend of 1 the curvature, acceleration over squared step norm, is that of the
        # plateau
        turns = norms * shape["bend"] ** (k >= 20)
        columns = {"state_norm": (8.0 + 0 * k, 0), "step_norm": (norms, 0), "cosine": (angles, 1)}
        for measure, (values, first) in (columns | {"acceleration": (turns, 1)}).items():
            defined = (k >= first) & (k < loops)
            missing = round(TOKENS * nulls) if measure in ("cosine", "acceleration") else 0
            counts = np.where(defined, TOKENS - missing, 0)
            rows = {
                "run": "trial",
                "iteration": iteration,
                "group": group,
                "k": k,
                "sequence": sequence,
            }
            rows |= {"document": 100 - sequence, "measure": measure}
            rows |= {
                "mean": np.where(counts > 0, values, np.nan),
                "count": counts,
                "nulls": TOKENS - counts,
            }
            parts.append(rows)
    columns = {name: [np.broadcast_to(part[name], len(k)) for part in parts] for name in parts[0]}
    return pd.DataFrame({name: np.concatenate(values) for name, values in columns.items()})


def loops(first=None, last=None, iterations=ITERATIONS, **whole):
    """An untrained model, then training on a line over log iteration from slow and unsteady loops
    to the paper's.
    """
    first = {"rate": 0.8, "level": 0.9, "wobble": 0.1, "scale": 1.5} | (first or {})
    last = {"rate": 0.6, "level": 0.55, "wobble": 0.0, "scale": 1.0} | (last or {})
    frames = []
    for iteration in iterations:
        share = np.log10(iteration / 10) if iteration else 0
        shape = {key: first.get(key, last[key]) * (1 - share) + last[key] * share for key in last}
        looks = (shape if iteration else {"rate": 0.95, "level": 0.9}) | whole
        frames += [loop_rows(iteration, group, **looks) for group in GROUPS]
    return pd.concat(frames)


def drift(iterations=ITERATIONS, spread=0.1, **ratios):
    """DLR 12 everywhere, but 0.5 under the reference state `initial`, and what `ratios` gives to
    others.
    """
    means = {"first_state": 12.0, "projected": 12.0, "final": 12.0, "initial": 0.5} | ratios
    rows = [
        {"run": "trial", "iteration": iteration, "boundary": BOUNDARY, "reference_state": reference}
        | {"sequence": sequence, "document": 100 - sequence, "measure": measure}
        | {"mean": scale * (value + spread * unit), "count": TOKENS, "nulls": 0}
        for iteration in iterations
        for reference, value in means.items()
        for measure, scale in (("dlr", 1.0), ("jump_over_path", 1 / 30))
        for sequence, unit in enumerate(SPREAD)
    ]
    return pd.DataFrame(rows)


def quality(spread=0.0, grid=HALF_DECADES, **changes):
    """CE 5 but at one fixed loop step, beyond 1e-2, and on the `CLIFF` of step norm; `changes` are
    what a criterion loses in its place: criterion -> {threshold: nats}.

    Beyond 1e-2 criteria lose `LATE_LOSS` per half decade where nothing else is given. Sequences
    differ by half a nat; `spread` is by how much the changes differ between them.
    """
    added = {"step_norm": CLIFF, "fixed": {1: 1.0}} | changes
    rows = []
    for criterion in ("fixed", "step_norm", "kl", "acceleration"):
        for threshold in [1, 30] if criterion == "fixed" else grid:
            varies = criterion != "fixed"
            late = varies * LATE_LOSS * max(0, round(2 * np.log10(threshold) + 4))
            nats = added.get(criterion, {}).get(threshold, late)
            for sequence, unit in enumerate(SPREAD):
                ce = 5 + 0.5 * unit + nats * (1 + spread * unit * varies)
                rows.append(
                    {
                        "run": "trial",
                        "criterion": criterion,
                        "threshold": float(threshold),
                        "sequence": sequence,
                    }
                    | {"document": 100 - sequence, "tokens": TOKENS, "ce": ce}
                )
    return pd.DataFrame(rows)


def exit_loops(spread=1.0, fall=1.0, grid=HALF_DECADES, **means):
    """Evaluations 12 under acceleration, which keeps the state of one fewer, 13 under step norm, 15
    under KL at the first threshold, and at one fixed loop step, in both groups, and `fall` less from
    one threshold to the next; `means` changes a criterion.

    Sequences differ under KL.
    """
    means = {"acceleration": 12.0, "step_norm": 13.0, "kl": 15.0, "fixed": 1.0} | means
    rows = [
        {"run": "trial", "criterion": criterion, "threshold": threshold, "sequence": sequence}
        | {
            "document": 100 - sequence,
            "group": group,
            "evaluations": mean - fall * number + spread * unit * (criterion == "kl"),
        }
        for criterion, mean in means.items()
        for number, threshold in enumerate([1.0] if criterion == "fixed" else grid)
        for sequence, unit in enumerate(SPREAD)
        for group in GROUPS
    ]
    frame = pd.DataFrame(rows)
    discarded = frame["criterion"] == "acceleration"
    return frame.assign(loop_steps=frame["evaluations"] - discarded)


def cost_matched(**changes):
    """Random exits at the cost of each operating point, in two draws: CE 5.1, and `changes` adds
    nats: criterion -> nats.
    """
    rows = quality().query("criterion != 'fixed'")
    rows = rows.assign(reference="random", evaluations=12.0)
    rows["ce"] = 5.1 + 0.5 * SPREAD[rows["sequence"]]
    rows["ce"] += rows["criterion"].map(changes).fillna(0.0)
    draws = [rows.assign(draw=draw, ce=rows["ce"] + 0.01 * (2 * draw - 1)) for draw in (0, 1)]
    return pd.concat([*draws, rows.assign(draw=0, reference="fixed", ce=9.0)])


def costs(spread=0.02, loop_steps=LOOP_STEPS, **decisions):
    """Milliseconds of the parts of a token: 2 outside its loops, 0.4 and 0.6 a loop step of either
    group, and by criterion a decision and what it adds to a token; `spread` is over repeats.
    """
    rows = []
    for criterion, decision in (DECISIONS | decisions).items():
        for repeat, unit in enumerate(np.linspace(-1, 1, REPEATS)):
            for group, step in loop_steps.items():
                rows.append(
                    {"run": "trial", "criterion": criterion, "group": group, "repeat": repeat}
                    | {
                        "loop_step_ms": step * (1 + spread * unit),
                        "decision_ms": decision * (1 - spread * unit),
                        "outside_ms": 2.0 * (1 + spread * unit),
                        "start_ms": decision,
                    }
                )
    return pd.DataFrame(rows)


def latency(spread=0.02, load=0.5, grid=HALF_DECADES, **factors):
    """Measured times, from 14 ms down to 8 under acceleration as computed; `factors` scale a
    criterion.
    """
    scale = {"fixed": 1.2, "acceleration": 1.0, "kl": 1.5, "step_norm": 1.1} | factors
    rows = []
    for criterion, factor in scale.items():
        thresholds = [30] if criterion == "fixed" else grid
        for number, threshold in enumerate(thresholds):
            for repeat, unit in enumerate(np.linspace(-1, 1, PROMPTS)):
                # the criteria's spreads are opposite, or nothing would be left of it in a ratio
                noise = 1 + spread * unit * (-1 if criterion == "acceleration" else 1)
                rows.append(
                    {
                        "run": "trial",
                        "criterion": criterion,
                        "threshold": float(threshold),
                        "repeat": repeat,
                    }
                    | {
                        "latency_ms": (14 - number) * factor * noise,
                        "load_average": load + repeat,
                        "cpus": 10,
                    }
                )
    return pd.DataFrame(rows)


def released(folder, **values):
    """The evidence of a run in a folder of released tables; earlier ones lack costs."""
    files = {name: folder / f"{table}.parquet" for name, table in tables.CLAIM_TABLES.items()}
    files = {name: file for name, file in files.items() if file.exists()}
    return replace(evidence.Evidence.read(files, max_loops=0), **values)


def synthetic(**changes):
    frames = {name: changes.pop(name, frame) for name, frame in usual_tables().items()}
    values = {"max_loops": 30, "warmup": WARMUP, "seed": 1} | changes
    return evidence.Evidence.of(frames, **values)


@cache
def usual_tables():
    run_tables = {
        "loops": loops(),
        "drift": drift(),
        "quality": quality(),
        "exit_loops": exit_loops(),
    }
    return run_tables | {"latency": latency(), "costs": costs(), "cost_matched": cost_matched()}


@cache
def usual_verdicts():
    return claims.verdicts(synthetic())


def without(frame, criterion, threshold):
    return frame[(frame["criterion"] != criterion) | (frame["threshold"] != threshold)]


def examine(number, evidence, references=True):
    (claim,) = (claim for claim in claims.CLAIMS if claim.number == number)
    return claims.examine(claim, evidence, references)

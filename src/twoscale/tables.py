"""Columns, types and units of every parquet table, and the only functions that read or write one.

The columns are plain data, and pandas and pyarrow are imported inside the functions, because the Snakefile
imports this module: a rule that writes a table has the table's columns in its params, so a new column reruns
only the rules that write it.

Tables are long: quantities per looped group have one row per group, with its label in the column `group`, and
groups are never part of a column's name. The tables in `MEASURED` declare only their key columns. Their further
columns are measures, float32 each, and follow from the registries in `twoscale.dynamics.measures`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from twoscale.errors import InputError, did_you_mean, first_line
from twoscale.files import replacing

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

# Statistics over tokens that every aggregated measure has.
STATISTICS = {
    "mean": "float64",  # over tokens
    "std": "float64",  # 1 sigma over tokens
    "q05": "float64",  # quantile over tokens: 5 %
    "q25": "float64",  # quantile over tokens: 25 %
    "q50": "float64",  # median over tokens
    "q75": "float64",  # quantile over tokens: 75 %
    "q95": "float64",  # quantile over tokens: 95 %
    "count": "int64",  # values used
    "nulls": "int64",  # values not used: undefined, or under the rounding floor
}

# The tables that claims are judged on, by the attribute of `twoscale.analysis.evidence.Evidence`.
CLAIM_TABLES = {
    "loops": "loop_sequences",
    "drift": "drift_sequences",
    "quality": "exit_quality",
    "exit_loops": "exit_loops",
    "latency": "exit_latency",
    "checks": "check_cost",
}

# Statistics over the tokens of one sequence.
SEQUENCE_STATISTICS = {name: STATISTICS[name] for name in ("mean", "count", "nulls")}

# Tables with further columns of this type: one per registered measure, after the declared columns.
MEASURED = ("trajectories", "token_paths")
MEASURE_TYPE = "float32"

# table -> column -> dtype; the keys of a row come first.
COLUMNS: dict[str, dict[str, str]] = {
    # One row per document; `held_out` is true for held-out text and false for training text.
    "text": {"document": "string", "held_out": "bool", "text": "string"},
    # The same during collection; `size` counts GPT-2 tokens or characters, in the unit of the text quota.
    "text_part": {"document": "string", "text": "string", "size": "int64"},
    # One row per iteration. `iteration` counts finished iterations, so the first row is iteration 1.
    "training": {
        "iteration": "int64",  # optimizer updates so far; 0 is the untrained or the published model
        "tokens_seen": "int64",  # in training, so far
        "loss": "float64",  # nats per token, mean over the batch
        "held_out_loss": "float64",  # nats per token at train.held_out_loops; null between measurements
        "learning_rate": "float64",  # of the optimizer update
        "gradient_norm": "float64",  # before clipping
        "tokens_per_s": "float64",  # trained on, per second
        "tflops": "float64",  # model FLOP/s of the iteration in 1e12, causal count, all processes
        "utilisation": "float64",  # of train.peak_tflops times the processes; null if that is not set
    },
    # One row per (iteration, group): the loop steps that the group ran in this iteration.
    "training_loops": {"iteration": "int64", "group": "string", "loops": "int64"},
    # One row per (token, group, state); k = 0 is the initial state, k = trajectories.loops the last one. The
    # loop step from x^k to x^{k+1} is in row k, so the last row has none. The further columns are the measures
    # per loop step, computed in trajectories.dtype and stored in float32.
    "trajectories": {
        "iteration": "int64",
        "sequence": "int32",  # number of the held-out sequence
        "document": "int32",  # held-out document with the first token of the sequence
        "position": "int32",  # of the token in its sequence
        "group": "string",  # of looped layers, as in 5-6
        "k": "int32",  # loop step
    },
    # One row per (token, group). The further columns are the per-trajectory measures.
    "token_paths": {
        "iteration": "int64",
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "position": "int32",
        "group": "string",
        "path_type": "string",  # of path_types.PATH_TYPES
        "period": "int32",  # loop steps of an orbit, 0 for other path types
    },
    # One row per (token, boundary, reference state). The reference state is what counts as "x^0 of the next
    # group" in Eq. 2. `dlr` is the jump over the mean loop step; `jump_over_path` is the jump over the summed
    # loop steps, which does not grow with the number of loop steps.
    "token_drift": {
        "iteration": "int64",
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "position": "int32",
        "boundary": "string",  # between looped groups, as in 4->5-6
        "reference_state": "string",  # what counts as the start of the next group in Eq. 2
        "jump": "float32",  # distance to the reference state
        "dlr": "float32",  # jump over the mean loop step
        "jump_over_path": "float32",  # jump over the sum of the loop steps
    },
    # One row per (token, varied group, draw of the noise), each compared with the noise of the run itself.
    "token_independence": {
        "iteration": "int64",
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "position": "int32",
        "group": "string",  # whose noise is varied, or "all"
        "draw": "int32",  # number of the draw of the noise
        "distance": "float32",  # between the last states of the varied group
        "distance_relative": "float32",  # over the norm of that state
        "kl": "float32",  # nats, from the prediction under the run's noise to that under the draw
        "agreement": "float32",  # 1 if both predict the same token, else 0
    },
    # One row per (token, group), from a loop that runs to its fixed point (`twoscale.dynamics.spectrum`). Rates and
    # cosines are of the last updates of a path above the rounding floor. Columns from own_modulus on are null in
    # sequences without exact blocks and for tokens without a fixed point; null is also what too few updates leave
    # undefined. Angles are in radians, 0 … π: a period is 2π / angle loop steps.
    "token_spectrum": {
        "iteration": "int64",
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "position": "int32",
        "group": "string",
        "token": "int32",  # id
        "place": "string",  # first of the sequence, end of text, after end of text, or other
        "frequency": "float64",  # of the token, per million training tokens; null if there is no training text
        "exact": "bool",  # whether the sequence has exact blocks
        "converged": "bool",  # whether the token and all earlier ones have a fixed point
        "steps": "int32",  # loop steps until the updates of the token and all earlier ones are rounding; -1: never
        "loops": "float32",  # loop steps until the step norm is below spectrum.tolerance times the norm of the state
        "rate": "float32",  # geometric mean of the ratio of successive step norms
        "cosine": "float32",  # mean cosine of successive updates
        "path_modulus": "float32",  # of the leading root of the path's two-term recurrence
        "path_angle": "float32",  # of the same root
        "path_axis_ratio": "float32",  # short over long axis of the path's spiral; null for a real root
        "path_residual": "float32",  # of the two-term recurrence, relative
        "own_modulus": "float32",  # of the leading eigenvalue of the token's own block
        "own_angle": "float32",  # of the same eigenvalue
        "own_axis_ratio": "float32",  # short over long axis of its spiral; 0 for a real eigenvalue
        "own_spiral": "float32",  # mean cosine on its spiral
        "own_singular_value": "float32",  # largest singular value of the own block
        "inherited_modulus": "float32",  # largest own modulus of the token and all earlier ones
        "inherited_angle": "float32",  # of the same eigenvalue
        "inherited_spiral": "float32",  # mean cosine at its angle on a spiral of the shape of the token's path
        "source": "int32",  # position of the token whose eigenvalue is inherited; -1 without exact blocks
        "isolated_rate": "float32",  # rate with all earlier tokens at their fixed points
        "isolated_cosine": "float32",  # cosine with all earlier tokens at their fixed points
        "isolated_loops": "float32",  # loops with all earlier tokens at their fixed points
        "slowed_rate": "float32",  # rate with the token at spectrum.slowed_position slowed; null up to it
        "slowed_cosine": "float32",  # cosine with this token slowed
        "slowed_modulus": "float32",  # inherited modulus with this token slowed
        "slowed_angle": "float32",  # inherited angle with this token slowed
    },
    # Agreement of what the spectrum predicts with what paths do, one row per (checkpoint, group, prediction, quantity),
    # over tokens that have a fixed point, with 95 % intervals over documents.
    "spectrum": {
        "run": "string",
        "iteration": "int64",
        "group": "string",
        "prediction": "string",  # own, inherited, path, isolated or slowed: docs/spectrum.md
        "quantity": "string",  # rate, cosine (of the angle of the eigenvalue) or spiral (mean cosine on the ellipse)
        "tokens": "int64",
        "predicted": "float64",  # mean over tokens
        "measured": "float64",  # mean over tokens
        "correlation": "float64",  # over tokens
        "correlation_low": "float64",  # 95 % interval of correlation
        "correlation_high": "float64",  # 95 % interval of correlation
        "difference": "float64",  # mean absolute difference of predicted and measured
        "difference_low": "float64",  # 95 % interval of difference
        "difference_high": "float64",  # 95 % interval of difference
    },
    "spectrum_metrics": {
        "run": "string",
        "iteration": "int64",
        "group": "string",
        "measure": "string",  # a column of "token_spectrum"
        **STATISTICS,
    },
    # Which tokens are slow: one row per (checkpoint, group, property, class) over tokens with exact blocks and a fixed
    # point, with 95 % intervals over documents.
    "slow_tokens": {
        "run": "string",
        "iteration": "int64",
        "group": "string",
        "property": "string",  # place, position or frequency
        "class": "string",  # of the property
        "tokens": "int64",
        "share": "float64",  # of all tokens
        "own_modulus": "float64",  # mean over the tokens of the class
        "inherited_from": "float64",  # share of all tokens that inherit from a token of the class
        "inherited_from_low": "float64",  # 95 % interval of inherited_from
        "inherited_from_high": "float64",  # 95 % interval of inherited_from
    },
    # The states of one held-out sequence in the plane of the two main directions of all of them, for Fig. 1: one row
    # per (place, token). Null is what a place does not have.
    "state_paths": {
        "run": "string",
        "iteration": "int64",
        "sequence": "int32",  # number of the held-out sequence
        "place": "int32",  # 0, 1, … in the order of the model
        "stage": "string",  # "embedding", "layer" or "loop"
        "layer": "int32",  # of an unlooped layer
        "group": "string",
        "k": "int32",  # loop steps behind the state; 0 is the initial state of the group
        "follows": "bool",  # false for a group that does not start from where the places before it end
        "position": "int32",  # of the token in its sequence
        "token": "string",
        "pc1": "float64",  # coordinate in the first principal component
        "pc1_share": "float64",  # of the variance of all states, the same in every row
        "pc2": "float64",
        "pc2_share": "float64",
    },
    "path_types": {
        "run": "string",  # name of the run
        "iteration": "int64",
        "group": "string",
        "path_type": "string",
        "period": "int32",  # loop steps of an orbit, 0 for other path types
        "tokens": "int64",  # number of tokens that the row is about
        "share": "float64",  # of the tokens of this iteration and group
    },
    "path_metrics": {
        "run": "string",
        "iteration": "int64",
        "group": "string",
        "measure": "string",  # what the statistics are about: docs/glossary.md
        **STATISTICS,
    },
    "path_independence": {
        "run": "string",
        "iteration": "int64",
        "group": "string",
        "measure": "string",
        **STATISTICS,
    },
    "loop_metrics": {
        "run": "string",
        "iteration": "int64",
        "group": "string",
        "k": "int32",
        "measure": "string",
        **STATISTICS,
    },
    "drift": {
        "run": "string",
        "iteration": "int64",
        "boundary": "string",
        "reference_state": "string",
        "measure": "string",
        **STATISTICS,
    },
    # One row per held-out sequence. A bootstrap resamples documents, with all sequences that begin in one.
    "loop_sequences": {
        "run": "string",
        "iteration": "int64",
        "group": "string",
        "k": "int32",
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "measure": "string",
        **SEQUENCE_STATISTICS,
    },
    "drift_sequences": {
        "run": "string",
        "iteration": "int64",
        "boundary": "string",
        "reference_state": "string",
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "measure": "string",
        **SEQUENCE_STATISTICS,
    },
    # One row per (criterion, threshold) and timed repeat.
    "exit_latency": {
        "run": "string",
        "criterion": "string",  # exit criterion; fixed: the same number of loop steps for all tokens
        "threshold": "float64",  # of the criterion, τ; for fixed, the number of loop steps
        "repeat": "int32",  # number of the timed repeat
        "tokens": "int64",
        "latency_ms": "float64",  # per token, under the exit criterion
        "baseline_ms": "float64",  # per token, the same evaluations without any criterion
        "load_average": "float64",  # of the machine, over the last minute
        "cpus": "int32",  # cores that the job may use
    },
    # The same per group.
    "exit_latency_loops": {
        "run": "string",
        "criterion": "string",
        "threshold": "float64",
        "repeat": "int32",
        "group": "string",
        "evaluations": "float64",  # mean calls of f per token
    },
    # One row per (criterion, threshold) and held-out sequence.
    "exit_quality": {
        "run": "string",
        "criterion": "string",
        "threshold": "float64",
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "tokens": "int64",
        "ce": "float64",  # nats per token
        "ppl": "float64",  # perplexity, exp of ce
        "share_at_max_loops": "float64",  # share of (token, group) pairs that used all of exits.max_loops
    },
    # The same per group.
    "exit_loops": {
        "run": "string",
        "criterion": "string",
        "threshold": "float64",
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "group": "string",
        "loop_steps": "float64",  # mean loop steps behind the returned state (k of Algorithm 1)
        "evaluations": "float64",  # mean calls of f per token
    },
    # One row per operating point of a criterion, control, draw and held-out sequence.
    "exit_controls": {
        "run": "string",
        "criterion": "string",
        "threshold": "float64",
        "control": "string",  # random: the criterion's counts of evaluations at random tokens; fixed: the mean of them
        "draw": "int32",  # number of the draw of the tokens
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "tokens": "int64",
        "evaluations": "float64",  # mean calls of f over tokens and groups; over the text that of the criterion
        "ce": "float64",
    },
    # One row per (group, operating point, oracle, held-out sequence), on frozen trajectories: tokens leave this group
    # one at a time, all others run exits.max_loops. Criterion fixed has every loop count.
    "exit_regret": {
        "run": "string",
        "group": "string",
        "criterion": "string",
        "threshold": "float64",
        "oracle": "string",  # loss, prediction: leaves at the first state from which this stays that of all loop steps
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "tokens": "int64",
        "evaluations": "float64",  # mean calls of f per token, of the criterion
        "ce": "float64",  # of the states with which tokens leave
        "least": "float64",  # mean calls of f per token, of the oracle
        "settled": "float64",  # share of tokens that leave settled: no earlier than with the oracle
        "extra": "float64",  # calls of f above those of the oracle, where settled, else 0; mean over all tokens
        "lost": "float64",  # nats above those at all loop steps, where not settled, else 0; mean over all tokens
    },
    # One row per (group, price, held-out sequence): the budget oracle, which chooses the exit of each token with the
    # least loss + price x evaluations on frozen trajectories.
    "oracle_frontier": {
        "run": "string",
        "group": "string",
        "price": "float64",  # of an evaluation, in nats
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "tokens": "int64",
        "evaluations": "float64",  # mean calls of f per token
        "ce": "float64",  # nats per token
    },
    # One row per (group, operating point, reference). Intervals are 95 % bootstraps over documents.
    "arena": {
        "run": "string",
        "criterion": "string",
        "threshold": "float64",
        "group": "string",  # all: of the controls, exits from all groups; of the oracle, the mean of the groups
        "reference": "string",  # random, fixed: controls, as in exit_controls; oracle: the budget oracle
        "documents": "int64",
        "evaluations": "float64",  # mean calls of f per token and group, of the criterion
        "ce": "float64",  # nats per token, of the criterion
        "gain": "float64",  # nats per token, at equal evaluations: ce of the reference minus that of the criterion
        "gain_low": "float64",  # 95 % interval
        "gain_high": "float64",  # its other end
        "saved": "float64",  # at equal ce: evaluations of the reference minus those of the criterion, null out of range
        "saved_low": "float64",  # 95 % interval; null if a bootstrap sample is out of the range of the reference
        "saved_high": "float64",  # its other end
    },
    # One row per (operating point, oracle): exit_regret over all groups. Intervals are bootstraps over documents.
    "settling": {
        "run": "string",
        "criterion": "string",
        "threshold": "float64",
        "oracle": "string",  # loss or prediction, see exit_regret
        "evaluations": "float64",  # mean calls of f per token and group, of the criterion
        "least": "float64",  # the same of the oracle
        "unsettled": "float64",  # share of (token, group) that leave before they are settled
        "unsettled_low": "float64",  # 95 % interval
        "unsettled_high": "float64",  # its other end
        "extra": "float64",  # mean calls of f above those of the oracle, over those that leave settled
        "extra_low": "float64",  # 95 % interval
        "extra_high": "float64",  # its other end
        "lost": "float64",  # mean nats above the cross-entropy at all loop steps, over those that leave unsettled
        "lost_low": "float64",  # 95 % interval
        "lost_high": "float64",  # its other end
    },
    # One row per (checkpoint, fixed loop count, held-out sequence).
    "scaling_quality": {
        "iteration": "int64",
        "loops": "int32",  # of every group
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "tokens": "int64",
        "ce": "float64",  # nats per token
        "ppl": "float64",
    },
    # One row per (checkpoint, fixed loop count), with 95 % intervals over documents.
    "scaling": {
        "run": "string",
        "iteration": "int64",
        "loops": "int32",
        "tokens": "int64",
        "ce": "float64",
        "ce_low": "float64",  # 95 % interval of ce
        "ce_high": "float64",  # 95 % interval of ce
        "ppl": "float64",
        "ppl_low": "float64",  # 95 % interval of ppl
        "ppl_high": "float64",  # 95 % interval of ppl
        "excess": "float64",  # ce minus that at the largest loop count, on the same sequences
        "excess_low": "float64",  # 95 % interval of excess
        "excess_high": "float64",  # 95 % interval of excess
    },
    # One row per (group, loop step, held-out sequence) at the last checkpoint: what x^k predicts through the layers
    # behind its group, means over the tokens of the sequence.
    "lens": {
        "run": "string",
        "iteration": "int64",
        "group": "string",
        "k": "int32",  # loop steps behind the decoded state
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "tokens": "int64",
        "ce": "float64",  # nats per token
        "entropy": "float64",  # of the prediction, nats per token
        "log_rank": "float64",  # logarithm of the rank of the right token; exp of its mean is a geometric mean
        "right": "float64",  # share of tokens whose most likely next token is the right one
        "lost": "float64",  # share predicted wrongly, and rightly at an earlier k > 0 of the table; null at k = 0
        "lost_since_mean": "float64",  # the same, of those predicted rightly at the mean loops of training
    },
    # One row per held-out sequence; each token runs the smallest fixed loop count that settles its prediction.
    "uniform_loops": {
        "run": "string",
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "tokens": "int64",
        "loops": "float64",  # mean over tokens, of every group
        "ce": "float64",
        "ppl": "float64",
        "share_at_max_loops": "float64",  # share of tokens whose prediction settles only at exits.max_loops
    },
    # Points on the paths through the thresholds of an exit criterion, from many evaluations to few (snakemake
    # results/calibration.pdf): one row per (criterion, path, point, held-out sequence) of the documents that choose
    # thresholds and of those that they are reported on. Means are over the tokens that belong to `document`.
    "calibration_runs": {
        "run": "string",
        "criterion": "string",
        "path": "string",  # common: one threshold for all groups; per_group: one for each
        "place": "int32",  # of the point on its path, from 0
        "part": "string",  # calibration or report
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "tokens": "int64",  # of the sequence that belong to the document
        "ce": "float64",  # nats per token
        "full_ce": "float64",  # nats per token at all loop steps
        "agreement": "float64",  # share of tokens whose most likely next token is that of all loop steps
        "evaluations": "float64",  # mean calls of f per token and group
    },
    # The thresholds of the points: one row per (criterion, path, point, group).
    "calibration_paths": {
        "run": "string",
        "criterion": "string",
        "path": "string",  # common or per_group
        "place": "int32",  # of the point on its path, from 0
        "group": "string",
        "threshold": "float64",
    },
    # Promises and whether they were kept: one row per (criterion, path, loss, epsilon). Columns from `loss` on are
    # measured on the documents of the report; without a threshold that the promise allows, all loop steps are run.
    "calibration": {
        "run": "string",
        "criterion": "string",
        "path": "string",  # common or per_group
        "promise": "string",  # ce: rise in nats per token; disagreement: share of other most likely next tokens
        "epsilon": "float64",  # most that is promised, mean over units
        "delta": "float64",  # probability with which the promise may be broken
        "units": "int64",  # documents or sequences that choose the threshold
        "place": "int32",  # of the chosen point on its path; -1: none
        "p_value": "float64",  # of the chosen point; of the first one of the path if none is chosen
        "report_documents": "int64",
        "loss": "float64",  # mean over units, each clipped as in the test
        "loss_low": "float64",  # 95 % interval over documents
        "loss_high": "float64",  # 95 % interval over documents
        "unclipped": "float64",  # mean over tokens of the loss as it is
        "saved": "float64",  # share of the evaluations at all loop steps
        "saved_low": "float64",  # 95 % interval over documents
        "saved_high": "float64",  # 95 % interval over documents
        "verdict": "string",  # on the promise: holds, does not hold, cannot be judged, or no threshold
    },
    # The chosen thresholds: one row per (criterion, path, promise, epsilon, group); none where there is no threshold.
    "calibrated_thresholds": {
        "run": "string",
        "criterion": "string",
        "path": "string",  # common or per_group
        "promise": "string",  # ce or disagreement
        "epsilon": "float64",
        "group": "string",
        "threshold": "float64",
    },
    # One row per (repeat, group): the time of one KL check and of one loop step, for one token.
    "check_cost": {
        "run": "string",
        "group": "string",
        "repeat": "int32",
        "check_ms": "float64",  # one check of the KL criterion, per token
        "loop_step_ms": "float64",  # one loop step, per token
    },
    # One row per (criterion, threshold), way to batch, number of sequences and timed repeat.
    "throughput": {
        "run": "string",
        "criterion": "string",  # exit criterion; fixed: the same number of loop steps for all tokens
        "threshold": "float64",  # of the criterion, τ; for fixed, the number of loop steps
        "batching": "string",  # refilled: a token that exits makes room at once; slowest: all wait for the last one
        "sequences": "int32",  # decoded together
        "repeat": "int32",  # number of the timed repeat
        "tokens": "int64",  # that were decoded while all sequences were in flight
        "tokens_per_second": "float64",  # of all sequences together
        "latency_ms": "float64",  # between two tokens of one sequence, median
        "latency_high_ms": "float64",  # the same, 95 % quantile
        "load_average": "float64",  # of the machine, over the last minute
        "cpus": "int32",  # cores that the job may use
        "threads": "int32",  # of PyTorch
    },
    # The same per group.
    "throughput_loops": {
        "run": "string",
        "criterion": "string",
        "threshold": "float64",
        "batching": "string",
        "sequences": "int32",
        "repeat": "int32",
        "group": "string",
        "evaluations": "float64",  # mean calls of f per token
    },
    # One row per (model, seed), and one per model for the mean over seeds: held-out cross-entropy of the looped model
    # at train.held_out_loops, of models without loops, and of the untrained looped model. Intervals are of 95 %.
    "controls": {
        "run": "string",
        "model": "string",  # looped; parameters, flops: without loops, with as many of them; untrained
        "seed": "int64",  # null: mean over seeds
        "seeds": "int32",  # number of seeds that the row is about
        "layers": "int32",
        "parameters": "int64",
        "flops": "float64",  # of training, per token, at the mean loop count
        "iteration": "int64",
        "tokens": "int64",
        "documents": "int64",
        "ce": "float64",  # nats per token
        "ce_low": "float64",  # over documents
        "ce_high": "float64",  # over documents
        "difference": "float64",  # ce minus that of the looped model with the same seed, on the same documents
        "difference_low": "float64",  # over documents, and in the row of the mean also over seeds
        "difference_high": "float64",  # over documents, and in the row of the mean also over seeds
        "documents_low": "float64",  # of the difference, over documents alone
        "documents_high": "float64",  # of the difference, over documents alone
        "seeds_low": "float64",  # of the difference, over seeds alone; null for one seed
        "seeds_high": "float64",  # of the difference, over seeds alone; null for one seed
    },
    # Starts of the projection: one row per (start, seed, checkpoint, group, measure), and the same over all seeds.
    "starts": {
        "share": "float64",  # of the state at the start of the projection; null for random weights
        "state_init": "string",  # first state of a loop
        "sandwich": "string",  # position of the second norm
        "seed": "string",  # or "all": the mean over the seeds
        "iteration": "int64",
        "group": "string",  # or "all": the whole model
        "measure": "string",  # settled_cosine, or held_out_loss in nats per token
        "value": "float64",  # null if it cannot be measured
        "low": "float64",  # 95 % interval over documents, and over seeds for "all"
        "high": "float64",  # 95 % interval
        "verdict": "string",  # of a settled cosine, by the bounds of claim 4
        "reason": "string",  # of the verdict, or why there is no value
    },
    # The page results/explore.html shows the beginning of one held-out sequence. One row per token.
    "explore_tokens": {
        "run": "string",
        "sequence": "int32",
        "document": "int32",  # held-out document with the first token of the sequence
        "position": "int32",
        "token": "string",
        "next_token": "string",  # that follows in the text
    },
    # One row per (token, place): the embedding, each unlooped layer, and x^0 … x^K of each group, K = exits.max_loops.
    # Row k has the loop step from x^k to x^{k+1}, as in "trajectories". Null is what a place does not have.
    "explore_states": {
        "run": "string",
        "iteration": "int64",
        "place": "int32",  # 0, 1, … in the order of the model
        "stage": "string",  # "embedding", "layer" or "loop"
        "layer": "int32",
        "group": "string",
        "k": "int32",
        "position": "int32",
        "pc1": "float32",  # coordinates in the principal components of all states of the sequence
        "pc2": "float32",
        "pc3": "float32",
        "state_norm": "float32",
        "step_norm": "float32",
        "cosine": "float32",  # with the update before; null below the rounding floor
        "prediction": "string",  # most likely next token if all tokens leave the group with x^k
        "probability": "float32",  # of that token
    },
    # One row per principal component.
    "explore_components": {"run": "string", "iteration": "int64", "component": "int32", "share": "float64"},
    # One row per (criterion, threshold, group, token).
    "explore_exits": {
        "run": "string",
        "iteration": "int64",
        "criterion": "string",
        "threshold": "float64",
        "group": "string",
        "position": "int32",
        "loop_steps": "int32",  # behind the state with which the token leaves
        "evaluations": "int32",  # calls of f; exits.max_loops if the criterion did not let the token go before
    },
    # One row per quantity and setting of `make gpu-check`.
    "gpu_check": {
        "section": "string",
        "quantity": "string",
        "setting": "string",
        "value": "float64",  # null if it was not measured
        "unit": "string",
        "verdict": "string",  # of a check; "not measured" with the reason in `note`
        "note": "string",
        "device": "string",
        "torch": "string",  # version
        "commit": "string",
    },
    # One row per measured quantity; the last row of a claim, scope "all", is the verdict on the claim.
    "claims": {
        "run": "string",
        "claim": "int32",  # number of the claim
        "scope": "string",  # group, boundary, reference state or exit criterion
        "statement": "string",  # what the claim says
        "where": "string",  # in the paper
        "quantity": "string",  # what was measured
        "value": "float64",  # infinite if a length is not reached, null if nothing was measured
        "low": "float64",  # 95 % bootstrap interval
        "high": "float64",  # 95 % bootstrap interval
        "bounds": "string",  # empty for a number given for comparison, without a verdict
        "verdict": "string",  # holds, does not hold, cannot be judged, or not asked
        "reason": "string",  # of the verdict
    },
    # The claims over seeds. One row per measured quantity and seed, and one for the mean over seeds; the last rows of a
    # claim, scope "all", are the verdicts on the claim.
    "seeds": {
        "run": "string",
        "claim": "int32",  # number of the claim
        "scope": "string",  # group, boundary, reference state or exit criterion
        "quantity": "string",  # what was measured
        "seed": "string",  # of the run, or "mean": over all seeds, the geometric mean of ratios
        "value": "float64",  # infinite if a length is not reached, null if nothing was measured
        "low": "float64",  # 95 % interval: of one seed over documents or prompts, of the mean over documents and seeds
        "high": "float64",  # its other end
        "deviation": "float64",  # standard deviation between seeds; of ratios, that of the logarithm; only of the mean
        "document_error": "float64",  # standard error within one seed, due to the choice of documents; only of the mean
        "bounds": "string",  # empty for a number given for comparison, without a verdict
        "verdict": "string",  # holds, does not hold, cannot be judged, not asked, or "per run" for the mean of times
        "reason": "string",  # of the verdict
    },
}


def columns(table: str) -> dict[str, str]:
    """Declared column names and dtypes of `table`, without the measures of the tables in `MEASURED`."""
    return dict(COLUMNS[table])


@contextmanager
def writing(
    table: str, path: str | Path, units: Mapping[str, str] | None = None, metadata: Mapping[str, str] | None = None
) -> Iterator:
    """Yield a function that appends one batch of columns (name -> array) to the table at `path`.

    Batches are written as they arrive, so memory does not grow with the table. The file appears under its
    name only if the block ends without an exception.

    Args:
        table: Name of the table.
        path: The parquet file.
        units: For the tables in `MEASURED`, the measures in the order of their columns: name -> unit. The unit
            is stored in the metadata of the parquet field, unless it is empty.
        metadata: Further keys and values of the metadata of the file.

    Raises:
        ValueError: A batch has other columns, or measures are missing or not possible for the table.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(table, units or {}).with_metadata(metadata)
    # Measured floats rarely repeat: a dictionary of them would cost ten times the writing itself.
    repeating = [field.name for field in schema if not pa.types.is_floating(field.type)]
    options = {"compression": "zstd", "use_dictionary": repeating}
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, **options) as writer:

        def append(batch: Mapping[str, Iterable]) -> None:
            if set(batch) != set(schema.names):
                raise ValueError(f"table {table}: columns {sorted(batch)} given, {sorted(schema.names)} expected")
            arrays = [pa.array(batch[field.name], type=field.type, from_pandas=True) for field in schema]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))

        yield append


def write(table: str, frame: pd.DataFrame, path: str | Path) -> None:
    """Write `frame`, which must have the columns of `table`, to `path` in one step.

    Further columns of a table in `MEASURED` are measures, in the order of the frame and without units.
    """
    measures = [name for name in frame.columns if name not in COLUMNS[table]] if table in MEASURED else ()
    with writing(table, path, dict.fromkeys(measures, "")) as append:
        append({name: frame[name] for name in frame.columns})


def read(table: str, path: str | Path) -> pd.DataFrame:
    """Read `path`; raise InputError unless its columns are those of `table`."""
    import pandas as pd

    open_file(table, path).close()
    return pd.read_parquet(path)


def metadata(path: str | Path) -> dict[str, str]:
    """Keys and values of the metadata of a file. Raises OSError or ValueError for one that cannot be read."""
    import pyarrow.parquet as pq

    return {key.decode(): value.decode() for key, value in (pq.read_schema(path).metadata or {}).items()}


def open_file(table: str, path: str | Path) -> pq.ParquetFile:
    """Open `path` without reading its rows; raise InputError unless its columns are those of `table`."""
    import pyarrow.parquet as pq

    if table not in COLUMNS:
        raise InputError(f"table: found {table!r}, expected one of {', '.join(COLUMNS)}{did_you_mean(table, COLUMNS)}.")

    try:
        file = pq.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a parquet table ({first_line(error)}).") from error
    _check_columns(table, file.schema_arrow, path)
    return file


def _check_columns(table: str, schema: pa.Schema, path: str | Path) -> None:
    declared = list(COLUMNS[table])
    further = schema.names[len(declared) :]
    # a table in MEASURED has the declared columns and at least one measure, any other table nothing else
    if schema.names[: len(declared)] != declared or bool(further) != (table in MEASURED):
        expected = ", ".join(declared) + (", and at least one measure" if table in MEASURED else "")
        raise InputError(
            f"{path}: found the columns {', '.join(schema.names)}; expected those of the table '{table}': {expected}."
        )
    for name in further:
        if schema.field(name).type != _arrow_type(MEASURE_TYPE):
            raise InputError(
                f"{path}: found the measure '{name}' with type {schema.field(name).type}, expected {MEASURE_TYPE}."
            )


def _schema(table: str, units: Mapping[str, str]) -> pa.Schema:
    import pyarrow as pa

    if bool(units) != (table in MEASURED):
        raise ValueError(f"table {table}: measures {list(units)} given, {'none' if units else 'at least one'} expected")
    fields = [pa.field(name, _arrow_type(dtype)) for name, dtype in COLUMNS[table].items()]
    measure = _arrow_type(MEASURE_TYPE)
    fields += [pa.field(name, measure, metadata={"unit": unit} if unit else None) for name, unit in units.items()]
    return pa.schema(fields)


def _arrow_type(dtype: str) -> pa.DataType:
    import pyarrow as pa

    return {"bool": pa.bool_(), "string": pa.string()}.get(dtype) or pa.type_for_alias(dtype)

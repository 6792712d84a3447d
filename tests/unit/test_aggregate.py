"""Tables per token become tables of statistics, and segment logs one training log."""

import numpy as np
import pandas as pd
import pytest

from twoscale import tables
from twoscale.base import InputError
from twoscale.dynamics import aggregate

# "turning" is no measure of ours: aggregation takes the measures from the file
LOOP_MEASURES = ("state_norm", "step_norm", "cosine", "acceleration", "turning")


def trajectory_rows(iteration, groups=("4", "5-6"), loops=3, tokens=5, seed=0):
    """A random "trajectories" frame; cosine is undefined at k = 0 and, like all steps, in the last
    state.
    """
    rng = np.random.default_rng(seed)
    keys = {"group": groups, "position": range(tokens), "k": range(loops + 1)}
    frame = pd.MultiIndex.from_product(keys.values(), names=keys.keys()).to_frame(index=False)
    frame = frame.assign(iteration=iteration, sequence=0, document=0)
    for measure in LOOP_MEASURES:
        frame[measure] = rng.lognormal(size=len(frame)).astype("float32")
        if measure != "state_norm":
            frame.loc[frame["k"] == loops, measure] = np.nan
    frame.loc[frame["k"] == 0, "cosine"] = np.nan
    return frame[[*tables.columns("trajectories"), *LOOP_MEASURES]]


def write(table, frame, path):
    tables.write(table, frame, path)
    return path


def training_rows(first, last):
    iterations = np.arange(first, last + 1)
    rows = {name: np.ones(len(iterations)) for name in tables.columns("training")}
    return pd.DataFrame(rows | {"iteration": iterations, "tokens_seen": iterations * 10})


def training_loop_rows(first, last, groups=("10", "4")):
    iterations = np.repeat(np.arange(first, last + 1), len(groups))
    return pd.DataFrame(
        {
            "iteration": iterations,
            "group": list(groups) * (last + 1 - first),
            "loops": iterations * 2,
        }
    )


def test_statistics_agree_with_a_plain_group_by(tmp_path):
    frame = trajectory_rows(10, tokens=40).sample(frac=1, random_state=1)
    metrics = aggregate.summarise(
        "loop_metrics", [write("trajectories", frame, tmp_path / "a.parquet")], "demo"
    )
    for measure in LOOP_MEASURES:
        expected = frame.astype({measure: "float64"}).groupby(["group", "k"])[measure]
        statistics = metrics[metrics["measure"] == measure].set_index(["group", "k"]).sort_index()
        np.testing.assert_allclose(statistics["mean"], expected.mean(), rtol=1e-12)
        np.testing.assert_allclose(statistics["std"], expected.std(ddof=0), rtol=1e-12)
        np.testing.assert_allclose(statistics["q95"], expected.quantile(0.95), rtol=1e-12)
        np.testing.assert_array_equal(statistics["count"], expected.count())


def test_a_measure_that_no_token_has_keeps_its_row_with_null_statistics(tmp_path):
    path = write("trajectories", trajectory_rows(10, loops=3, tokens=5), tmp_path / "a.parquet")
    metrics = aggregate.summarise("loop_metrics", [path], "demo")
    last = metrics[
        (metrics["k"] == 3) & (metrics["measure"] == "step_norm") & (metrics["group"] == "4")
    ].iloc[0]
    assert (last["count"], last["nulls"]) == (0, 5)
    assert np.isnan(last["mean"])
    tables.write("loop_metrics", metrics, tmp_path / "metrics.parquet")
    assert len(tables.read("loop_metrics", tmp_path / "metrics.parquet")) == 2 * 4 * len(
        LOOP_MEASURES
    )


def test_iterations_rise_groups_keep_the_order_of_the_file_and_k_rises(tmp_path):
    late = write("trajectories", trajectory_rows(20, groups=("10", "4")), tmp_path / "late.parquet")
    early = write(
        "trajectories", trajectory_rows(0, groups=("10", "4")), tmp_path / "early.parquet"
    )
    metrics = aggregate.summarise("loop_metrics", [late, early], "demo")
    keys = list(
        metrics[["iteration", "group", "k"]].drop_duplicates().itertuples(index=False, name=None)
    )
    assert keys == [
        (iteration, group, k) for iteration in (0, 20) for group in ("10", "4") for k in range(4)
    ]
    assert list(metrics["measure"][: len(LOOP_MEASURES)]) == list(LOOP_MEASURES)


def test_means_of_sequences_average_to_the_mean_over_tokens(tmp_path):
    frame = trajectory_rows(10, tokens=40)
    frame["sequence"] = frame["position"] % 3
    frame["document"] = 5 - frame["sequence"] // 2
    frame.loc[frame["position"] == 3, "cosine"] = np.nan
    path = write("trajectories", frame, tmp_path / "a.parquet")
    sequences, metrics = (
        aggregate.summarise("loop_sequences", [path], "demo"),
        aggregate.summarise("loop_metrics", [path], "demo"),
    )
    assert set(sequences["measure"]) == {"state_norm", "step_norm", "cosine", "acceleration"}
    assert set(zip(sequences["sequence"], sequences["document"], strict=True)) == {
        (0, 5),
        (1, 5),
        (2, 4),
    }
    keys = ["iteration", "group", "k", "measure"]
    total = sequences.assign(total=sequences["mean"].fillna(0) * sequences["count"]).groupby(keys)
    summed = total[["total", "count", "nulls"]].sum()
    expected = metrics.set_index(keys).loc[summed.index]
    np.testing.assert_array_equal(summed[["count", "nulls"]], expected[["count", "nulls"]])
    known = summed["count"] > 0
    np.testing.assert_allclose(
        (summed["total"] / summed["count"])[known], expected["mean"][known], rtol=1e-12
    )
    tables.write("loop_sequences", sequences, tmp_path / "sequences.parquet")
    assert len(sequences) == 2 * 4 * 3 * 4  # groups, k, sequences, measures


def test_drift_has_a_mean_per_sequence_and_its_document(tmp_path):
    frame = pd.DataFrame(
        {
            "iteration": 3,
            "sequence": [0, 1, 0],
            "document": [7, 2, 7],
            "position": [0, 0, 1],
            "boundary": "4->5-6",
        }
        | {"reference_state": "final", "jump": 1.0, "dlr": [1.0, 7.0, 2.0], "jump_over_path": 0.5}
    )
    drift = aggregate.summarise(
        "drift_sequences", [write("token_drift", frame, tmp_path / "d.parquet")], "demo"
    )
    dlr = drift[drift["measure"] == "dlr"]
    assert list(dlr["mean"]) == [1.5, 7.0]
    assert list(dlr["count"]) == [2, 1]
    assert list(dlr["document"]) == [7, 2]
    assert set(drift["measure"]) == {"dlr", "jump_over_path"}
    tables.write("drift_sequences", drift, tmp_path / "sequences.parquet")


def test_a_model_without_groups_gives_an_empty_table(tmp_path):
    path = write("trajectories", trajectory_rows(1)[:0], tmp_path / "a.parquet")
    metrics = aggregate.summarise("loop_metrics", [path], "demo")
    tables.write("loop_metrics", metrics, tmp_path / "metrics.parquet")
    assert tables.read("loop_metrics", tmp_path / "metrics.parquet").empty


def test_a_file_without_rows_does_not_hide_those_after_it(tmp_path):
    paths = [
        write("trajectories", rows, tmp_path / f"{number}.parquet")
        for number, rows in enumerate(
            (trajectory_rows(1)[:0], trajectory_rows(2), trajectory_rows(3))
        )
    ]
    assert set(aggregate.summarise("loop_metrics", paths, "demo")["iteration"]) == {2, 3}


REFUSED = [  # table, the rows of its files, what the sentence names
    *(
        (
            "training",
            [training_rows(1, 3), training_rows(first, 8)],
            ("1.parquet", f"iteration {first}", "iteration 4"),
        )
        for first in (3, 5)
    ),
    (
        "training_loops",
        [training_loop_rows(1, 3), training_loop_rows(4, 6, ("5",))],
        ("1.parquet", "iteration 7"),
    ),
]


@pytest.mark.parametrize(("table", "frames", "parts"), REFUSED)
def test_files_that_do_not_fit_together_are_refused_in_one_sentence(table, frames, parts, tmp_path):
    paths = [
        write(table, frame, tmp_path / f"{number}.parquet") for number, frame in enumerate(frames)
    ]
    with pytest.raises(InputError) as error:
        aggregate.joined(table, paths)
    assert "\n" not in str(error.value)
    assert all(part in str(error.value) for part in parts)


TRAINING = {"training": training_rows, "training_loops": training_loop_rows}


@pytest.mark.parametrize("table", TRAINING)
def test_training_segments_are_joined_in_the_order_of_iterations(table, tmp_path):
    rows = TRAINING[table]
    second = write(table, rows(4, 6), tmp_path / "b.parquet")
    first = write(table, rows(1, 3), tmp_path / "a.parquet")
    log = aggregate.joined(table, [second, first])
    pd.testing.assert_frame_equal(log, rows(1, 6), check_dtype=False)
    assert list(log["iteration"].unique()) == [1, 2, 3, 4, 5, 6]
    tables.write(table, log, tmp_path / "log.parquet")


def test_a_model_without_groups_has_no_training_loops(tmp_path):
    paths = [
        write("training_loops", training_loop_rows(i, i, ()), tmp_path / f"{i}.parquet")
        for i in (1, 2)
    ]
    assert aggregate.joined("training_loops", paths).empty

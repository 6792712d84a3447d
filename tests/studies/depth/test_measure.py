"""The lens and the depth card measure what the plain forward pass and its trace have."""

import itertools
import weakref

import numpy as np
import pandas as pd
import pytest
import torch

from tests import small
from tests.held_out import CHECKPOINT, CHOSEN, assert_numbered
from twoscale import tables
from twoscale.base import InputError
from twoscale.dynamics import measures, vectors
from twoscale.exits import passes
from twoscale.model.loss import cross_entropies, entropies
from twoscale.model.noise import EvaluationNoise
from twoscale.studies.depth.measure import measure_batch, measure_lens

SEED, LENGTH, VOCABULARY = 5, 8, 37
RANDOM = torch.Generator().manual_seed(2)
TEXT = small.held_out(
    *(torch.randint(VOCABULARY, (3, LENGTH), generator=RANDOM) for _ in range(2)),
    sequences=[4, 0, 7],
)
STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)
COUNTS = (1, 3, 7)
STRUCTURES = {
    "paper": {},
    "one core": {"groups": ((2, 3),)},
    "loops at both ends": {"groups": ((1,), (3, 4))},
    "noise at every step": {"loop_noise": 0.3},
    "from the input, normed exit": {"state_init": "input", "exit_norm": "final_norm"},
    "no injection": {
        "injection": "none",
        "state_init": "input",
        "loop_norm": True,
        "groups": ((3, 4),),
    },
}
structures = pytest.mark.parametrize("changes", STRUCTURES.values(), ids=STRUCTURES)


def checkpoint(**changes):
    return small.perturbed(SEED, iteration=30, **changes)


def lens_of(subject, text=TEXT, other_loops=3, batch_size=2):
    return pd.DataFrame(measure_lens(subject, text, STEPS, other_loops, batch_size))


def logits_at(subject, loops):
    """Of the plain forward pass; `loops` of each group, or the same number of all."""
    groups = subject.model.config.groups
    noise = EvaluationNoise(SEED, TEXT.sequences, LENGTH, subject.model.config.state_std)
    return subject.model(
        TEXT.inputs, [loops] * len(groups) if isinstance(loops, int) else loops, noise
    )


def cross_entropies_at(subject, loops):
    return cross_entropies(logits_at(subject, loops), TEXT.targets).mean(1).tolist()


# --- lens -----------------------------------------------------------------------------------------


@structures
def test_a_state_predicts_what_the_model_predicts_with_as_many_loops_of_its_group(changes):
    subject = checkpoint(**changes)
    labels = subject.model.config.group_labels
    found = lens_of(subject)
    for group, label in enumerate(labels):
        for k in (0, 1, 4, 24):
            loops = [k if other == group else 3 for other in range(len(labels))]
            rows = found[(found["group"] == label) & (found["k"] == k)]
            assert rows["sequence"].tolist() == list(TEXT.sequences)
            assert rows["ce"].tolist() == pytest.approx(
                cross_entropies_at(subject, loops), rel=1e-9
            )


def test_the_shares_of_right_and_lost_predictions_follow_the_paths_of_the_tokens(tmp_path):
    """Against a loop over tokens and loop steps, from logits of the plain forward pass."""
    subject = checkpoint(groups=((2, 3),))
    logits = {k: logits_at(subject, k) for k in STEPS}
    # targets that are predicted at some loop steps only
    targets = torch.stack([logits[STEPS[1 + t % 6]][:, t].argmax(-1) for t in range(LENGTH)], dim=1)
    rows = lens_of(subject, small.held_out(TEXT.inputs, targets, TEXT.sequences)).assign(
        run="trial"
    )
    tables.write("lens", rows, tmp_path / "lens.parquet")
    right = {k: logits[k].argmax(-1) == targets for k in STEPS}
    for i, sequence in enumerate(TEXT.sequences):
        found = rows[rows["sequence"] == sequence].set_index("k")
        for k in STEPS:
            earlier = [n for n in STEPS if 0 < n < k]
            lost = [
                any(right[n][i, t] for n in earlier) and not right[k][i, t] for t in range(LENGTH)
            ]
            since = [bool(right[3][i, t] and not right[k][i, t]) for t in range(LENGTH)]
            shares = np.mean(lost) if k else np.nan, np.mean(since) if k > 3 else np.nan
            expected = (right[k][i].double().mean().item(), *shares)
            assert found.loc[k, ["right", "lost", "lost_since_mean"]].tolist() == pytest.approx(
                expected, nan_ok=True
            )
    assert rows["lost"].max() > 0, "the case has to have tokens that are lost"
    assert rows["lost_since_mean"].max() > 0


def test_the_batch_and_the_size_of_the_parts_change_nothing(monkeypatch):
    subject = checkpoint()
    lens, cards = lens_of(subject, batch_size=3), measure_batch(subject, TEXT, COUNTS)
    monkeypatch.setattr(passes, "LOGITS_AT_A_TIME", 1)  # one token at a time
    parts = [measure_batch(subject, TEXT[i : i + 1], COUNTS) for i in range(3)]
    pairs = [(["sequence", "group", "k"], lens, lens_of(subject, batch_size=1))]
    for table, keys in enumerate((["loops", "sequence"], ["group", "k", "sequence", "measure"])):
        pairs.append(
            (
                keys,
                pd.DataFrame(cards[table]),
                pd.concat([pd.DataFrame(part[table]) for part in parts]),
            )
        )
    for keys, *frames in pairs:
        pd.testing.assert_frame_equal(
            *(frame.sort_values(keys, ignore_index=True) for frame in frames), rtol=1e-9
        )


def test_the_table_has_the_numbers_of_the_sequences_and_of_their_documents():
    assert_numbered(measure_lens(CHECKPOINT, CHOSEN, STEPS, 3, 2))


# --- depth card -----------------------------------------------------------------------------------


@structures
def test_quality_is_that_of_the_plain_forward_pass_with_as_many_loops(changes):
    subject = checkpoint(**changes)
    found, previous = pd.DataFrame(measure_batch(subject, TEXT, COUNTS)[0]), None
    for loops in COUNTS:
        logits, of_count = logits_at(subject, loops), found[found["loops"] == loops]
        flips = np.nan * torch.ones(3, 1) if previous is None else logits.argmax(-1) != previous
        means = {
            "ce": cross_entropies(logits, TEXT.targets),
            "entropy": entropies(logits),
            "flips": flips.double(),
        }
        trained = (
            logits_at(subject, subject.model.config.typical_loops).argmax(-1)
            if subject.model.config.groups
            else None
        )
        means["agreement"] = (
            torch.ones(3, 1) if trained is None else (logits.argmax(-1) == trained).double()
        )
        assert of_count["sequence"].tolist() == list(TEXT.sequences)
        for name, values in means.items():
            assert of_count[name].tolist() == pytest.approx(values.mean(1).tolist(), nan_ok=True)
        previous = logits.argmax(-1)
    assert found["flips"].max() > 0, "the case has to have predictions that flip"


@structures
def test_states_are_those_of_the_trace_at_the_largest_loop_count(changes):
    subject = checkpoint(**changes)
    found, last = pd.DataFrame(measure_batch(subject, TEXT, COUNTS)[1]), COUNTS[-1]
    traced = subject.model.trace(
        TEXT.inputs, [last] * len(subject.model.config.groups), subject.noise(TEXT.sequences)
    )
    for stage in (stage for stage in traced if stage.stage and stage.stage.is_group):
        label = subject.model.config.group_labels[stage.stage.group]
        own = found[found["group"] == label].set_index(["measure", "k", "sequence"]).sort_index()
        for k in range(last):
            before, after = stage.states[k], stage.states[k + 1]
            directions = [state / vectors.norm(state)[..., None] for state in (before, after)]
            expected = {
                "state_norm": vectors.norm(before),
                "step_norm": vectors.norm(after - before),
                "direction_step_norm": vectors.norm(directions[1] - directions[0]),
            }
            for i, sequence in enumerate(TEXT.sequences):
                for name, values in expected.items():
                    assert own.loc[(name, k, sequence), "mean"] == pytest.approx(
                        values[i].mean().item()
                    )
        cosines = own.loc["cosine"]
        assert cosines["mean"].isna().groupby("k").all().tolist() == [True] + [False] * last
        assert set(cosines.loc[0, "nulls"]) == {LENGTH}
        assert (
            own.loc[("step_norm", last), "count"].tolist() == [LENGTH] * 3
        )  # one loop step more is taken


def test_a_state_that_is_not_finite_is_refused_with_its_place():
    subject = checkpoint()
    next(subject.model.groups[0].parameters()).data.fill_(torch.nan)
    with pytest.raises(
        InputError,
        match=r"^group \S+, loop step 1, sequence 4, position 0: found a state of norm nan",
    ):
        measure_batch(subject, TEXT, COUNTS)


def test_few_states_are_held_at_a_time():
    alive, most = [], []

    def counted():
        for k in range(50):
            state = torch.full((2, 3), float(k))
            alive.append(weakref.ref(state))
            yield state

    for _ in measures.loop_steps(counted(), itertools.repeat(torch.empty(0))):
        most.append(sum(reference() is not None for reference in alive))
    assert (len(most), max(most)) == (50, 2)

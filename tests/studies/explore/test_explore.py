"""What results/explore.html shows is what the engine computes: predictions, exits and the beginning of a sequence."""

import pandas as pd
import pytest
import torch

from tests import configs, small
from twoscale import tables
from twoscale.config import ExitsConfig
from twoscale.data.tokenizer import byte_level
from twoscale.dynamics.state_paths import project
from twoscale.exits.benchmark import evaluate_parallel
from twoscale.exits.criteria import Fixed
from twoscale.model.transformer import initialise
from twoscale.studies.explore import measure as explore

LOOPS, LENGTH = 4, 8
SIZES = {"vocab_size": 257, "hidden_size": 16}  # the ids of bytes
SEQUENCE = small.held_out(torch.randint(257, (1, LENGTH), generator=torch.Generator().manual_seed(3)), sequences=[5])
TOKENIZER = byte_level()
EXITS = ExitsConfig(max_loops=LOOPS, criteria={"fixed": {"thresholds": [2]}, "acceleration": {"thresholds": [1e9]}})


def checkpoint(**changes):
    model = initialise(small.model_config(**SIZES | changes), 1).double().requires_grad_(False)
    return small.checkpoint(model, seed=9, iteration=30)


def states_of(checkpoint, sequence=SEQUENCE, loops=LOOPS) -> pd.DataFrame:
    return explore.trace_states(checkpoint, sequence, loops, TOKENIZER)[0]


def predicted(checkpoint, loops) -> list[str]:
    """Text of the most likely next tokens after the same number of loop steps in every group."""
    logits, _ = evaluate_parallel(checkpoint, Fixed(loops), SEQUENCE, LOOPS)
    return [explore.text_of(TOKENIZER, token) for token in logits[0].argmax(-1).tolist()]


@pytest.mark.parametrize("changes", [{}, {"loop_noise": 0.3}, {"exit_norm": "final_norm"}], ids=str)
def test_the_last_state_of_every_group_predicts_what_the_model_predicts(changes):
    subject = checkpoint(**changes)
    states = states_of(subject)
    for group in ("2", "3"):
        rows = states.query(f"group == '{group}' and k == {LOOPS}").sort_values("position")
        assert rows["prediction"].tolist() == predicted(subject, LOOPS)


def test_a_state_of_the_only_group_predicts_what_the_model_predicts_after_as_many_loop_steps(monkeypatch):
    subject = checkpoint(groups=((2, 3),), state_init="noise")
    whole = states_of(subject)
    for k in range(1, LOOPS + 1):
        assert whole.query(f"k == {k}").sort_values("position")["prediction"].tolist() == predicted(subject, k)
    monkeypatch.setattr(explore, "LOGITS_AT_A_TIME", 1)  # one state at a time
    assert states_of(subject)["prediction"].equals(whole["prediction"])


def test_the_beginning_of_a_sequence_has_the_same_measures_and_predictions_as_in_the_whole():
    subject, columns = checkpoint(), ["step_norm", "cosine", "probability"]
    part = states_of(subject, explore.beginning(SEQUENCE, 3))
    whole = states_of(subject).query("position < 3").reset_index(drop=True)
    assert part["prediction"].equals(whole["prediction"])
    torch.testing.assert_close(
        *(torch.tensor(frame[columns].to_numpy(float)) for frame in (part, whole)), equal_nan=True
    )


def test_every_place_of_the_model_has_a_row_and_its_distances_are_at_most_those_of_the_states():
    states = states_of(checkpoint())
    sites = states.query("position == 0").sort_values("site")
    assert sites["stage"].tolist() == ["embedding", "layer", *["loop"] * 2 * (LOOPS + 1), "layer"]
    assert sites["k"].dropna().tolist() == [*range(LOOPS + 1)] * 2
    steps = sites.query("group == '3'")[["pc1", "pc2", "pc3"]].diff().pow(2).sum(axis=1, skipna=True).pow(0.5)
    norms = sites.query("group == '3'")["step_norm"]
    assert (steps.to_numpy()[1:] <= norms.to_numpy()[:-1] * (1 + 1e-5)).all()


def test_exits_are_those_of_the_engine():
    rows = pd.DataFrame(explore.exit_rows(checkpoint(), SEQUENCE, EXITS))
    assert len(rows) == 2 * 2 * LENGTH  # criteria, groups, tokens
    fixed = rows.query("criterion == 'fixed'")
    assert set(fixed["loop_steps"]) == set(fixed["evaluations"]) == {2}
    # any acceleration is small enough: two comparisons, at the updates 1 and 2; the last update is discarded
    _, counts = evaluate_parallel(checkpoint(), explore.make_criteria(EXITS)["acceleration", 1e9], SEQUENCE, LOOPS)
    found = rows.query("criterion == 'acceleration'")
    assert found["loop_steps"].tolist() == counts.loop_steps[:, 0].flatten().tolist()
    assert found["evaluations"].tolist() == counts.evaluations[:, 0].flatten().tolist()


def test_the_rows_fit_their_tables(tmp_path):
    subject = checkpoint(hidden_size=2, num_heads=1)  # fewer channels than components
    states, components = explore.trace_states(subject, SEQUENCE, LOOPS, TOKENIZER)
    frames = {
        "tokens": pd.DataFrame(explore.token_rows(SEQUENCE, TOKENIZER)),
        "states": states,
        "components": components,
        "exits": pd.DataFrame(explore.exit_rows(subject, SEQUENCE, EXITS)),
    }
    for name, frame in frames.items():
        tables.write(f"explore_{name}", frame.assign(run="small"), tmp_path / name)
    stored = tables.read("explore_states", tmp_path / "states")
    assert stored.query("stage != 'loop'")[["group", "k", "step_norm", "prediction"]].isna().all(axis=None)
    assert stored["layer"].dropna().unique().tolist() == [1, 4]
    assert components["share"].sum() == pytest.approx(1)
    assert (stored["pc3"] == 0).all()


def test_a_part_of_a_character_is_a_replacement_character():
    assert explore.text_of(TOKENIZER, ord("a")) == "a"
    assert explore.text_of(TOKENIZER, 0xC3) == "\N{REPLACEMENT CHARACTER}"
    assert explore.text_of(TOKENIZER, TOKENIZER.end_of_text) == "<|endoftext|>"


def test_all_components_together_keep_distances():
    values = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    coordinates, shares = project(values, 4)
    flat, projected = (torch.from_numpy(x).flatten(0, 1) for x in (values, coordinates))
    torch.testing.assert_close(torch.pdist(projected), torch.pdist(flat))
    assert shares.sum() == pytest.approx(1)
    assert list(shares) == sorted(shares, reverse=True)


def test_a_sequence_without_trajectories_is_refused():
    configs.assert_refused("explore.sequence", "16", explore={"sequence": 16})

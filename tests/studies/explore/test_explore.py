"""What results/explore.html shows is what the engine computes: predictions, exits and the beginning of a sequence."""

import html

import pandas as pd
import pytest
import torch

from tests import small
from tests.studies.explore.samples import LOOPS as SHOWN_LOOPS
from tests.studies.explore.samples import SITES, TOKENS, explore_tables
from twoscale import tables
from twoscale.config import ExitsConfig
from twoscale.data.tokenizer import byte_level
from twoscale.exits.criteria import Fixed
from twoscale.exits.evaluation import evaluate_parallel
from twoscale.model.transformer import initialise
from twoscale.studies.explore import draw
from twoscale.studies.explore import measure as explore

LOOPS, LENGTH = 4, 8
SIZES = {"vocab_size": 257, "hidden_size": 16}  # the ids of bytes
SEQUENCE = small.held_out(torch.randint(257, (1, LENGTH), generator=torch.Generator().manual_seed(3)), sequences=[5])
TOKENIZER = byte_level()
SHOWN = ["a", TOKENS[1], "tab→and⏎", "\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}"]
EXITS = ExitsConfig(max_loops=LOOPS, criteria={"fixed": {"thresholds": [2]}, "acceleration": {"thresholds": [1e9]}})


def checkpoint(**changes):
    model = initialise(small.model_config(**SIZES | changes), 1).double().requires_grad_(False)
    return small.checkpoint(model, seed=9, iteration=30)


def states_of(checkpoint, sequence=SEQUENCE, loops=LOOPS) -> pd.DataFrame:
    return explore.trace_states(checkpoint, sequence, loops, TOKENIZER)


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


def test_every_place_of_the_model_has_a_row_that_fits_the_table(tmp_path):
    states = states_of(checkpoint()).assign(run="small")
    tables.write("explore_states", states, tmp_path / "states")
    stored = tables.read("explore_states", tmp_path / "states")
    assert stored.query("stage != 'loop'")[["group", "k", "step_norm", "prediction"]].isna().all(axis=None)
    sites = stored.query("position == 0").sort_values("site")
    assert sites["stage"].tolist() == ["embedding", "layer", *["loop"] * 2 * (LOOPS + 1), "layer"]
    assert sites["k"].dropna().tolist() == [*range(LOOPS + 1)] * 2
    # distances in the plane are at most those of the states
    steps = sites.query("group == '3'")[["pc1", "pc2"]].diff().pow(2).sum(axis=1).pow(0.5)
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
    for name in ("loop_steps", "evaluations"):
        assert found[name].tolist() == getattr(counts, name)[:, 0].flatten().tolist()


# --- the page -------------------------------------------------------------------------------------------------------


def test_every_token_is_a_frame_with_its_states_and_predictions():
    frames = draw.figure(**explore_tables(), text="a text").frames
    assert [html.unescape(frame.name) for frame in frames] == [f"{n} {shown}" for n, shown in enumerate(SHOWN)]
    states, path, norms, *_, exits = frames[0].data
    assert norms.y[:-1].tolist() == [1.0, 0.5, 0.25]
    assert [html.unescape(text) for text in path.hovertext] == [f"<i>0.{k}</i>" for k in range(1, SHOWN_LOOPS + 1)]
    assert len(states.x) == len(SITES) - 2  # without x^0 of both groups
    assert exits.x.tolist() == [3, 2 + 2 * (SHOWN_LOOPS + 1) - 1]  # x^1 of the first group, the last of the other


def test_text_of_tokens_is_no_markup_and_controls_are_visible():
    found = explore_tables()
    page = draw.page(draw.figure(**found, text="a text"))
    assert TOKENS[1] not in page
    assert draw.page(draw.figure(found["states"].sample(frac=1), found["exits"], "a text")) == page
    assert draw.shown("naïve 日本 🎉 …") == "naïve 日本 🎉 …"


# --- the rule -------------------------------------------------------------------------------------------------------


@pytest.mark.runs
def test_the_page_shows_the_sequence_of_the_config_and_nothing_is_trained(editable):
    editable.configure(explore={"sequence": 1, "tokens": 8})
    assert editable.plan("explore") == {"extract_explore": 1, "write_explore_page": 1}
    editable.succeed("explore")
    assert editable.plan("explore") == editable.plan() == {}
    states = tables.read("explore_states", editable.root / "results/tiny/explore/states.parquet")
    assert states["sequence"].unique().tolist() == [256]  # the second of those that the run measures
    assert states["position"].nunique() == 8


def test_the_page_is_part_of_the_report_and_not_of_all_and_a_model_without_loops_has_none(fresh):
    assert fresh.plan("report_pages")["write_explore_page"] == 1
    assert "write_explore_page" not in fresh.plan()
    fresh.configure(model={"groups": []})
    done = fresh.run("-n", "explore")
    assert done.returncode != 0
    assert "results/explore.html: run tiny has no looped groups, expected at least 1." in done.stdout + done.stderr

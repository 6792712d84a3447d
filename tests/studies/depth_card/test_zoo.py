"""docs/zoo.md: generated from the kept depth cards; what is fitted predicts what it was fitted on."""

import json

import numpy as np
import pandas as pd
import pytest

from twoscale import tables
from twoscale.base import InputError
from twoscale.studies.depth_card import zoo


def kept(folder, name, overthinking, step, role):
    """Keep measurements of 4 sequences: a loss that rises by `overthinking` from 2 to 16 loops, steps of one length."""
    keys = [{"iteration": 0, "sequence": n, "document": n, "tokens": 8} for n in range(4)]
    rising = {2: 3.0, 4: 3.0 + overthinking / 4, 8: 3.0 + overthinking / 2, 16: 3.0 + overthinking}
    quality = [key | {"loops": k, "ce": ce, "entropy": 2.0, "flips": 0.1} for key in keys for k, ce in rising.items()]
    measures = {"state_norm": 1.0, "step_norm": step, "cosine": 0.5, "direction_step_norm": step}
    states = [key | {"group": "2", "k": k} | measures for key in keys for k in range(17)]
    for kind, rows in (("quality", quality), ("states", states)):
        frame = pd.DataFrame(rows)[list(tables.columns(f"depth_{kind}"))]
        tables.write(f"depth_{kind}", frame, folder / f"{name}.{kind}.parquet")
    zoo.keep(folder / "zoo", name, folder / name, 2)
    return {"name": name, "what": "a test", "role": role}


@pytest.fixture
def folder(tmp_path):
    """Three fitted and two tested models whose overthinking is their step of the direction to the power of 2."""
    steps = {"a": 0.1, "b": 0.2, "c": 0.4, "d": 0.05, "e": 0.8}
    entries = [kept(tmp_path, n, s**2, s, "fit" if n in "abc" else "test") for n, s in steps.items()]
    (tmp_path / "zoo" / zoo.MODELS).write_text(json.dumps(entries))
    return tmp_path / "zoo"


def test_a_law_that_holds_is_found_on_models_that_were_not_fitted(folder):
    best, *_ = zoo.predictions(zoo.models(folder))
    assert "step" in best.name
    assert best.predicted == pytest.approx({"d": 0.05**2, "e": 0.8**2}, rel=1e-3)
    assert best.factor == pytest.approx(1, abs=1e-3)
    assert best.order == 1
    assert "The best is the log of" in zoo.page(zoo.models(folder))


def test_no_prediction_is_claimed_where_the_mean_is_as_good(folder):
    found = zoo.models(folder)
    for model in found:
        if model.role == "test":
            same = model.card["quantity"].eq("ce") & model.card["multiple"].eq(8)
            model.card.loc[same, "value"] = 3.0 + np.prod([0.1, 0.2, 0.4]) ** (2 / 3)
    assert "Nothing predicts" in zoo.page(found)


def test_a_model_is_kept_once_and_has_to_be_measured(folder, tmp_path):
    kept(tmp_path, "a", 0.5, 0.1, "fit")
    card = pd.read_parquet(folder / "depth_card.parquet")
    assert card.groupby("run").size().nunique() == 1
    assert zoo.models(folder)[0].overthinking == pytest.approx(0.5)
    (folder / zoo.MODELS).write_text(json.dumps([{"name": "f"}]))
    with pytest.raises(InputError, match=r"models\.json: found f, expected a model whose depth card was kept"):
        zoo.models(folder)


def test_the_page_is_that_of_the_tables():
    page = (zoo.FOLDER.parent / zoo.PAGE).read_text(encoding="utf-8")
    assert zoo.page(zoo.models(zoo.FOLDER)) == page, "run python -m twoscale.studies.depth_card.zoo"

"""What an engine takes from an exit criterion: a user's file is checked, and so is what its methods
return.
"""

import pytest
import torch

from tests import small
from tests.small import model_config
from twoscale import config
from twoscale.base import InputError
from twoscale.exits import benchmark
from twoscale.exits.benchmark import try_criteria
from twoscale.exits.contract import Decisions, configured_criteria, load_criterion
from twoscale.exits.criteria import CRITERIA, ExitCriterion, make_criterion
from twoscale.exits.decoder import Decoder
from twoscale.exits.parallel import evaluate
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import initialise

SEED = 3
CONTEXT_LENGTH = 8
TOKENS = 6
MODEL = initialise(model_config(hidden_size=16, context_length=CONTEXT_LENGTH), 0).double()


def in_parallel(criterion):
    noise = EvaluationNoise(SEED, [0], CONTEXT_LENGTH)
    evaluate(MODEL, torch.zeros(1, TOKENS, dtype=torch.int64), criterion, 5, noise)


def in_decoding(criterion):
    Decoder(MODEL, criterion, 5, SEED).feed(0)


ENGINES = pytest.mark.parametrize(("run", "tokens"), [(in_parallel, TOKENS), (in_decoding, 1)])


def criterion_that(update=None, start=None):
    """A criterion of the step norm with another `update` or `start`: functions of (step, x_new) and
    of x0.
    """

    class Faulty(ExitCriterion):
        def start(self, x0):
            return {"x": x0} if start is None else start(x0)

        def update(self, state, x_new, readout):
            step = (x_new - state["x"]).norm(dim=-1)
            return (step < 1.0, {"x": x_new}) if update is None else update(step, x_new)

    return Faulty(1.0)


def weighted_that(update):
    criterion = criterion_that(update)
    type(criterion).keeps = "weighted"
    return criterion


# what update returns for (step, x_new), what is found and what expected; {0} is the number of
# tokens
FAULTS = {
    "one number": (
        lambda step, x: (step.norm() < 1, {}),
        r"a bool tensor of shape \(\)",
        r"shape \({0},\)",
    ),
    "statistic": (
        lambda step, x: (step, {}),
        "should_exit a float64 tensor",
        r"a bool tensor of shape \({0},\)",
    ),
    "column": (
        lambda step, x: ((step < 1)[:, None], {}),
        r"shape \({0}, 1\)",
        r"a bool tensor of shape \({0},\)",
    ),
    "nothing": (lambda step, x: None, "nothing", "a pair"),
    "a weight": (
        lambda step, x: (step < 1, {}, step),
        "a value of type tuple",
        r"a pair \(should_exit, state\)",
    ),
}
FAULTY_WEIGHTS = {
    "pair": (
        lambda step, x: (step < 1, {}),
        "a value of type tuple",
        r"a triple \(should_exit, state, weight\)",
    ),
    "nothing": (
        lambda step, x: (step < 1, {}, None),
        "as weight nothing",
        r"a float64 tensor of shape \({0},\)",
    ),
    "column": (
        lambda step, x: (step < 1, {}, step[:, None]),
        r"as weight .*\({0}, 1\)",
        r".* of shape \({0},\)",
    ),
    "float32": (
        lambda step, x: (step < 1, {}, step.float()),
        "as weight a float32 tensor",
        "a float64 tensor",
    ),
}


@ENGINES
@pytest.mark.parametrize(
    ("make", "fault"),
    [(criterion_that, fault) for fault in FAULTS.values()]
    + [(weighted_that, fault) for fault in FAULTY_WEIGHTS.values()],
    ids=[*FAULTS, *(f"weight: {name}" for name in FAULTY_WEIGHTS)],
)
def test_what_update_returns_is_refused_with_what_was_expected(run, tokens, make, fault):
    update, found, expected = fault
    sentence = rf"^exit criterion Faulty\.update returned .*{found}.*, expected .*{expected}.*\.$"
    with pytest.raises(InputError, match=sentence.replace("{0}", f"{tokens}")):
        run(make(update))


@pytest.mark.parametrize(
    "state",
    [lambda x: x, lambda x: {"x": x, "k": 1}, lambda x: {"x": x.mean()}, lambda x: {"x": x.T}],
)
def test_a_state_without_one_entry_per_token_is_refused_where_rows_are_dropped(state):
    x = torch.zeros(3, 2)
    decisions = Decisions(criterion_that(lambda step, x: (step < 1, state(x))), x, None)
    decisions.update(x)
    with pytest.raises(
        InputError,
        match=r"Faulty\.update returned a state .*, expected a dict of tensors whose first",
    ):
        decisions.keep(torch.tensor([0, 2]))


def test_weights_of_a_mean_are_limited_to_what_is_left_of_one():
    weights = iter([0.5, -1.0, 0.75, 0.75])
    never = torch.zeros(2, dtype=torch.bool)
    states = torch.tensor([[1.0], [2.0], [4.0], [8.0]]).expand(4, 2)[..., None]
    criterion = weighted_that(lambda step, x: (never, {"x": x}, torch.full((2,), next(weights))))
    decisions, means = Decisions(criterion, torch.zeros(2, 1), None), []
    for x_new in states:
        decisions.update(x_new)
        means.append(decisions.result(x_new)[0].item())
    assert means == [1, 0.5 * 1 + 0.5 * 2, 0.5 * 1 + 0.5 * 4, 0.5 * 1 + 0.5 * 4]
    decisions.keep(torch.tensor([1]))
    assert decisions.result(states[-1, :1]).shape == (1, 1)


CRASH = """from twoscale.exits.criteria import ExitCriterion


class Crash(ExitCriterion):
    def start(self, x0):
        return {"x": x0}

    def update(self, state, x_new, readout):
        return self.decide(x_new), {"x": x_new}

    def decide(self, x_new):
        return {}["missing"]
"""


@ENGINES
def test_an_exception_of_a_users_criterion_is_one_sentence_with_its_line(run, tokens, tmp_path):
    (tmp_path / "crash.py").write_text(CRASH)
    with pytest.raises(InputError) as caught:
        run(load_criterion(str(tmp_path / "crash.py"), "Crash")(1.0))
    where = f"exit criterion file {tmp_path}/crash.py, line 12"
    assert (
        str(caught.value)
        == f"{where}: Crash.update raised KeyError: 'missing', expected no exception."
    )


@ENGINES
def test_an_exception_of_a_criterion_without_a_file_is_not_changed(run, tokens):
    def update(step, x_new):
        raise KeyError("missing")

    with pytest.raises(KeyError, match="missing"):
        run(criterion_that(update))


# --- the trial before a criterion is measured: both engines have to see the same exits ------------

TEXT = torch.randint(37, (12,), generator=torch.Generator().manual_seed(5))
TRIED = initialise(small.model_config(hidden_size=16, context_length=12), 0)
CHECKPOINT = small.checkpoint(TRIED, 11)

CRITERION = """from twoscale.exits.criteria import ExitCriterion


class Mine(ExitCriterion):
    def start(self, x0):
        return {{"x": x0}}

    def update(self, state, x_new, readout):
        step = (x_new - state["x"]).norm(dim=-1)
        return {decision}, {{"x": x_new}}
"""


def try_mine(tmp_path, decision, thresholds=(1.0, 3.0)):
    (tmp_path / "mine.py").write_text(CRITERION.format(decision=decision))
    mine = {"thresholds": thresholds, "file": str(tmp_path / "mine.py"), "class": "Mine"}
    try_criteria(CHECKPOINT, TEXT, config.ExitsConfig(max_loops=6, criteria={"mine": mine}))


# decision of a user's criterion -> what the trial says
TRIED_DECISIONS = {
    "(step.mean() < self.threshold).expand(len(step))": r"found \d evaluations of token \d in group [23] in "
    r"parallel and \d in decoding, expected no difference: the decision for a token may depend only on its own row",
    "step < self.threshold * step.max() / 2": r"found \d evaluations of token \d in group [23] in parallel",
    # at one threshold only
    "step < self.threshold * (1 if self.threshold < 2 else len(step))": "at 3: found",
    "(x_new.add_(1) if len(x_new) == 1 else x_new)[:, 0] > 1e9": "the same exits in parallel and"
    " in decoding but",
    "x_new.mul_(0.5)[:, 0] > 1e9": r"Mine changed x0 or x_new in place, expected them unchanged",
    "state['x'].zero_()[:, 0] > 1e9": r"Mine changed x0 or x_new in place, expected them unchanged",
    "step.norm() < 1": r"Mine\.update returned as should_exit",
    "1 / 0": r"Mine\.update raised ZeroDivisionError",
}


@pytest.mark.parametrize(("decision", "sentence"), TRIED_DECISIONS.items())
def test_a_faulty_criterion_is_refused_before_it_is_measured(tmp_path, decision, sentence):
    with pytest.raises(InputError, match=rf"^exit criterion .*file .*mine\.py.*{sentence}"):
        try_mine(tmp_path, decision)


def test_the_built_in_criteria_and_one_that_decides_on_each_token_alone_pass(tmp_path):
    try_mine(tmp_path, "step < self.threshold")
    criteria = {name: {"thresholds": [2]} for name in CRITERIA}
    gated = {"hidden_size": 16, "context_length": 12, "exit_gate": True}
    for changes in (gated, {"groups": ()}):
        checkpoint = small.checkpoint(initialise(small.model_config(**changes), 0))
        try_criteria(
            checkpoint,
            TEXT[: checkpoint.model.config.context_length],
            config.ExitsConfig(criteria=criteria),
        )


def test_a_difference_that_float64_does_not_have_is_rounding(tmp_path, monkeypatch):
    monkeypatch.setattr(
        benchmark, "_difference", lambda checkpoint, *_: checkpoint.model is TRIED or None
    )
    try_mine(tmp_path, "step < self.threshold", [1.0])
    assert next(TRIED.parameters()).dtype == torch.float32


# --- a user's file --------------------------------------------------------------------------------

USERS_CRITERION = """
from twoscale.exits.criteria import ExitCriterion


class Patience(ExitCriterion):
    keeps = "previous"

    def start(self, x0):
        return {"left": x0[:, 0] * 0 + self.threshold}

    def update(self, state, x_new, readout):
        left = state["left"] - 1
        return left <= 0, {"left": left}
"""


def changed(old, new):
    return USERS_CRITERION.replace(old, new), "Patience"


def with_init(arguments, body):
    return changed("def start", f"def __init__(self, {arguments}): {body}\n\n    def start")


# source and class -> what the sentence says
FILES = {
    (USERS_CRITERION, "Patients"): "found no subclass of ExitCriterion named 'Patients'",
    (
        "class Patience(ExitCriterion): pass",
        "Patience",
    ): "cannot be imported .NameError: name 'ExitCriterion'",
    ("def broken(:", "Patience"): "cannot be imported .SyntaxError: ",
    ("Patience = 3", "Patience"): "found no subclass of ExitCriterion named 'Patience'",
    changed("def start", "def begin"): "lacks the method start",
    changed("def update", "def next"): "lacks the method update",
    changed('"previous"', '"best"'): "keeps = 'best', expected one of previous, new",
    changed(
        "keeps =", "patience = 0  #"
    ): "patience = 0, expected a whole number of loop steps, at least 1",
    changed(
        ", readout", ""
    ): r"has update\(self, state, x_new\), expected update\(self, state, x_new, readout\)",
    with_init("threshold, decode", "0"): r"has __init__\(self, threshold, decode",
    with_init("threshold", "1 / 0"): r"line 8: Patience\.__init__ raised ZeroDiv",
}


@pytest.mark.parametrize(("written", "sentence"), FILES.items())
def test_a_file_without_such_a_criterion_is_refused_in_one_sentence(written, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence) as refusal:
        make_criterion("mine", 1.0, configured(tmp_path, *written))
    message = str(refusal.value)
    assert message.startswith(f"exit criterion file {tmp_path / 'mine.py'}")
    assert message.endswith(".")
    assert "\n" not in message


def configured(tmp_path, source, name="Patience"):
    """The criteria of a config that adds the class `name` of a file with this source as `mine`."""
    file = tmp_path / "mine.py"
    file.write_text(source)
    mine = config.CriterionConfig(**{"thresholds": [1.0], "file": str(file), "class": name})
    return configured_criteria({"kl": config.CriterionConfig(thresholds=[1.0]), "mine": mine})


def test_a_users_criterion_may_write_to_what_below_returns(tmp_path):
    criterion = make_criterion("mine", 2.0, configured(tmp_path, USERS_CRITERION))
    for _ in range(2):
        answer = criterion.below(torch.tensor([1.0]))
        assert answer.tolist() == [True]
        answer.fill_(False)


def test_a_built_in_criterion_that_a_users_file_imports_stays_without_a_file(tmp_path):
    configured(tmp_path, "from twoscale.exits.criteria import StepNorm", "StepNorm")
    assert CRITERIA["step_norm"].file is None

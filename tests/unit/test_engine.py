"""The exit engine: in parallel, token by token, and by the plain reference it is one function."""

import itertools
import random

import pytest
import torch

from tests import reference_engine
from tests.small import ARCHITECTURES, model_config
from twoscale.base import InputError
from twoscale.exits.criteria import CRITERIA, ExitCriterion, Fixed, make_criterion
from twoscale.exits.decoder import Decoder, DecoderOptions, evaluate_by_position
from twoscale.exits.parallel import evaluate
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import initialise

SEED = 3
MAX_LOOPS = 7
CONTEXT_LENGTH = 12
THREE_GROUPS = [[2], [3, 4], [5]]

VARIANTS = {
    "default": {},
    "one core from its input": {"groups": [[2, 3]], "state_init": "input"},
    "branch, input plus noise": {"sandwich": "branch", "state_init": "input_plus_noise"},
    "noise at every step, final norm": {"loop_noise": 0.3, "exit_norm": "final_norm"},
    "blend from zero, final norm": {
        "adapter_init": "blend",
        "state_init": "zero",
        "exit_norm": "final_norm",
    },
    "loops at both ends": {"groups": [[1, 2], [6]], "sandwich": "branch", "loop_noise": 0.05},
}
# The architectures of published models, each at a size of its own.
SIZES = {
    "Huginn": {"groups": [[2, 3, 4]], "mlp_size": 24},
    "Ouro": {
        "num_layers": 3,
        "groups": [[1, 2, 3]],
        "num_heads": 4,
        "num_kv_heads": 2,
        "rotary_base": 500.0,
    }
    | {"mlp_size": 20, "embedding_scale": 1.0},
    "retrofitted Llama": {
        "groups": [[2], [4, 5]],
        "num_heads": 4,
        "num_kv_heads": 1,
        "norm_epsilon": 1e-5,
    }
    | {"rotary_scaling": {"factor": 4, "original_context_length": 16}, "vocab_multiple": 1},
    "retrofitted OLMo": {"groups": [[3, 4]]},
    "Parcae": {
        "groups": [[3, 4]],
        "num_heads": 4,
        "num_kv_heads": 2,
        "looped_kv_heads": 4,
        "looped_mlp_size": 24,
    }
    | {"rotary_channels": 2, "loop_noise": 0.3},
    "Parcae with sums": {
        "groups": [[2], [5]],
        "num_heads": 4,
        "looped_kv_heads": 1,
        "rotary_channels": 2,
    },
}
PUBLISHED = {name: ARCHITECTURES[name] | sizes for name, sizes in SIZES.items()}
SEVERAL = ["fixed", "step_norm", "kl", "acceleration", "exit_gate"]  # one of each kind of state


def small_model(seed=0, **variants):
    """An untrained float64 model: 6 layers, 16 wide, with an exit gate that lets tokens loop for a
    few steps.

    Biases and norms of the layers are moved off their initial values, so that none of them has no
    effect.
    """
    default = {
        "num_layers": 6,
        "hidden_size": 16,
        "context_length": CONTEXT_LENGTH,
        "vocab_size": 11,
    }
    default |= {"groups": THREE_GROUPS, "mean_loops": 4, "exit_gate": True}
    model = initialise(model_config(**default | variants), seed).double()
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".heads." in name:
                parameter += 0.3 * torch.randn(
                    parameter.shape, generator=source, dtype=torch.float64
                )
        model.gate.weight *= 3
        model.gate.bias -= 1.5
    return model


def text(batch, length, seed=0):
    return torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(seed))


def noise_of(*sequences):
    return EvaluationNoise(SEED, sequences, CONTEXT_LENGTH)


class Spy:
    """In place of a threshold: keeps the statistics that a criterion compares with it, and lets no
    token leave.
    """

    def __init__(self):
        self.seen = []

    def __gt__(self, statistic):
        self.seen.append(statistic)
        return torch.zeros_like(statistic, dtype=torch.bool)

    __le__ = __gt__


def ragged_threshold(name, model, tokens, noise):
    """A threshold between two statistics at which tokens take three or more different numbers of
    loop steps.
    """
    if name in ("fixed", "argmax_stability"):
        return 3
    spy = Spy()
    evaluate(model, tokens, make_criterion(name, spy), MAX_LOOPS, noise)
    values = torch.cat(spy.seen).sort().values
    thresholds = ((values[1:] + values[:-1]) / 2).tolist()
    random.Random(SEED).shuffle(thresholds)

    def is_ragged(threshold):
        _, counts = evaluate(model, tokens, make_criterion(name, threshold), MAX_LOOPS, noise)
        return len(counts.evaluations.unique()) > 2

    return next(filter(is_ragged, thresholds))


def make_decoder(model, criterion, sequence=0, **options):
    decoder = Decoder(model, criterion, MAX_LOOPS, SEED, DecoderOptions(**options))
    decoder.reset(sequence=sequence)
    return decoder


def decode_text(decoder, tokens):
    """Logits (T, V) and evaluations (G, T) of the text (T,), fed token by token."""
    logits, evaluations = zip(*(decoder.feed(token) for token in tokens.tolist()), strict=True)
    return torch.stack(logits), torch.tensor(evaluations, dtype=torch.int64).T


def assert_decodes(decoder, tokens, expected, evaluations):
    """The decoder gives these logits (T, V) and evaluations (G, T) for the text."""
    logits, taken = decode_text(decoder, tokens)
    assert_close(logits, expected)
    assert torch.equal(taken, evaluations)


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def rows_through_step(model, run):
    """Rows (tokens) that the loop block of each group computes while `run` is called: list of G
    numbers.
    """
    rows = [0] * len(model.config.groups)

    def count(group):
        def hook(_module, inputs, _output):
            rows[group] += inputs[0][..., 0].numel()

        return hook

    handles = [
        module.register_forward_hook(count(group)) for group, module in enumerate(model.groups)
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return rows


def long_but(few, cases):
    """The cases, marked as long except for the `few`."""
    return [case if case in few else pytest.param(*case, marks=pytest.mark.long) for case in cases]


# All criteria with one model, and one of three criteria with each of the others.
KINDS = ("kl", "acceleration", "exit_gate")
OTHER_MODELS = [*VARIANTS, *PUBLISHED][1:]
FEW = [("default", criterion) for criterion in CRITERIA]
FEW += zip(OTHER_MODELS, itertools.cycle(KINDS), strict=False)
CASES = [*FEW, *(case for case in itertools.product(OTHER_MODELS, KINDS) if case not in FEW)]


def assert_as_reference(model, tokens, name, threshold, found, **options):
    """`found`, logits and counts of the sequences 4 and 1, are the reference's, and so is decoding;
    of the last one.

    Returns logits (T, V) and evaluations (G, T).
    """
    logits, counts = found
    for row, sequence in enumerate((4, 1)):
        expected, steps, evaluations = reference_engine.evaluate(
            model, tokens[row], name, threshold, MAX_LOOPS, noise_of(sequence), **options
        )
        assert_close(logits[row], expected)
        assert torch.equal(counts.loop_steps[:, row], steps)
        assert torch.equal(counts.evaluations[:, row], evaluations)
        decoder = make_decoder(model, make_criterion(name, threshold), sequence=sequence, **options)
        assert_decodes(decoder, tokens[row], expected, evaluations)
    return expected, evaluations


@pytest.mark.parametrize(("variant", "name"), long_but(FEW, CASES))
def test_parallel_decoding_and_reference_are_the_same_function_however_a_text_is_cut(variant, name):
    model, tokens = small_model(**(VARIANTS | PUBLISHED)[variant]), text(2, 9)
    threshold = ragged_threshold(name, model, tokens, noise_of(4, 1))
    criterion = make_criterion(name, threshold)
    logits, counts = evaluate(model, tokens, criterion, MAX_LOOPS, noise_of(4, 1))
    expected, evaluations = assert_as_reference(model, tokens, name, threshold, (logits, counts))
    for sizes in ([3, 0, 4, 0], [0, 0, 1, 6]):
        found, taken = feed_in_pieces(make_decoder(model, criterion, sequence=1), tokens[1], sizes)
        assert_close(found, expected)
        assert torch.equal(taken, evaluations)


def test_a_plain_gpt_needs_no_exit():
    name, model, tokens = "kl", small_model(groups=[]), text(2, 9)
    criterion = make_criterion(name, 3)
    logits, counts = evaluate(model, tokens, criterion, MAX_LOOPS, noise_of(0, 1))
    assert counts.loop_steps.shape == counts.evaluations.shape == (0, 2, 9)
    assert_close(logits, model(tokens, [], noise_of(0, 1)))
    for row in range(2):
        decoded, _ = decode_text(make_decoder(model, criterion), tokens[row])
        assert_close(decoded, logits[row])
        assert_close(
            reference_engine.evaluate(model, tokens[row], name, 3, MAX_LOOPS, noise_of(row))[0],
            decoded,
        )


class LeaveBySign(ExitCriterion):
    """A criterion as a user would write it: the sign of x^0 decides for one step or three, the
    state before is kept.
    """

    keeps = "previous"

    def start(self, x0):
        return {"left": torch.where(x0[:, 0] > 0, 1, 3)}

    def update(self, state, x_new, readout):
        left = state["left"] - 1
        return left == 0, {"left": left}


class Remembering(ExitCriterion):
    """Keeps all states since the beginning, so its state grows with the loop steps; exits where
    they have spread.
    """

    def start(self, x0):
        return {"past": x0[:, None]}

    def update(self, state, x_new, readout):
        past = torch.cat((state["past"], x_new[:, None]), dim=1)
        return (past - past.mean(1, keepdim=True)).norm(dim=(1, 2)) > self.threshold, {"past": past}


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (7, 1), (3, CONTEXT_LENGTH)])
def test_a_criterion_of_the_user_runs_alike_in_parallel_and_decoding(batch, length):
    """Also where whole sequences leave before others, and where a token keeps x^0."""
    model, tokens = small_model(), text(batch, length)
    criterion = LeaveBySign(1.0)
    logits, counts = evaluate(model, tokens, criterion, MAX_LOOPS, noise_of(*range(batch)))
    assert set(counts.evaluations.unique().tolist()) == {1, 3}
    assert torch.equal(counts.loop_steps, counts.evaluations - 1)
    for row in range(batch):
        assert_decodes(
            make_decoder(model, criterion, sequence=row),
            tokens[row],
            logits[row],
            counts.evaluations[:, row],
        )


class ByGroup(Fixed):
    """Another rule for each group: as many loop steps as the group has others before it, and one
    more.
    """

    def of_group(self, group):
        return Fixed(group + 1)


def test_a_criterion_that_differs_between_groups_runs_alike_in_parallel_and_decoding():
    model, tokens = small_model(), text(1, CONTEXT_LENGTH)
    logits, counts = evaluate(model, tokens, ByGroup(1), MAX_LOOPS, noise_of(0))
    assert [group.unique().tolist() for group in counts.evaluations] == [[1], [2], [3]]
    assert_decodes(make_decoder(model, ByGroup(1)), tokens[0], logits[0], counts.evaluations[:, 0])


@pytest.mark.parametrize("variants", (VARIANTS | PUBLISHED).values(), ids=VARIANTS | PUBLISHED)
def test_fixed_is_the_plain_forward_pass_with_as_many_loops(variants):
    model, tokens = small_model(**variants), text(2, 9)
    for loops in (1, 4):
        logits, counts = evaluate(
            model, tokens, make_criterion("fixed", loops), MAX_LOOPS, noise_of(2, 6)
        )
        assert_close(logits, model(tokens, [loops] * len(model.config.groups), noise_of(2, 6)))
        assert (counts.loop_steps == loops).all()
        assert (counts.evaluations == loops).all()


@pytest.mark.parametrize("name", SEVERAL)
def test_only_tokens_that_still_loop_are_computed(name):
    model, tokens = small_model(), text(3, 10)
    criterion = make_criterion(name, ragged_threshold(name, model, tokens, noise_of(0, 1, 2)))
    _, counts = evaluate(model, tokens, criterion, MAX_LOOPS, noise_of(0, 1, 2))
    rows = rows_through_step(
        model, lambda: evaluate(model, tokens, criterion, MAX_LOOPS, noise_of(0, 1, 2))
    )
    assert rows == counts.evaluations.sum((1, 2)).tolist()
    decoder = make_decoder(model, criterion, sequence=0)
    rows = rows_through_step(model, lambda: decode_text(decoder, tokens[0]))
    assert rows == counts.evaluations[:, 0].sum(1).tolist()


def feed_in_pieces(decoder, tokens, sizes):
    """Logits (T, V) and evaluations (G, T) of the text (T,), fed in pieces; those of size 0 by
    `feed`.
    """
    logits, evaluations, tokens = [], [], tokens.tolist()
    for size in sizes:
        if size == 0:
            one, taken = decoder.feed(tokens[decoder.position])
            logits.append(one[None])
            evaluations.append(torch.tensor(taken, dtype=torch.int64)[:, None])
        else:
            several, counts = decoder.feed_parallel(
                tokens[decoder.position : decoder.position + size]
            )
            logits.append(several)
            evaluations.append(counts.evaluations[:, 0])
    return torch.cat(logits), torch.cat(evaluations, dim=1)


def random_model(draw):
    """A float64 model of random depth, random groups and random variants, from the generator
    `draw`.
    """
    layers = draw.randint(2, 6)
    ends = sorted(draw.sample(range(1, layers + 2), 2 * draw.randint(1, (layers + 1) // 2)))
    groups = [list(range(first, last)) for first, last in zip(ends[::2], ends[1::2], strict=True)]
    return small_model(
        draw.randrange(1000),
        num_layers=layers,
        groups=groups,
        sandwich=draw.choice(["post_residual", "branch"]),
        state_init=draw.choice(["noise", "input", "input_plus_noise", "zero"]),
        loop_noise=draw.choice([0.0, 0.2]),
        adapter_init=draw.choice(["random", "blend"]),
        exit_norm=draw.choice(["none", "final_norm"]),
    )


@pytest.mark.parametrize("case", range(10))
def test_random_models_agree_in_parallel_in_pieces_and_with_the_reference(case):
    draw = random.Random(case)
    model, tokens = random_model(draw), text(1, CONTEXT_LENGTH, case)
    name = draw.choice(list(CRITERIA))
    threshold = ragged_threshold(name, model, tokens, noise_of(0))
    criterion = make_criterion(name, threshold)
    expected, steps, taken = reference_engine.evaluate(
        model, tokens[0], name, threshold, MAX_LOOPS, noise_of(0)
    )
    logits, counts = evaluate(model, tokens, criterion, MAX_LOOPS, noise_of(0))
    assert_close(logits[0], expected)
    assert torch.equal(counts.loop_steps[:, 0], steps)
    sizes = []
    while (fed := sum(max(size, 1) for size in sizes)) < CONTEXT_LENGTH:
        sizes.append(draw.randint(0, CONTEXT_LENGTH - fed))
    logits, evaluations = feed_in_pieces(make_decoder(model, criterion), tokens[0], sizes)
    assert_close(logits, expected)
    assert torch.equal(evaluations, taken)


@pytest.mark.parametrize("name", SEVERAL)
def test_a_text_that_was_reset_or_rewound_is_forgotten(name):
    model, tokens, other = small_model(), text(1, 9)[0], text(1, 7, seed=1)[0].tolist()
    criterion = make_criterion(name, ragged_threshold(name, model, tokens[None], noise_of(0)))
    expected, taken = decode_text(make_decoder(model, criterion), tokens)
    decoder = make_decoder(model, criterion)
    decoder.feed_parallel(other[:6])
    decoder.reset()
    decode_text(decoder, tokens[:4])
    decoder.feed_parallel(other[:3])
    decoder.feed(other[3])
    decoder.rewind(4)
    assert_decodes(decoder, tokens[4:], expected[4:], taken[:, 4:])


@pytest.mark.parametrize(
    ("name", "slots"),
    long_but(
        [("kl", 1), ("fixed", 3), ("acceleration", 3), ("kl", 2 * MAX_LOOPS)],
        itertools.product(("fixed", "kl", "acceleration"), (1, 3, 2 * MAX_LOOPS)),
    ),
)
def test_shared_slots_are_those_of_the_explicit_reference(name, slots):
    model, tokens = small_model(), text(2, 9)
    threshold = ragged_threshold(name, model, tokens, noise_of(4, 1))
    criterion = make_criterion(name, threshold)
    found = evaluate_by_position(
        make_decoder(model, criterion, kv_slots=slots), tokens, criterion, (4, 1)
    )
    assert_as_reference(model, tokens, name, threshold, found, kv_slots=slots)


@pytest.mark.parametrize("variants", PUBLISHED.values(), ids=PUBLISHED)
def test_published_architectures_share_slots_and_start_warm_as_the_reference_does(variants):
    model, tokens = small_model(**variants), text(1, 9)[0]
    threshold = ragged_threshold("step_norm", model, tokens[None], noise_of(0))
    expected, _, evaluations = reference_engine.evaluate(
        model, tokens, "step_norm", threshold, MAX_LOOPS, noise_of(0), kv_slots=2, warm_from=1
    )
    decoder = make_decoder(
        model, make_criterion("step_norm", threshold), kv_slots=2, warm_start=True
    )
    assert_decodes(decoder, tokens, expected, evaluations)


@pytest.mark.parametrize(
    ("name", "slots", "prompt"),
    [("kl", None, 1), ("fixed", None, 4), ("acceleration", 2, 4), ("kl", 2, 4)],
)
def test_a_warm_start_is_the_state_that_the_token_before_left_with(name, prompt, slots):
    model, tokens = small_model(exit_norm="final_norm"), text(1, 9)[0]
    threshold = ragged_threshold(name, model, tokens[None], noise_of(0))
    expected, _, evaluations = reference_engine.evaluate(
        model, tokens, name, threshold, MAX_LOOPS, noise_of(0), kv_slots=slots, warm_from=prompt
    )
    criterion = make_criterion(name, threshold)
    decoder = make_decoder(model, criterion, kv_slots=slots, warm_start=True)
    read, counts = decoder.prefill(tokens[:prompt].tolist())
    decoder.feed(0)
    decoder.rewind(prompt)
    decoded, taken = decode_text(decoder, tokens[prompt:])
    assert_close(torch.cat([read, decoded]), expected)
    assert torch.equal(torch.cat([counts.evaluations[:, 0], taken], dim=1), evaluations)
    cold, _, _ = reference_engine.evaluate(
        model, tokens, name, threshold, MAX_LOOPS, noise_of(0), kv_slots=slots
    )
    assert not torch.allclose(cold[prompt:], expected[prompt:])


def through_layers(model, criterion):
    return make_decoder(model, criterion, readout="remaining_layers")


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        *(("default", name) for name in ("entropy_diff", "argmax_stability", "margin")),
        ("noise at every step, final norm", "kl"),
        ("loops at both ends", "kl"),
    ],
)
def test_predictions_through_the_remaining_layers_are_those_of_the_reference(variant, name):
    model, tokens = small_model(**VARIANTS[variant]), text(2, 9)
    threshold = ragged_threshold(name, model, tokens, noise_of(4, 1))
    criterion = make_criterion(name, threshold)
    found = evaluate_by_position(through_layers(model, criterion), tokens, criterion, (4, 1))
    assert_as_reference(model, tokens, name, threshold, found, readout="remaining_layers")


class Undeclared(LeaveBySign):
    def update(self, state, x_new, readout):
        readout(x_new)
        return super().update(state, x_new, readout)


def engines(model, criterion, readout="head", **options):
    """The calls of both engines on a short text."""
    decoder = make_decoder(model, criterion, readout=readout, **options)
    return (
        lambda: evaluate(model, text(1, 3), criterion, MAX_LOOPS, noise_of(0), readout),
        lambda: decoder.feed_parallel([1, 2]),
        lambda: decoder.feed(1),
    )


def test_wrong_calls_of_the_engines_are_refused():
    model, ungated = small_model(), initialise(model_config(context_length=CONTEXT_LENGTH), 0)
    fixed, kl = make_criterion("fixed", 1), make_criterion("kl", 1.0)
    full, rewound = make_decoder(model, fixed), make_decoder(model, fixed)
    full.feed_parallel([0] * CONTEXT_LENGTH)
    parallel, pieces, alone = engines(model, Undeclared(1.0), "remaining_layers")
    refused = [
        (
            r"exits\.readout: found remaining_layers, expected head",
            engines(model, kl, "remaining_layers")[:2],
        ),
        ("expected needs_readout = True", (parallel, pieces, alone)),
        (
            r"expected a model with model\.exit_gate: true",
            engines(ungated, make_criterion("exit_gate", 0.5)),
        ),
        ("kv_slots: found 2 slots for 7 loops", engines(model, fixed, kv_slots=2)[1:2]),
        ("kv_slots: found 0, expected at least 1", [lambda: make_decoder(model, None, kv_slots=0)]),
        (
            "found 13 tokens, expected at most model",
            [lambda: full.feed(0), lambda: rewound.feed_parallel([0] * 13)],
        ),
    ]
    for sentence, calls in refused:
        for call in calls:
            with pytest.raises(InputError, match=sentence):
                call()
    with pytest.raises(ValueError, match="not a position"):
        rewound.rewind(1)
    evaluate(
        model,
        text(1, 3),
        make_criterion("step_norm", 1.0),
        MAX_LOOPS,
        noise_of(0),
        "remaining_layers",
    )


@pytest.mark.parametrize("size", [1, 3, MAX_LOOPS])
def test_a_replaying_decoder_computes_at_most_the_graph_of_the_exit_and_the_next(size):
    model, tokens = small_model(), text(1, 9)[0]
    criterion = make_criterion(
        "step_norm", ragged_threshold("step_norm", model, tokens[None], noise_of(0))
    )
    decoder = make_decoder(model, criterion, replay=True, steps_per_graph=size)
    taken = []
    rows = rows_through_step(model, lambda: taken.append(decode_text(decoder, tokens)[1]))
    assert (taken[0] < MAX_LOOPS).any()
    graphs = (taken[0] + size - 1) // size + 1
    assert rows == (graphs * size).clamp(max=MAX_LOOPS).sum(1).tolist()

"""flops and plan: the cost of a run, against torch's own counter, the model's tensors and the files
of a run.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests import small
from tests.small import model_config, saved_bytes, tiny, train_config
from twoscale import config, tables
from twoscale.claims import verdicts as claims
from twoscale.claims.evidence import Evidence
from twoscale.claims.words import NOT_ASKED
from twoscale.config import DownloadConfig
from twoscale.dynamics.states import save_states
from twoscale.exits.criteria import make_criterion
from twoscale.exits.decoder import Decoder
from twoscale.model import flops
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import LoopedTransformer, initialise
from twoscale.report.release import Release
from twoscale.training.trainer import draw_loops
from twoscale.workflow import memory
from twoscale.workflow import plan as plans

BATCH = 2

# model config, loop counts, back-propagation depth, recompute
GROUPED = {"num_heads": 4, "num_kv_heads": 2}
VARIANTS = {
    "default": ({}, (3, 2), None, False),
    "from the input and noise": ({"state_init": "input_plus_noise"}, (3, 2), None, False),
    "from the input, truncated": ({"state_init": "input"}, (3, 2), 2, False),
    "from zero, branch, recomputed": (
        {"state_init": "zero", "sandwich": "branch"},
        (3, 2),
        None,
        True,
    ),
    "truncated and recomputed": ({}, (5, 1), 2, True),
    "one core": ({"groups": [[2, 3]]}, (4,), None, False),
    "loops at both ends": ({"groups": [[1], [3, 4]]}, (2, 3), 1, False),
    "no groups": ({"groups": []}, (), None, False),
    "gated, grouped heads, own head": (
        GROUPED | {"mlp": "gated", "mlp_size": 24, "positions": "rotary", "tied_head": False},
        *((3, 2), 2, False),
    ),
    "Parcae": (
        GROUPED
        | {
            "groups": [[2, 3]],
            "injection": "diagonal",
            "exit_projection": True,
            "input_norm": True,
            "qk_norm": "head",
        }
        | {"looped_kv_heads": 4, "mlp_size": 12, "looped_mlp_size": 20, "value_embeddings": [1, 2]},
        *((3,), 2, False),
    ),
    "no injection": (
        {
            "groups": [[3, 4]],
            "injection": "none",
            "state_init": "input",
            "loop_norm": True,
            "norms": "pre",
        },
        *((3,), None, True),
    ),
}
# Keys that change the number of parameters, besides those of the variants.
PARAMETERS = [
    {"groups": [[2, 3]], "vocab_multiple": 1, "injection": "boundary"},
    GROUPED | {"qk_norm": True, "qk_bias": True, "norms": "post"},
    {
        "injection": "none",
        "state_init": "input",
        "tied_head": False,
        "exit_gate": True,
        "norms": "pre",
    },
]


def counted(model: config.ModelConfig, loops, depth, recompute) -> tuple[float, float]:
    """FLOPs per token of forward and backward that torch counts when the model runs."""
    made = initialise(model, seed=1)
    tokens = torch.arange(BATCH * model.context_length).reshape(BATCH, -1) % model.vocab_size
    noise = EvaluationNoise(1, range(BATCH), model.context_length)
    with sdpa_kernel(
        SDPBackend.MATH
    ):  # its products are those that the counter knows on every device
        with FlopCounterMode(display=False) as forward:
            loss = F.cross_entropy(
                made(tokens, loops, noise, depth, recompute).flatten(0, 1), tokens.flatten()
            )
        with FlopCounterMode(display=False) as backward:
            loss.backward()
    return forward.get_total_flops() / tokens.numel(), backward.get_total_flops() / tokens.numel()


@pytest.mark.parametrize("variant", VARIANTS)
def test_flops_are_those_that_torch_counts(variant):
    changes, loops, depth, recompute = VARIANTS[variant]
    model = model_config(hidden_size=16, context_length=12, **changes)
    found = flops.flops_per_token(model, loops, depth, recompute, causal=False)
    assert (found.forward, found.backward) == counted(model, loops, depth, recompute)


def test_the_causal_count_leaves_out_the_pairs_behind_the_mask():
    model = model_config(hidden_size=16, context_length=12, groups=[])
    full, causal = (flops.flops_per_token(model, (), causal=causal) for causal in (False, True))
    left_out = (
        4 * 16 * (12 * 12 - sum(range(1, 13))) * model.num_layers / 12
    )  # scores and averages, per token
    assert full.forward - causal.forward == pytest.approx(left_out)
    assert full.backward - causal.backward == pytest.approx(2 * left_out)


def test_the_mean_cost_is_that_of_the_loop_counts_drawn():
    model, train = model_config(mean_loops=12), train_config()
    drawn = [flops.flops_per_token(model, draw_loops(model, 1, step)).total for step in range(2000)]
    error = 4 * np.std(drawn) / np.sqrt(len(drawn))
    assert flops.mean_flops_per_token(model, train).total == pytest.approx(
        np.mean(drawn), abs=error
    )


@pytest.mark.parametrize(
    "changes", [*PARAMETERS, *(changes for changes, *_ in VARIANTS.values())], ids=str
)
def test_parameters_are_those_of_the_model(changes):
    model = model_config(**changes)
    assert flops.parameters(model) == sum(p.numel() for p in LoopedTransformer(model).parameters())


@pytest.mark.parametrize("heads", [{}, {"num_heads": 4, "num_kv_heads": 2}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_cache_is_as_large_as_the_decoder_makes_it(dtype, heads):
    model = model_config(groups=[[2, 3]], **heads)
    made = initialise(model, seed=1).to(getattr(torch, dtype))
    decoder = Decoder(made, make_criterion("fixed", 5), max_loops=5, seed=1)
    allocated = sum(tensor.nbytes for tensor in decoder.cache.stored.values())
    assert flops.cache_bytes(model, slots=5, dtype=dtype) == allocated


def printed(preset: str) -> dict[str, str]:
    """Label and value of the lines of the plan of a preset."""
    (run,) = config.runs({"preset": preset}).values()
    return dict(plans.rows(run, 100))


def number(value: str) -> float:
    """The number of a value, without its unit."""
    return float(value.split()[0].replace(",", ""))


def test_the_paper_takes_what_its_appendix_says():
    plan = printed("paper")
    assert plan["iterations"] == "60,000"
    assert plan["training jobs (one per checkpoint)"] == "15"  # every 5000, and 500, 1000, 2000
    assert plan["text to collect, tokens"] == "300,000,000"
    per_token = number(plan["training FLOPs, causal attention"]) / 307_200_000
    # six FLOPs per parameter and token, each layer's as often as it is applied: 8 + 4 x 13 of 12
    # C², the head once
    applied = 60 * 12 * 768**2 + 3 * 13 * 768**2 + 768 * 50304
    assert per_token == pytest.approx(6 * applied, rel=0.06)  # attention is the rest
    assert number(plan["checkpoints on disk"]) == pytest.approx(
        16 * 4 * number(plan["parameters"]) / 1e3, abs=0.01
    )


@pytest.mark.parametrize("preset", sorted(path.stem for path in small.PRESETS.glob("*.yaml")))
def test_every_preset_has_a_plan(preset):
    for label, value in printed(preset).items():
        assert label.startswith("text") or number(value) > 0


@pytest.mark.parametrize(
    ("preset", "published"),
    [
        # Huginn's files have its tied head twice, and a table of 4096 x 48 pairs of rotations
        ("huginn-0125", 3_911_400_096 - 65_536 * 5280 - 4096 * 48 * 2),
        ("recurrent-llama-3.2", 1_385_228_288),
        ("ouro-1.4b", 1_434_652_673),
        ("ouro-2.6b", 2_667_974_657),
    ],
)
def test_the_presets_of_published_models_have_as_many_weights_as_the_repositories(
    preset, published
):
    (run,) = config.runs({"preset": preset}).values()
    assert flops.parameters(run.model) == published


def test_the_plan_of_a_published_model_is_that_of_its_weights_and_loops():
    plan = printed("huginn-0125")
    assert plan["weights on disk, in bf16"] == "7.13 GB"
    # weights and cache in float32
    assert number(plan["memory to decode one sequence, about"]) == pytest.approx(
        14.26 + 2.855, 0.01
    )
    # four layers of eight are applied 32 times; two FLOPs per weight, and attention
    (run,) = config.runs({"preset": "huginn-0125"}).values()
    layer = 2 * 5280 * 2 * 5280 + 3 * 5280 * 17_920
    applied = (4 + 4 * 32) * layer + 33 * 5280**2 + 5280 * 65_536
    assert plans._forward_flops(run.model, 32) == pytest.approx(2 * applied, rel=0.02)


def test_hours_follow_the_rate_and_are_those_of_training_and_of_the_analyses():
    (run,) = config.runs({"preset": "paper"}).values()
    fast, slow = (dict(plans.rows(run, tflops)) for tflops in (200, 100))
    total, label = (
        number(slow["training FLOPs, causal attention"]),
        "hours of training at {} TFLOP/s a process",
    )
    trained = [number(plan[label.format(rate)]) for plan, rate in ((fast, 200), (slow, 100))]
    assert trained == pytest.approx([total / 200e12 / 3600, total / 100e12 / 3600], rel=0.01)
    in_all = [number(plan["hours in all, at most"]) for plan in (fast, slow)]
    analyses = [whole - hours for whole, hours in zip(in_all, trained, strict=True)]
    assert 0 < analyses[0] == pytest.approx(analyses[1], abs=0.011)


def test_the_plan_is_that_of_the_users_config_or_a_sentence(tmp_path):
    (tmp_path / "my.yaml").write_text(
        "preset: tiny\nrun: mine\ntrain: {learning_rate: 2e-3}\nruns: {more: {}}\n"
    )
    command = [
        sys.executable,
        small.ROOT / "scripts" / "plan.py",
        "--configfile",
        tmp_path / "my.yaml",
    ]
    command += ["--config", "train={iterations: 4e1}"]
    said = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=120
    ).stdout.splitlines()
    assert [line for line in said if line.startswith("run ")] == ["run mine", "run more"]
    assert [line.split()[-1] for line in said if "iterations" in line] == ["40", "40"]


def test_analyses_are_counted_at_every_checkpoint():
    once, twice = (
        plans.analyses(tiny(train=train))
        for train in ({}, {"iterations": 40, "lr_decay_iterations": 40})
    )
    trajectories = 4 * 32 * flops.flops_per_token(tiny().model, [6, 6]).forward  # 128 tokens
    assert twice[0] - once[0] == pytest.approx(2 * trajectories)
    assert once[1] == twice[1]


@pytest.mark.parametrize(("processes", "hours"), [(3, 1 / 2), (4, 1 / 4)])
def test_several_processes_share_the_sequences_and_wait_for_the_slowest(processes, hours):
    one, several = (tiny(train={"processes": count}) for count in (1, processes))
    assert plans.training_hours(several, 1) == pytest.approx(hours * plans.training_hours(one, 1))


def test_a_divided_model_is_loaded_whole_by_each_process_of_a_node():
    run = tiny(
        train={"processes": 4, "nodes": 2, "shard": True},
        model={"num_layers": 8, "groups": [[4], [5]]},
    )
    whole = run.model_copy(update={"train": run.train.model_copy(update={"shard": False})})
    weights = 4 * flops.parameters(run.model)
    saved = plans.training_memory(whole) - plans.training_memory(run)
    assert saved == 4 * weights - (4 * weights / 4 + 2 * weights)
    assert memory.loading_bytes(run) == 2 * 4 * weights  # weights, two moments, the model


def test_a_copy_in_bfloat16_counts_as_memory():
    run = tiny(train={"precision": "bfloat16"}, compute={"device": "cuda"})
    plain = tiny(train={"precision": "float32"}, compute={"device": "cuda"})
    more = plans.training_memory(run) - plans.training_memory(plain)
    assert more == 2 * flops.parameters(run.model)


def claim_notes(**keys) -> dict[int, str]:
    """Number of a claim -> what the plan says of it after its title."""
    (run,) = config.runs(keys).values()
    return {
        int(note.split()[1]): note.split("): ", 1)[1].removesuffix(".") for note in plans.notes(run)
    }


def test_the_plan_names_the_claims_that_no_result_can_uphold_and_what_would_help():
    sequences = "cannot be judged: held-out sequences: found {}, expected at least {}"
    demo = claim_notes(preset="demo")
    assert demo == {4: sequences.format(16, 32) + " (trajectories.tokens)"}
    fewer = claim_notes(preset="demo", trajectories={"tokens": 128 * 11})
    assert fewer.keys() == {3, 4}
    assert fewer[3].startswith(sequences.format(11, 12))
    assert claim_notes(preset="demo", trajectories={"tokens": 128 * 32}) == {}
    rare = claim_notes(preset="demo", train={"checkpoint_every": 600, "early_checkpoints": []})
    expected = "checkpoints after warm-up: found 1, expected at least 3 (train.checkpoint_every)"
    assert rare.keys() == {3, 4, 5}
    assert rare[3] == rare[5] == f"cannot be judged: {expected}"


def test_the_plan_of_the_demo_names_the_claims_that_its_release_left_open_for_its_size():
    """The reason is that of the verdict; all other claims of the run had an answer or numbers."""
    folder = small.ROOT / "docs" / "demo-release"
    run = Release.open(str(folder), DownloadConfig()).runs({})["demo"]
    verdicts = claims.verdicts(
        Evidence.read(
            {
                name: folder / "demo" / "tables" / f"{table}.parquet"
                for name, table in tables.CLAIM_TABLES.items()
                if name in ("loops", "drift")
            },
            max_loops=run.exits.max_loops,
            warmup=run.train.warmup_iterations,
        ),
        claims.GEOMETRY,
    )
    said = {
        verdict.claim.number: f"{verdict.verdict}: {verdict.reason}"
        for verdict in verdicts
        if "expected at least" in verdict.reason or verdict.verdict == NOT_ASKED
    }
    notes = [note.split("): ", 1)[1].removesuffix(".") for note in plans.notes(run)]
    assert list(said.values()) == notes


def test_the_hours_of_small_runs_are_those_of_their_jobs():
    """Of the released demo as measured; two minutes of tiny are those of Python's start."""
    (demo,) = config.runs({"preset": "demo"}).values()
    manifest = json.loads((small.ROOT / "docs/demo-release/manifest.json").read_text())
    measured = sum(job["total_s"] for job in manifest["jobs"]) / 3600
    assert measured < number(dict(plans.rows(demo))["hours in all, at most"]) < 2 * measured
    (tiny_run,) = config.runs({"preset": "tiny"}).values()
    assert 1 / 60 < number(dict(plans.rows(tiny_run))["hours in all, at most"]) < 4 / 60


def test_tokens_of_the_timing_are_decoded_once_more_than_they_are_repeated():
    (run,) = config.runs({"preset": "demo"}).values()
    points = 2 + 11 + 9 + 13  # of fixed, step norm, KL and acceleration
    timed = 2 * 12 * (1 + 5) * points  # 12 tokens, 5 rounds and the one that warms up, twice
    pairs = 2 * 4 * (1 + 60) * 4  # 4 segments, 60 repeats and one, 4 criteria
    assert plans.analyses(run)[1] == timed + pairs == 6992
    remaining = run.model_copy(
        update={"exits": run.exits.model_copy(update={"readout": "remaining_layers"})}
    )
    # under KL, sequences of 128 tokens: the rounds, and 32 for quality
    assert plans.analyses(remaining)[1] == 6992 + 128 * (6 + 32) * 9


@pytest.mark.parametrize(
    ("changes", "recompute"),
    [
        ({}, False),
        ({"mlp": "gated"}, False),
        ({"norms": "pre"}, False),
        ({"groups": [[2, 3]]}, False),
        ({}, True),
    ],
    ids=str,
)
def test_the_activations_are_those_that_autograd_keeps_for_one_more_loop_step(changes, recompute):
    model = model_config(hidden_size=256, context_length=32, num_heads=4, **changes)
    found = cache_bytes(model, 4, recompute) - cache_bytes(model, 3, recompute)
    run = tiny().model_copy(update={"model": model, "train": train_config(recompute=recompute)})
    more = run.model_copy(
        update={"model": model.model_copy(update={"mean_loops": model.mean_loops + 1})}
    )
    assert memory.activation_bytes(more) - memory.activation_bytes(run) == pytest.approx(
        found, rel=0.05
    )


def test_each_process_of_a_node_takes_weights_and_moments_and_its_share_of_the_sequences():
    one, two = (
        tiny().model_copy(update={"train": train_config(batch_size=4, processes=processes)})
        for processes in (1, 2)
    )
    numbers = flops.parameters(one.model)
    more = memory.training_bytes(two) - memory.training_bytes(one)
    assert more == 7 * 4 * numbers  # weights, gradients, two moments; three of a file; float32


def test_the_states_of_fig_1_are_as_large_as_planned(tmp_path):
    checkpoint = small.perturbed(1)
    model = checkpoint.model.config
    run = tiny().model_copy(update={"model": model})
    text = small.held_out(torch.arange(model.context_length)[None])
    words = ["a"] * model.context_length
    save_states(checkpoint, text, words, run.trajectories.loops, tmp_path / "states.safetensors")
    states = load_file(tmp_path / "states.safetensors")["states"]
    assert memory.states_bytes(run) == states.nbytes


def cache_bytes(model, steps, recompute):
    """Bytes that the forward pass of one sequence keeps for the backward pass, besides the
    parameters.
    """
    made = initialise(model, seed=1)
    tokens = torch.arange(model.context_length)[None] % model.vocab_size
    noise = EvaluationNoise(1, [0], model.context_length)
    return saved_bytes(
        made, lambda: made(tokens, [steps] * len(model.groups), noise, None, recompute)
    )

"""Published models: the values of their own code, and one sentence for every folder that cannot be
used.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.published import write_folder
from tests.small import ROOT
from twoscale import config
from twoscale.base import InputError
from twoscale.config import Config, ConfigSlice, plain, user_values
from twoscale.exits.criteria import make_criterion
from twoscale.exits.decoder import Decoder
from twoscale.exits.parallel import evaluate
from twoscale.model.checkpoints import open_checkpoint
from twoscale.model.published.folder import PublishedFolder, folder_layer
from twoscale.model.published.weights import open_published

GOLDEN = ROOT / "tests" / "golden" / "published"
NAMES = (
    "huginn",
    "llama",
    "olmo",
    "ouro",
    "parcae",
    "parcae-linear",
    "parcae-add",
    "parcae-values",
    "ladder",
)
ROUNDED = {"rtol": 0, "atol": 1e-5}  # their code rounds to float32 within a pass
TOLERANCES = {
    name: {"rtol": 0, "atol": 1e-9} for name in ("parcae-values", "ladder")
}  # float64 throughout


def golden(name):
    """The model in float64, and what its own code computes."""
    folder = GOLDEN / name
    model = open_published(folder, PublishedFolder(folder).model_config(), torch.float64, "cpu")
    values = load_file(folder / "expected.safetensors")
    return model, {
        key: value.double() if value.is_floating_point() else value for key, value in values.items()
    }


def given(values):
    """The first state of the golden values as a Noise, for one sequence or all."""
    return lambda group, k, like: values["states"][0][: len(like)]


@pytest.mark.parametrize("name", NAMES)
def test_every_state_and_logit_is_that_of_the_published_code(name):
    model, values = golden(name)
    states, logits = values["states"], values["logits"]
    tolerance = TOLERANCES.get(name, ROUNDED)
    trace = model.trace(values["tokens"], [len(states) - 1], given(values))
    (group,) = [part for part in trace if part.stage and part.stage.is_group]
    torch.testing.assert_close(torch.stack(group.states), states, **tolerance)
    if "embedded" in values:
        torch.testing.assert_close(group.entered, values["embedded"], **tolerance)
    for k, expected in zip(range(len(states) - len(logits), len(states)), logits, strict=True):
        torch.testing.assert_close(
            model(values["tokens"], [k], given(values)), expected, **TOLERANCES.get(name, ROUNDED)
        )


def exit_steps(model, states, threshold):
    """Loop steps (B, T) after which the criterion exit_gate lets tokens with these states (K + 1,
    B, T, C) go.
    """
    rows = states.flatten(1, 2)
    criterion = make_criterion("exit_gate", threshold)
    memory, steps = criterion.start(rows[0]), torch.full(rows.shape[1:2], len(rows) - 1)
    for k, x in enumerate(rows[1:], start=1):
        exits, memory = criterion.update(memory, x, model.exit_gate)
        steps = torch.where(exits, steps.clamp(max=k), steps)
    return steps.view(states.shape[1:3])


def test_gates_and_exits_are_those_of_ouro():
    model, values = golden("ouro")
    torch.testing.assert_close(model.exit_gate(values["states"][1:]), values["gates"], **ROUNDED)
    for threshold in (0.3, 0.6, 0.9):
        steps = exit_steps(model, values["states"], threshold)
        chosen = values["logits"].gather(0, (steps - 1)[None, ..., None].expand(1, -1, -1, 40))[0]
        expected = values[f"logits_exit_threshold_{threshold}"]
        torch.testing.assert_close(chosen, expected, **ROUNDED)
        # all loops of earlier tokens are seen by later ones there, so states are compared at the
        # first token only
        logits, counts = evaluate(
            model, values["tokens"], make_criterion("exit_gate", threshold), 4, given(values)
        )
        assert torch.equal(counts.loop_steps[0, :, 0], steps[:, 0])
        torch.testing.assert_close(logits[:, 0], expected[:, 0], **ROUNDED)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_decoding_through_the_cache_is_the_full_forward_pass(name):
    model, _ = golden(name)
    decoder = Decoder(model, make_criterion("fixed", 3), 3, seed=1)
    tokens = [5, 9]
    logits = [decoder.feed(token)[0] for token in tokens]
    for _ in range(6):
        tokens.append(int(logits[-1].argmax()))
        logits.append(decoder.feed(tokens[-1])[0])
    whole = model(torch.tensor([tokens]), [3], decoder.noise)[0]
    torch.testing.assert_close(torch.stack(logits), whole, rtol=1e-9, atol=1e-9)


def opened(folder, **changes):
    config = PublishedFolder(folder).model_config(**changes)
    return open_published(folder, config, torch.float32, "cpu")


@pytest.fixture
def folder(tmp_path):
    """A copy of Huginn's folder that a test may damage."""
    return copied("huginn", tmp_path)


def edit(folder, **options):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | options))


def rewrite(file, change):
    """Change the tensors of a file."""
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


ADAPTER = "transformer.adapter.weight"
DAMAGES = {
    "No such file": lambda file: file.unlink(),
    "cannot be read (the file is cut": lambda file: file.write_bytes(file.read_bytes()[:-10]),
    f"tensor {ADAPTER}: found the shape (16, 16), expected (16, 32)": {
        ADAPTER: torch.zeros(16, 16)
    },
    "found the unknown tensor transformer.extra.weight": {
        "transformer.extra.weight": torch.zeros(2)
    },
    f"found no tensor {ADAPTER}": {ADAPTER: None},
    f"tensor {ADAPTER}: found the dtype torch.int32": {
        ADAPTER: torch.zeros(16, 32, dtype=torch.int32)
    },
    f"tensor {ADAPTER}: found NaN": {ADAPTER: torch.full((16, 32), torch.nan)},
}


@pytest.mark.parametrize("sentence", DAMAGES)
def test_what_is_missing_damaged_or_unknown_is_named(folder, sentence):
    file, damage = PublishedFolder(folder).weight_files[0], DAMAGES[sentence]
    assert ADAPTER in load_file(file)
    if callable(damage):
        damage(file)
    else:
        kept = {
            name: tensor
            for name, tensor in (load_file(file) | damage).items()
            if tensor is not None
        }
        save_file(kept, file)
    with pytest.raises(InputError, match=re.escape(sentence)):
        opened(folder)


def test_a_model_that_does_not_fit_into_memory_is_refused_before_it_is_read(folder):
    edit(folder, n_embd=2**22, head_dim=2**20, intermediate_size=2**24)
    with pytest.raises(InputError, match="GB of free memory on cpu, expected at least"):
        opened(folder)


def test_a_config_of_another_model_is_refused_with_the_key_that_differs(folder):
    with pytest.raises(InputError, match=r"config key model\.num_heads: found 2, expected 4"):
        opened(folder, num_heads=2, num_kv_heads=None)
    with pytest.raises(
        InputError, match=r"config key model\.context_length: found 33, expected at most 32"
    ):
        opened(folder, context_length=33)
    opened(folder, num_kv_heads=None, embedding_scale=None, context_length=8)


def test_weights_in_bf16_give_the_same_model_up_to_their_rounding(folder):
    exact = opened(folder).state_dict()
    for file in folder.glob("*.safetensors"):
        rewrite(file, lambda tensors: tensors.update({n: t.bfloat16() for n, t in tensors.items()}))
    for name, tensor in opened(folder).state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, exact[name].bfloat16().float()), name


def copied(name, tmp_path):
    return Path(shutil.copytree(GOLDEN / name, tmp_path / name))


def keys_of(folder):
    return PublishedFolder(folder).layer["model"]


LLAMA3 = {"rope_type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4}
LLAMA3 |= {"original_max_position_embeddings": 16}


@pytest.mark.parametrize("name", ["ouro", "llama"])
def test_rotations_are_read_from_the_keys_of_either_version_of_transformers(tmp_path, name):
    folder = copied(name, tmp_path)
    edit(folder, rope_theta=700.0, rope_scaling=LLAMA3)
    expected = keys_of(folder)
    assert (expected["rotary_base"], expected["rotary_scaling"]["factor"]) == (700.0, 4.0)
    edit(folder, rope_theta=None, rope_scaling=None, rope_parameters=LLAMA3 | {"rope_theta": 700.0})
    assert keys_of(folder) == expected
    edit(folder, rope_theta=700.0)
    assert keys_of(folder) == expected


def test_scale_and_first_state_are_those_that_the_published_code_takes(tmp_path):
    folders = {name: copied(name, tmp_path) for name in ("huginn", "llama", "olmo")}
    for folder in folders.values():
        values = json.loads((folder / "config.json").read_text())["init_values"]
        edit(folder, initial_state_mode="embed-init", init_values=values | {"embed_scale": 3.0})
    found = {name: keys_of(folder) for name, folder in folders.items()}
    # Huginn's code multiplies by the square root of the size, whatever the config says
    assert [keys["embedding_scale"] for keys in found.values()] == [4.0, 3.0, 3.0]
    # the code of OLMo alone reads the mode
    assert [keys["state_init"] for keys in found.values()] == ["noise", "noise", "input"]


def test_an_early_exit_step_of_ouro_is_the_published_number_of_loops(tmp_path):
    folder, found = copied("ouro", tmp_path), {}
    for step in (0, 1, 3, 4, -1, None):
        edit(folder, early_exit_step=step)
        found[step] = PublishedFolder(folder).description.loops
    assert found == {0: 1, 1: 2, 3: 4, 4: 4, -1: 4, None: 4}


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        (
            "huginn",
            {"model_type": "gpt2"},
            'model_type = "gpt2", expected one of huginn_raven, ouro',
        ),
        ("huginn", {"nonlin_name": "GELU"}, 'nonlin_name = "GELU", expected "SiLU"'),
        ("huginn", {"initial_state_mode": "skip-adapter"}, 'initial_state_mode = "skip-adapter"'),
        ("huginn", {"head_dim": 8}, "head_dim = 8, expected 4"),
        ("huginn", {"n_embd": None}, "n_embd = null, expected a whole number of at least 1"),
        ("huginn", {"num_key_value_heads": 2}, "num_key_value_heads = 2, expected 4"),
        (
            "ouro",
            {"num_attention_heads": 3, "head_dim": None},
            "config key model.num_heads: found 3",
        ),
        ("ouro", {"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope_scaling = "),
        (
            "ouro",
            {"rope_parameters": {"full_attention": {"rope_theta": 700.0}}},
            "rope_parameters = ",
        ),
        (
            "ouro",
            {"rope_theta": 500.0, "rope_parameters": {"rope_theta": 700.0}},
            "rope_theta = 500.0, expected 700",
        ),
        ("ouro", {"early_exit_step": "two"}, 'early_exit_step = "two", expected a whole number'),
        ("parcae-add", {"model_class_name": "GPT"}, 'model_class_name = "GPT", expected one of'),
        ("parcae-add", {"recurrent_num_heads": 2}, "recurrent_num_heads = 2, expected 4"),
        ("parcae-add", {"clip_qkv": 8}, "clip_qkv = 8, expected null"),
        ("parcae-add", {"recurrent_rope_dims": 4}, "recurrent_rope_dims = 4, expected 2"),
        ("ladder", {"depth_scale_mode": "none"}, 'depth_scale_mode = "none", expected one of'),
        (
            "ladder",
            {"final_eval_active_core_repetitions": 1.5},
            "final_eval_active_core_repetitions = 1.5, expected a",
        ),
    ],
)
def test_an_option_that_is_not_supported_is_named(tmp_path, name, options, expected):
    folder = copied(name, tmp_path)
    edit(folder, **options)
    with pytest.raises(
        InputError,
        match=re.escape(f"found {expected}" if "config key" not in expected else expected),
    ):
        PublishedFolder(folder).model_config()


def test_tensors_that_have_no_effect_are_dropped(tmp_path):
    """Tables of rotations, a head that is tied, and gates and tables of value embeddings without
    the other.
    """
    huginn, parcae = (copied(name, tmp_path) for name in ("huginn", "parcae"))
    rewrite(
        huginn / "model-00001-of-00002.safetensors",
        lambda t: t.update({"lm_head.weight": torch.zeros(40, 16)}),
    )
    for folder, name in ((huginn, "freqs_cis"), (parcae, "ve_gate")):
        assert any(name in tensor for tensor in PublishedFolder(folder).shapes)
        opened(folder)
    values = copied("parcae-values", tmp_path)
    rewrite(values / "model.safetensors", lambda t: t.pop("transformer.coda.1.attn.ve_gate.weight"))
    assert opened(values).config.value_embeddings == (2, 4)


def test_a_parcae_folder_needs_no_more_keys_than_the_tensors_leave_open(tmp_path):
    folder = copied("parcae-linear", tmp_path)
    expected = keys_of(folder)
    (folder / "config.json").write_text(
        '{"_class_name": "ParcaeConfig", "num_heads": 4, "mean_recurrence": 3}'
    )
    found = keys_of(folder)
    assert {key for key in found if found[key] != expected[key]} == {"embedding_scale", "state_std"}
    assert (found["state_std"], PublishedFolder(folder).description.max_context_length) == (
        0.005,
        1024,
    )


def test_a_folder_without_a_preset_starts_from_neither_text_nor_sizes_nor_name_of_the_demo(
    tmp_path,
):
    folder = write_folder("ouro", tmp_path / "ouro")
    edit(folder, max_position_embeddings=4096)
    user = {
        "preset": "demo",
        "model": {"source": "published", "folder": str(folder)},
    }  # config.yaml names the demo
    with pytest.raises(
        InputError, match=r"config key data\.source: found nothing \(null\), expected "
    ):
        config.runs(user)
    ((name, run),) = config.runs(user | {"data": {"source": "fineweb"}}).items()
    assert (name, run.model.context_length, run.data.held_out_tokens) == ("published", 512, 131_072)
    chosen = config.runs(user | {"preset": "overnight"})["overnight"]
    assert chosen.data == config.runs({"preset": "overnight"})["overnight"].data


def test_a_folder_with_few_positions_and_uncommon_loops_has_a_grid_with_these_and_no_longer_text(
    tmp_path,
):
    folder = write_folder("ouro", tmp_path / "ouro")
    edit(folder, total_ut_steps=5, max_position_embeddings=32)
    user = {
        "model": {"source": "published", "folder": str(folder)},
        "data": {"source": "python_docs"},
    }
    run = config.runs(user)["published"]
    assert run.scaling.loops == (1, 2, 3, 4, 5, 6, 8)
    assert run.exits.criteria["exit_gate"].thresholds == (
        0.1,
        0.2,
        0.3,
        0.4,
        0.5,
        0.6,
        0.7,
        0.8,
        0.9,
        1.0,
    )
    assert run.model.context_length == run.exits.latency_tokens == 32


def test_keys_of_a_folder_may_be_strings_as_in_the_options_of_snakemake(tmp_path):
    model = {
        "source": "published",
        "folder": str(write_folder("ouro", tmp_path / "ouro")),
        "context_length": "32",
    }
    user = {"model": model, "data": {"source": "python_docs"}, "scaling": {"loops": ["1", "4"]}}
    run = config.runs(user | {"path_types": {"window": "3", "max_period": "2"}})["published"]
    assert (run.scaling.loops, run.path_types.window) == ((1, 4), 3)
    assert run.model.context_length == run.exits.latency_tokens == 32


def test_a_model_published_with_one_loop_is_measured_at_one_and_at_two(tmp_path):
    folder = copied("parcae-add", tmp_path)
    edit(folder, mean_recurrence=1)
    layer = folder_layer(str(folder), user_values(Config()))
    assert (layer["trajectories"]["loops"], layer["exits"]["max_loops"]) == (2, 2)
    assert layer["exits"]["criteria"] == {"fixed": {"thresholds": [1, 2]}}
    assert layer["exits"]["readout"] == "remaining_layers"


def test_positions_of_a_float64_model_are_not_rounded_to_float32():
    model, _ = golden("ouro")
    rotary = next(module for module in model.modules() if hasattr(module, "cos"))
    frequency = 1000.0 ** -torch.tensor([0.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(
        rotary.cos[:, 0],
        torch.outer(torch.arange(32.0).double(), frequency).cos(),
        rtol=0,
        atol=1e-15,
    )


def test_a_folder_opens_as_a_checkpoint(folder):
    config = PublishedFolder(folder).model_config(context_length=8)
    job = ConfigSlice({"seed": 3, "device": "cpu", "model": plain(config)})
    checkpoint = open_checkpoint(folder / "config.json", job, "float64")
    assert (checkpoint.iteration, checkpoint.seed, checkpoint.model.config) == (0, 3, config)

"""checkpoints: a file says what it is, and is refused where it does not belong."""

import pickle

import pytest
import torch
from safetensors.torch import save_file

from tests.small import job_config, model_config
from twoscale.base import InputError, canonical_json
from twoscale.config import plain
from twoscale.model import checkpoints
from twoscale.model.checkpoints import Header
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import initialise

IDENTITY = {
    "seed": 1,
    "model": {"hidden_size": 8, "groups": [[2], [3]]},
    "train": {"lr_decay_iterations": None},
    "data": "ab",
}
TENSORS = {
    "b": torch.nn.Parameter(torch.arange(6.0).reshape(2, 3)).T,
    "a": torch.tensor([1.5, -2.5], dtype=torch.float64),
}
HEADER = Header(
    "weights", 10, 5120, IDENTITY, {"log": [{"iteration": 10, "loss": 0.1, "held_out_loss": None}]}
)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "iteration_000010.safetensors"
    checkpoints.save(path, TENSORS, HEADER)
    return path


def refusal(path, kind="weights", identity=IDENTITY) -> str:
    """The sentence with which `load` refuses the file."""
    with pytest.raises(InputError) as error:
        checkpoints.load(path, kind, identity)
    message = str(error.value)
    assert message.startswith(str(path))
    assert "expected" in message
    return message


def test_tensors_and_header_come_back_as_they_were(saved):
    """Also a view of a parameter."""
    tensors, header = checkpoints.load(saved, "weights", IDENTITY)
    assert header == HEADER == checkpoints.read_header(saved)
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == TENSORS[name].dtype
        assert torch.equal(tensor, TENSORS[name])


def test_equal_states_are_equal_files_whatever_the_order_of_their_names(saved, tmp_path):
    again = tmp_path / "again.safetensors"
    turned = Header("weights", 10, 5120, dict(reversed(IDENTITY.items())), HEADER.extra)
    checkpoints.save(again, dict(reversed(TENSORS.items())), turned)
    assert again.read_bytes() == saved.read_bytes()


@pytest.mark.parametrize(
    ("change", "name", "found", "expected"),
    [
        ({"seed": 2}, "seed", "1", "2"),
        (
            {"model": {"hidden_size": 16, "groups": [[2, 3]]}},
            "model.groups",
            "[[2], [3]]",
            "[[2, 3]]",
        ),
        ({"train": {"lr_decay_iterations": 20}}, "train.lr_decay_iterations", "None", "20"),
        ({"further": 3}, "further", "None", "3"),
        ({"data": "cd"}, "data", "ab", "cd"),
    ],
)
def test_a_file_of_another_configuration_is_refused_by_the_first_key_that_differs(
    change, name, found, expected, saved
):
    assert f"{name} is {found} there, expected {expected};" in refusal(
        saved, identity=IDENTITY | change
    )


def test_a_reader_may_ask_for_a_part_of_the_identity_only(saved):
    checkpoints.load(saved, "weights", {"model": IDENTITY["model"]})
    assert "model.hidden_size" in refusal(
        saved, identity={"model": {"hidden_size": 9, "groups": [[2], [3]]}}
    )


def written(path, content=None, **changes):
    """A file of these bytes, or a checkpoint with another header."""
    if content is not None:
        path.write_bytes(content)
    else:
        checkpoints.save(path, TENSORS, Header(**vars(HEADER) | {"sha256": None} | changes))


def foreign(path, metadata):
    save_file({"a": TENSORS["a"]}, path, metadata=metadata)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda path: path.unlink(), "no such file"),
        (lambda path: written(path, b""), "cannot be read"),
        (lambda path: written(path, path.read_bytes()[:-1]), "cannot be read"),
        (lambda path: written(path, pickle.dumps({"weights": 1})), "cannot be read"),
        (lambda path: foreign(path, None), "found no header"),
        (lambda path: foreign(path, {"twoscale": "not json"}), "found no header"),
        (lambda path: written(path, iteration=-5), "found no header"),
        (lambda path: written(path, iteration=11), "found a header of iteration 11, expected 10"),
        (lambda path: written(path, identity=[]), "found no header"),
        (lambda path: written(path, kind="optimizer"), "kind 'optimizer', expected 'weights'"),
    ],
)
def test_a_file_that_is_no_such_checkpoint_is_refused(change, found, saved):
    change(saved)
    assert found in refusal(saved)


def test_a_flipped_bit_anywhere_is_refused(saved):
    content = saved.read_bytes()
    for place in range(len(content)):
        saved.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(InputError) as error:
            checkpoints.load(saved, "weights", IDENTITY)
        assert str(error.value).startswith(f"{saved}: "), place
    # the last byte is one of a tensor
    assert f"the file is damaged; remove it and run `snakemake {saved}`" in str(error.value)


def test_a_file_of_a_version_without_digests_is_read(tmp_path):
    path = tmp_path / "old.safetensors"
    foreign(path, {"twoscale": canonical_json(vars(HEADER))})
    tensors, header = checkpoints.load(path, "weights", IDENTITY)
    assert header == HEADER
    assert torch.equal(tensors["a"], TENSORS["a"])


NORM = "final_norm.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: tensors.update({NORM: tensors[NORM].int()}),
            r"found the dtype torch\.int32, expected",
        ),
        (
            lambda tensors: tensors.update({NORM: tensors[NORM] * torch.nan}),
            "found NaN or an infinite value",
        ),
        (
            lambda tensors: tensors.update({NORM: tensors[NORM] / 0}),
            "found NaN or an infinite value",
        ),
        (
            lambda tensors: tensors.update({NORM: tensors[NORM][1:]}),
            r"found the shape \(7,\), expected \(8,\)",
        ),
        (lambda tensors: tensors.pop(NORM), rf"found no tensor {NORM}, expected"),
        (
            lambda tensors: tensors.update(further=torch.zeros(1)),
            "found the unknown tensor further, expected",
        ),
    ],
)
def test_weights_of_another_form_are_refused_in_one_sentence(change, message, tmp_path):
    path, tensors = (
        tmp_path / "model.safetensors",
        dict(initialise(model_config(), seed=3).state_dict()),
    )
    change(tensors)
    checkpoints.save(path, tensors, Header("weights", 10, 0, {"model": plain(model_config())}, {}))
    with pytest.raises(InputError, match=message):
        checkpoints.load_model(path, model_config(), torch.float32, "cpu")


def test_an_untrained_model_is_that_of_its_identity_and_has_seen_no_token(tmp_path):
    path, identity = (
        tmp_path / "model.safetensors",
        {"seed": 3, "model": plain(model_config()), "data": "ab"},
    )
    checkpoints.save_untrained(path, identity)
    tensors, header = checkpoints.load(path, "weights", identity)
    assert header == Header("weights", 0, 0, identity, {})
    for name, expected in initialise(model_config(), seed=3).state_dict().items():
        assert torch.equal(tensors[name], expected), name


def test_a_checkpoint_is_opened_for_evaluation_with_its_iteration_and_the_seed_of_the_config(
    tmp_path,
):
    path, config = tmp_path / "model.safetensors", model_config()
    header = Header("weights", 10, 0, {"model": plain(config), "seed": 1}, {})
    untrained = initialise(config, seed=3)
    checkpoints.save(path, untrained.state_dict(), header)
    opened = checkpoints.open_checkpoint(path, job_config(model=config, seed=7), "float64")
    assert not opened.model.training
    for (name, wanted), found in zip(
        untrained.named_parameters(), opened.model.parameters(), strict=True
    ):
        assert (found.dtype, found.requires_grad) == (torch.float64, False), name
        assert torch.equal(found, wanted.double()), name
    assert (opened.iteration, opened.seed, opened.device.type) == (10, 7, "cpu")
    hidden = torch.empty(2, config.context_length, config.hidden_size)
    expected = EvaluationNoise(7, [4, 2], config.context_length, config.state_std)(1, 0, hidden)
    assert torch.equal(opened.noise([4, 2])(1, 0, hidden), expected)

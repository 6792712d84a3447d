"""preflight and machine: what is refused before the first job, and what is not."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from twoscale.base import InputError
from twoscale.jobs import machine
from twoscale.model.flops import parameters
from twoscale.workflow import preflight
from twoscale.workflow.runs import Runs

SCRIPTS = Path(__file__).parents[2] / "scripts"


def runs(**config):
    return Runs({"preset": "tiny"} | config, SCRIPTS)


def job(rule, uses_torch=False, **wildcards):
    return preflight.PlannedJob(rule, SimpleNamespace(**{"run": "tiny"} | wildcards), uses_torch)


TRAIN = job("train_segment", uses_torch=True)
ON_CUDA = {"compute": {"device": "cuda"}}


@pytest.fixture
def without_cuda(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("without_cuda")
def test_cuda_is_refused_where_there_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^config key compute.device: found cuda, expected cpu, because .*\.$"):
        preflight.check(runs(**ON_CUDA), [TRAIN])


@pytest.mark.usefixtures("without_cuda")
@pytest.mark.parametrize(
    ("config", "jobs", "here"),
    [
        (ON_CUDA, [job("plot_fig4"), job("join_tokens")], True),
        (ON_CUDA, [], True),
        (ON_CUDA, [TRAIN], False),
        ({}, [TRAIN], True),
    ],
    ids=["no job with torch", "finished", "on a cluster", "on the CPU"],
)
def test_a_plan_that_needs_no_cuda_here_is_not_refused(tmp_path, monkeypatch, config, jobs, here):
    monkeypatch.chdir(tmp_path)
    preflight.check(runs(**config), jobs, here)


@pytest.mark.usefixtures("without_cuda")
def test_a_machine_without_devices_is_named_whatever_torch_is_installed_here():
    with pytest.raises(InputError, match=r"because this machine has no CUDA device\.$"):
        machine.check_cuda("option --device", installed=False)


def test_the_build_of_torch_is_read_without_importing_it():
    torch = pytest.importorskip("torch")

    found = machine.torch_build()
    assert (found["__version__"], found["cuda"], found["hip"]) == (
        torch.__version__,
        torch.version.cuda,
        torch.version.hip,
    )


def test_the_devices_are_those_that_torch_counts():
    torch = pytest.importorskip("torch")

    assert machine.cuda_devices() == torch.cuda.device_count() or torch.version.cuda is None


SEVERAL_NODES = {"train": {"nodes": 2, "processes": 2}}


def test_several_nodes_are_refused_where_jobs_do_not_go_to_slurm():
    for here in (True, False):
        with pytest.raises(InputError, match=r"^config key train.nodes: found 2, expected 1 for jobs that do not"):
            preflight.check(runs(**SEVERAL_NODES), [TRAIN], here)


def test_several_nodes_are_refused_only_where_training_is_planned_without_slurm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    preflight.check(runs(**SEVERAL_NODES), [TRAIN], here=False, slurm=True)
    preflight.check(runs(**SEVERAL_NODES), [job("plot_fig4"), job("extract_trajectories", uses_torch=True)])


def test_several_nodes_are_refused_in_a_container(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^config key train.nodes: found 2, expected 1 for jobs in a container"):
        preflight.check(runs(**SEVERAL_NODES), [TRAIN], here=False, slurm=True, container=True)
    preflight.check(runs(), [TRAIN], here=False, slurm=True, container=True)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nowhere", "found nothing at nowhere, expected a file or "),
        ("empty", r"found no \*.parquet file under empty, expected at least one"),
        ("texts", None),
    ],
)
def test_text_that_is_missing_is_refused_only_if_it_will_be_read(tmp_path, monkeypatch, path, problem):
    monkeypatch.chdir(tmp_path)
    for folder in ("texts", "empty"):
        (tmp_path / folder).mkdir()
    (tmp_path / "texts" / "one.parquet").touch()
    mine = runs(data={"source": "parquet", "path": path})
    preflight.check(mine, [job("plot_fig4"), job("join_tokens")])
    if problem is None:
        preflight.check(mine, [job("prepare_text")])
    else:
        with pytest.raises(InputError, match=f"^config key data.path: {problem}"):
            preflight.check(mine, [job("prepare_text")])


def test_the_bytes_on_disk_grow_with_the_checkpoints_that_are_missing():
    mine = runs()
    weights = 4 * parameters(mine.config.model)
    one, two = (preflight.disk_bytes(mine, [TRAIN] * count) for count in (1, 2))
    assert two - one == weights
    assert one == (1 + 8) * weights
    assert preflight.disk_bytes(mine, [job("plot_fig4"), job("extract_trajectories", uses_torch=True)]) == 0


def test_too_little_disk_is_one_sentence(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    machine.check_disk(tmp_path / "not" / "there", free // 2, "tests")
    with pytest.raises(
        InputError, match=r"^folder .*there: found .* GB of free disk space, expected at least .* GB for tes"
    ):
        machine.check_disk(tmp_path / "not" / "there", 2 * free, "tests")


@pytest.mark.parametrize(
    "source",
    [
        "class Mine: pass",
        "from x import Mine",
        "from x import Other as Mine",
        "from x import *",
        "Mine = make()",
        "if True:\n    class Mine: pass",
    ],
)
def test_a_class_that_a_file_may_define_is_not_refused(tmp_path, source):
    file = tmp_path / "mine.py"
    file.write_text(source)
    assert len(runs(exits=criterion(file, "Mine")).config.exits.criteria) > 1


def test_a_class_that_is_missing_is_refused_with_the_nearest_one(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("class Halving: pass")
    with pytest.raises(InputError, match=r"found no class 'Halvin', expected one \(did you mean Halving\?\)\.$"):
        runs(exits=criterion(file, "Halvin"))


def criterion(file, name):
    return {"criteria": {"mine": {"thresholds": ["1e-2"], "file": str(file), "class": name}}}

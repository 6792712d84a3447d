"""workflow: the files, params and resources of jobs, and the check of a plan, without a call of
Snakemake.
"""

import json
import os
import re
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.published import write_folder
from tests.small import ROOT, of
from tests.small import project as runs
from twoscale.base import InputError
from twoscale.config import ModelConfig, modules_of_model
from twoscale.config.types import key
from twoscale.data import text
from twoscale.figures.catalogue import Figure, figures, inputs_from
from twoscale.model.flops import parameters
from twoscale.workflow import params, resources, snakefile

SCRIPTS = ROOT / "scripts"


def test_the_selected_run_comes_first_then_further_runs_then_studies():
    names = list(runs(run="mine", runs={"other": {"seed": 2}}))
    assert names[:2] == ["mine", "other"]
    studies = dict.fromkeys(name.partition("/")[0] for name in names[2:])
    for study in studies:
        assert (
            runs(run="mine").study(study)
            == [name for name in names if name.startswith(f"{study}/")]
            != []
        )


def test_runs_share_the_text_of_the_selected_run_unless_their_data_differ():
    several = runs(runs={"seeded": {"seed": 2}, "longer": {"data": {"train_characters": 50000}}})
    assert several.data.data_file("val.bin")(of("seeded")) == "results/tiny/data/val.bin"
    assert "results/longer/data/text/shard_001.parquet" in several.data.downloads
    assert len(several.data.downloads) == len(set(several.data.downloads)) == 4


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("gpt2", "resources/gpt2.tiktoken"),
        ("bpe", "results/tiny/data/tokenizer.json"),
        ("bytes", []),
    ],
)
def test_the_file_of_a_tokenizer_follows_its_name(name, file, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    mine = runs(tokenizer={"name": name})
    assert mine.data.tokenizer_file(of()) == file
    assert ("resources/gpt2.tiktoken" in mine.data.downloads) == (name == "gpt2")


def text_of(each, run):
    return each.data.text_file("shard_000.parquet")(of(run))


def test_runs_share_the_text_of_a_hub_where_the_keys_that_shape_it_are_equal(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    others = {
        "near": {"data": {"near_duplicate_tokens": 9}},
        "more": {"data": {"train_characters": 900_000}},
    }
    several = runs(data={"source": "fineweb", "revision": "0123456789abcdef"}, runs=others)
    text = text_of(several, "tiny")
    assert re.fullmatch(
        r"resources/text/HuggingFaceFW-fineweb--sample-10BT--0123456789ab--characters/[0-9a-f]{16}/shard_000\.parquet",
        text,
    )
    assert text_of(several, "near") == text
    assert Path(text_of(several, "more")).parents[1] == Path(text).parents[1]
    assert text_of(several, "more") != text
    assert len(several.data.datasets) == 2
    local = runs(data={"source": "python_docs"})
    assert text_of(local, "tiny") == "results/tiny/data/text/shard_000.parquet"


@pytest.mark.parametrize("kept", ["text", "parts"])
def test_downloads_of_earlier_versions_are_read_where_they_are(kept, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("results/tiny/data", kept).mkdir(parents=True)
    Path("results/gpt2.tiktoken").touch()
    Path("results/models/somebody--model--012345678901").mkdir(parents=True)
    mine = runs(data={"source": "fineweb"}, tokenizer={"name": "gpt2"})
    assert text_of(mine, "tiny") == "results/tiny/data/text/shard_000.parquet"
    assert mine.data.tokenizer_file(of()) == "results/gpt2.tiktoken"
    assert (
        runs(**PUBLISHED).data.model_folder("tiny")
        == "results/models/somebody--model--012345678901"
    )


@pytest.mark.parametrize("iteration", ["000000", "000015"])
def test_a_checkpoint_off_the_schedule_is_refused_in_one_sentence(iteration):
    with pytest.raises(
        InputError,
        match=r"run tiny: found no checkpoint at iteration \d+, expected one of \[10, 20\]\.",
    ):
        runs().segment_start(of(iteration=iteration))


@pytest.mark.parametrize("limit", [text.DIGESTED, 1], ids=["by content", "by size and time"])
def test_an_edited_added_or_renamed_file_of_text_is_another_source_and_one_that_is_gone_is_not(
    tmp_path, monkeypatch, limit
):
    monkeypatch.setattr(text, "DIGESTED", limit)
    monkeypatch.chdir(tmp_path)
    folder, record = tmp_path / "text", tmp_path / "results/tiny/data/source.digest"

    mine = runs(data={"source": "txt", "path": str(folder)})

    def digest():
        return mine.params.source_digest(of())

    folder.mkdir()
    (folder / "a.txt").write_text("one word")
    (folder / "note.md").write_text("no text")
    digests = [digest()]
    written = mine.params.record_source(of(), ["results/tiny/data/text/shard_000.parquet"])
    assert written == f" && echo {digests[0]} > results/tiny/data/source.digest"
    os.utime(folder / "a.txt", (1, 1))
    assert (digest() == digests[0]) == (
        limit > 1
    )  # without its content, a file is known by its time
    for edit in (
        lambda: (folder / "a.txt").write_text("One word"),
        lambda: (folder / "b.txt").write_text(""),
        lambda: (folder / "b.txt").rename(folder / "c.txt"),
    ):
        edit()
        digests.append(digest())
    assert len(set(digests)) == 4
    record.parent.mkdir(parents=True)
    record.write_text("recorded\n")
    shutil.rmtree(folder)
    assert digest() == "recorded"


def test_text_without_files_of_a_user_has_no_digest_to_record():
    params = runs(data={"source": "python_docs"}).params
    assert params.record_source(of(), ["results/tiny/data/text/shard_000.parquet"]) == ""


@pytest.fixture
def ouro(tmp_path):
    """The key `model` of a run of tiny Ouro in a folder."""
    return {"source": "published", "folder": str(write_folder("ouro", tmp_path / "ouro"))}


REPOSITORY = {"source": "published", "repository": "somebody/model", "revision": "0123456789" * 4}
PUBLISHED = {"model": REPOSITORY, "tokenizer": {"name": "published", "vocab_size": 300}}


def test_a_folder_sets_architecture_loops_criteria_and_thresholds_below_the_users_keys(ouro):
    config = runs(model=ouro, exits={"criteria": {"kl": None}}).config
    assert (config.model.groups, config.model.exit_gate, config.tokenizer.name) == (
        ((1, 2),),
        True,
        "published",
    )
    assert (config.trajectories.loops, config.exits.max_loops, config.path_types.window) == (
        4,
        4,
        4,
    )
    assert config.scaling.loops == (1, 2, 4, 8)
    assert config.exits.criteria["fixed"].thresholds == (1, 4)
    assert config.exits.criteria["exit_gate"].thresholds[-1] == 1.0  # the published one
    assert "kl" not in config.exits.criteria
    own = {"max_loops": 3, "criteria": {"fixed": {"thresholds": [3]}}}
    assert runs(model=ouro, exits=own).config.exits.max_loops == 3


def test_a_published_model_is_one_checkpoint_with_the_files_of_its_folder(ouro):
    mine, folder = runs(model=ouro), ouro["folder"]
    assert mine.iterations("tiny") == [0]
    assert (
        mine.last_checkpoint(of())
        == mine.checkpoint_file(of(iteration="000000"))
        == f"{folder}/config.json"
    )
    assert mine.data.model_files(of()) == [f"{folder}/model.safetensors"]
    assert mine.data.tokenizer_file(of()) == f"{folder}/tokenizer.json"
    assert f"{folder}/tokenizer_config.json" in mine.data.tokenizer_settings(of())
    assert mine.study("variants") == []
    for pattern in (mine.trained_pattern, mine.last_segments):
        assert not re.fullmatch(pattern, "tiny")
        assert not re.fullmatch(pattern, "")
    with pytest.raises(
        InputError,
        match="found no checkpoint at iteration 10, expected iteration 0 of the published model",
    ):
        mine.checkpoint_file(of(iteration="000010"))


def test_runs_of_one_repository_share_its_download(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    two = runs(run="a", runs={"b": {"seed": 2}}, **PUBLISHED)
    (name,) = two.data.repositories
    assert name == "somebody--model--012345678901"
    assert (
        two.last_checkpoint(of("a"))
        == two.last_checkpoint(of("b"))
        == f"resources/models/{name}/config.json"
    )
    assert two.data.model_files(of("b")) == [f"resources/models/{name}/published.json"]
    assert two.data.downloads.count(f"resources/models/{name}/published.json") == 1
    assert two.data.repositories[name]["revision"] == REPOSITORY["revision"]


@pytest.mark.parametrize(
    ("needs", "reason"),
    [("training", "has a published model"), ("noise", "has a model without noise")],
)
def test_a_figure_that_a_published_model_does_not_have_is_refused_in_one_sentence(
    ouro, needs, reason
):
    mine = runs(model=ouro)
    mine.figures.rows.append(Figure("mine", inputs_from("training"), **{needs: True}))
    assert "results/mine.pdf" not in mine.figures.of_target("supplementary")
    inputs = mine.figures.inputs(mine.figures.rows[-1])
    with pytest.raises(InputError, match=f"results/mine.pdf: run tiny {reason}"):
        next(iter(inputs.values()))(of())


def test_the_config_of_a_job_is_one_canonical_string_of_sections_scalars_and_derived_values():
    param = runs().params.config_json(
        "run", "seed", "device", "scaling", exits=lambda config: config.exit_grids["exit"]
    )
    text = param(of())
    values = json.loads(text)
    assert text == params.canonical_json(values)
    assert list(values) == ["device", "exits", "run", "scaling", "seed"]
    assert (values["run"], values["device"]) == ("tiny", "cpu")
    assert values["exits"]["criteria"]["fixed"]["thresholds"] == [1, 6]
    assert param(SimpleNamespace()) == text  # without a wildcard: the selected run


def test_a_job_asks_for_more_memory_and_time_at_each_attempt_and_for_the_weights_of_a_published_model(
    monkeypatch,
):
    asked = runs().resources.torch_job("exits", cpus=4)
    assert [asked["mem_mb"](of(), attempt) for attempt in (1, 3)] == [
        4000,
        12000,
    ]  # of a small model
    assert asked["runtime"](of(), attempt=2) == 120
    assert runs().resources.exit_threads(11)(of(grid="exit")) == 2  # four criteria share the cores
    assert runs().resources.exit_threads(2)(of(grid="exit")) == 1
    of_published = runs(**PUBLISHED).resources.torch_job("trajectories")["mem_mb"]
    monkeypatch.setattr(resources, "parameters", lambda model: 10**9)
    assert of_published(of(), attempt=2) == 2 * (8000 + 8000)  # float64


def in_file(file, name="Mine"):
    return {"criteria": {"mine": {"thresholds": ["1e-2"], "file": str(file), "class": name}}}


def test_a_job_of_one_criterion_depends_on_it_and_its_code_alone(tmp_path):
    digests = []
    for number, code in enumerate(("Mine = 1", "Mine = 1  # a comment", "Mine = 2")):
        file = tmp_path / f"{number}.py"
        file.write_text(code)
        of_all = json.loads(runs(exits=in_file(file)).params.exit_config("exit")(of()))
        digests.append(of_all["criterion_files"]["mine"])
    assert digests[0] == digests[1] != digests[2]
    plain, own = runs(), runs(exits=in_file(file))
    for grid, exits in plain.config.exit_grids.items():
        name = next(name for name in exits.criteria if name != "fixed")
        before, after = (
            some.params.exit_config()(of(grid=grid, criterion=name)) for some in (plain, own)
        )
        assert before == after
        assert list(json.loads(after)["exits"]["criteria"]) == [name]
    assert plain.params.exit_config("exit")(of()) != own.params.exit_config("exit")(of())


def test_the_code_of_a_job_has_the_modules_for_its_model_and_the_defaults_that_no_slice_has(
    monkeypatch, ouro
):
    script, codes = "fetch_gpt2", []  # imports no model
    for default in (1.0, 2.0):
        module = ModuleType("twoscale.model.kernels")
        namespace = {
            "__annotations__": {"gain": float},
            "gain": key(default, "Gain.", source="ours", optional=True),
        }
        module.Config = type("Config", (ModelConfig,), namespace)
        monkeypatch.setitem(sys.modules, "twoscale.model.kernels", module)
        mine = runs(model={"architecture": "kernels"})
        assert "gain" not in mine.params.training_identity(of())
        codes.append(mine.params.torch_code(script)(of()))
    models = [runs(), mine, runs(model=ouro)]
    names = [modules_of_model(mine.config) for mine in models]
    assert names == [[], ["twoscale.model.kernels"], ["twoscale.model.published.weights"]]
    assert len({*codes, *(mine.params.torch_code(script)(of()) for mine in models)}) == 4


class Files(list):
    """Files of a job with names, as Snakemake hands them to functions."""

    def __init__(self, **files):
        super().__init__(files.values())
        self.items = files.items


def test_named_files_are_the_options_of_a_job():
    files = Files(start="a b.bin", train="t.bin")
    options = runs().params.torch_script("measure", config=None, tables=())["files"]
    assert options(of(), files, Files(metrics=["m", "n"], none=[])) == (
        "--start 'a b.bin' --train t.bin --metrics m n"
    )


def test_a_job_file_is_written_once_repaired_and_no_condition_of_a_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    param = params.job_file(config=lambda wildcards: '{"a":1}', download=lambda wildcards: "{}")
    file = Path(param(of(), []))
    assert file.read_text() == '{"config":{"a":1},"download":{}}'
    written = file.stat().st_mtime_ns
    assert param(of(), []) == str(file)
    assert file.stat().st_mtime_ns == written
    file.write_text("")  # as after a power failure
    param(of(), [])
    assert file.read_text() != ""
    assert [*file.parent.iterdir()] == [file]
    shutil.rmtree(".snakemake")
    Path(".snakemake").touch()  # where no file can be written
    assert param(of(), []) == str(file)


@pytest.mark.parametrize(
    ("train", "device", "command"),
    [
        ({}, "cpu", "python {0}/x.py"),
        ({}, "cuda", "python {0}/with_gpus.py 1 python {0}/x.py"),
        (
            {"processes": 2},
            "cuda",
            "python {0}/with_gpus.py 2 python {0}/with_nodes.py 1 2 8 2 {0}/x.py",
        ),
        (
            {"processes": 4, "nodes": 2, "cpu_threads": 3},
            "cpu",
            "python {0}/with_nodes.py 2 2 6 0 {0}/x.py",
        ),
    ],
)
def test_the_training_command_leases_gpus_and_starts_the_processes(train, device, command):
    mine = runs(train=train, compute={"device": device})
    assert mine.params.training_command("x")(of(), output=None) == command.format(SCRIPTS)
    assert train or mine.params._torch_command("x")(of(), output=None) == command.format(SCRIPTS)


def test_a_job_on_several_nodes_asks_for_them_and_for_its_share_of_each():
    several = {"nodes": 2, "tasks": 2, "mpi": "srun", "tasks_per_gpu": 0, "gpu": 0}
    # GPUs of the job, which gres has, and CPUs of a node
    devices = {"cpu": {"cpus_per_task": 6, "gpu_slot": 0}}
    devices["cuda"] = {"gres": "gpu:2", "cpus_per_task": 8, "gpu_slot": 4}
    for device, own in devices.items():
        job = runs(
            train={"processes": 4, "nodes": 2, "cpu_threads": 3}, compute={"device": device}
        ).resources
        assert job.training_threads(of()) == 6  # of a node
        asked = {name: value(of()) for name, value in job.training_job().items()}
        assert {name: value for name, value in asked.items() if value is not None} == several | own


@pytest.mark.parametrize(("preset", "used"), [("tiny", 408), ("demo", 1572), ("overnight", 3661)])
def test_a_training_job_on_the_cpu_asks_for_what_it_takes_and_not_for_three_times_as_much(
    preset, used
):
    """Peaks in MB that Snakemake measured; `overnight` has the model of the run on FineWeb. Below
    500 it is torch.
    """
    asked = runs(preset=preset).resources.training_mb(of(run=preset), 1)
    assert used < asked < 1500 + 3 * used


def test_the_curves_read_the_tables_of_all_seeds_only_where_the_band_is_asked_for():
    both = [
        "results/tiny/tables/loop_metrics.parquet",
        "results/tiny-seed7/tables/loop_metrics.parquet",
    ]
    for config, wanted in (
        ({"seeds": [7]}, both[:1]),
        ({"figures": {"seed_band": True}}, both[:1]),
        ({"seeds": [7], "figures": {"seed_band": True}}, both),
    ):
        mine, by_name = runs(**config), {figure.name: figure for figure in figures()}
        assert mine.figures.inputs(by_name["fig3"])["loop_metrics"] == wanted
        assert len(mine.figures.inputs(by_name["fig4"])["exit_quality"]) == 1


@pytest.mark.parametrize(
    ("groups", "missing"), [([[2], [3]], []), ([[2]], []), ([], [f"fig{n}" for n in range(1, 6)])]
)
def test_targets_have_the_figures_that_the_groups_allow(groups, missing):
    mine = runs(model={"groups": groups})
    names = [Path(file).stem for file in mine.figures.of_target("all")]
    assert names == [f"fig{n}" for n in range(1, 6) if f"fig{n}" not in missing]
    if groups:
        pages = ["results/claims.md", "results/loops.html"]
        assert mine.figures.results(of()) == [*mine.figures.of_target("all"), *pages]
    else:
        with pytest.raises(InputError, match=r"^run \S+: found no looped groups"):
            mine.figures.results(of())
        with pytest.raises(InputError, match=r"^results/loops\.html: run \S+ has no looped groups"):
            mine.figures.loops_trajectories(of())


def test_the_loops_page_is_none_of_a_release_because_that_has_no_trajectories():
    mine = runs(release=str(ROOT / "docs" / "demo-release"))
    assert "results/loops.html" not in mine.figures.results(of())
    sentence = r"^results/loops\.html: run demo is from the release \S+, which has no trajectories"
    with pytest.raises(InputError, match=sentence):
        mine.figures.loops_trajectories(of())


def test_the_report_has_the_figures_of_the_paper_and_those_whose_tables_exist(
    tmp_path, monkeypatch
):
    """A table that a job of the same call writes does not count: inputs were chosen before, params
    are read after.
    """
    monkeypatch.chdir(tmp_path)
    paper = [f"results/tiny/figures/fig{number}.svg" for number in range(1, 6)]
    before, after = runs(), runs()
    for mine in (before, after):
        mine.figures.rows.append(
            Figure("mine", inputs_from("mine"), title="A figure", sentence="twoscale.mine.sentence")
        )
    assert before.figures.pictures(of()) == paper
    assert before.figures.reported_tables(of()) == []
    mine = tmp_path / "results/tiny/tables/mine.parquet"
    mine.parent.mkdir(parents=True)
    mine.touch()
    assert after.figures.pictures(of()) == [*paper, "results/tiny/figures/mine.svg"]
    assert after.figures.reported_tables(of()) == ["results/tiny/tables/mine.parquet"]
    shown = (
        json.loads(some.figures.overview_config(of()))["report_figures"] for some in (before, after)
    )
    titles = [[figure["title"] for figure in each] for each in shown]
    assert titles == [titles[0], [*titles[0], "A figure"]]
    assert titles[0][-1] == "Fig. 5, angles over all loop steps"


# --- the check of a plan --------------------------------------------------------------------------


def job(rule, uses_torch=False, **wildcards):
    return snakefile.PlannedJob(rule, SimpleNamespace(**{"run": "tiny"} | wildcards), uses_torch)


TRAIN = job("train_segment", uses_torch=True)
ON_CUDA = {"compute": {"device": "cuda"}}
SEVERAL_NODES = {"train": {"nodes": 2, "processes": 2}}
OTHERS = [job("plot_fig4"), job("join_tokens")]
# config, jobs, where they run, and the refusal
PLANS = {
    "CUDA": (
        ON_CUDA,
        [TRAIN],
        {},
        r"^config key compute.device: found cuda, expected cpu, because .*\.$",
    ),
    "CUDA in conda": (
        ON_CUDA,
        [TRAIN],
        {"installed": False},
        r"because this machine has no CUDA device\.$",
    ),
    "nodes": (
        SEVERAL_NODES,
        [TRAIN],
        {"here": False},
        r"^config key train.nodes: found 2, expected 1 for jobs that do",
    ),
    "no job with torch": (ON_CUDA, OTHERS, {}, None),
    "on a cluster": (ON_CUDA, [TRAIN], {"here": False}, None),
    "nodes with srun": (SEVERAL_NODES, [TRAIN], {"here": False, "srun": True}, None),
    "nodes without training": (
        SEVERAL_NODES,
        [*OTHERS, job("extract_trajectories", uses_torch=True)],
        {},
        None,
    ),
}


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_that_this_machine_cannot_carry_out_is_refused_and_no_other(
    plan, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config, jobs, where, sentence = PLANS[plan]
    with pytest.raises(InputError, match=sentence) if sentence else nullcontext():
        snakefile.check(runs(**config), jobs, **where)


def test_the_bytes_on_disk_grow_with_the_checkpoints_that_are_missing():
    mine = runs()
    weights = 4 * parameters(mine.config.model)
    one, two = (snakefile.disk_bytes(mine, [TRAIN] * count) for count in (1, 2))
    assert two - one == weights
    assert one == (1 + 8) * weights
    assert (
        snakefile.disk_bytes(mine, [job("plot_fig4"), job("extract_trajectories", uses_torch=True)])
        == 0
    )
    hub_model = runs(**PUBLISHED)
    (model,) = hub_model.data.repositories
    fetch = snakefile.PlannedJob("fetch_model", SimpleNamespace(model=model), False)
    assert snakefile.disk_bytes(hub_model, [fetch]) > 0

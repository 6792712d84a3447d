"""Where text, tokens, tokenizers and published models lie, for each run of a config.

What comes from a network is in resources/, which runs share; what can be made again is in results/.
Unless noted, methods are input functions of Snakemake or return one.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from twoscale import config as configs
from twoscale.base import json_digest
from twoscale.config import Config, ModelConfig

RESULTS = "results"  # folder of runs here
_RESOURCES = "resources"  # folder of what comes from a network, which runs share
_GPT2 = "gpt2.tiktoken"
_TOKENIZER = "tokenizer.json"
MANIFEST = "published.json"  # of a model from the hub, written when its download is complete
# Further files of a published model that may name its end of text.
_TOKENIZER_SETTINGS = ("tokenizer_config.json", "generation_config.json", "config.json")


class DataFiles:
    """Files of the text, the tokens, the tokenizer and the published model of each run.

    Args:
        runs: Name -> config, the selected run first.
    """

    def __init__(self, runs: Mapping[str, Config]) -> None:
        self.configs = runs
        self.selected = next(iter(runs))

    def of(self, wildcards: Any) -> tuple[str, Config]:
        """The run that these wildcards are about, and its config."""
        if hasattr(wildcards, "dataset"):
            run = self.datasets[wildcards.dataset]
        else:
            run = getattr(wildcards, "run", self.selected)
        return run, self.configs[run]

    # --- text and tokens --------------------------------------------------------------------------

    @property
    def text_shards(self) -> list[str]:
        shards = self.configs[self.selected].data.text_shards
        return [f"shard_{number:03d}" for number in range(shards)]

    def data_run(self, run: str) -> str:
        """The run whose text and tokens `run` trains on: the selected one, unless what shapes them
        differs.
        """

        def identity(config: Config) -> tuple[Any, ...]:
            model = config.model
            # a published tokenizer is part of the model
            published = config.tokenizer.name == "published"
            return (
                config.data,
                config.tokenizer,
                published and (model.repository, model.revision, model.folder),
            )

        is_shared = identity(self.configs[run]) == identity(self.configs[self.selected])
        return self.selected if is_shared else run

    def data_file(self, name: str) -> Callable:
        """A file of the text or tokens that the run trains on."""
        return lambda wildcards: f"results/{self.data_run(self.of(wildcards)[0])}/data/{name}"

    @cached_property
    def datasets(self) -> dict[str, str]:
        """Name of a text from a hub, a folder in resources/text -> the first run with this text."""
        runs: dict[str, str] = {}
        for run in self.configs:
            if (dataset := self.dataset(run)) is not None:
                runs.setdefault(dataset, run)
        return runs

    def dataset(self, run: str) -> str | None:
        """<data set>/<digest of the keys that shape the text>, if the text of a run comes from a
        hub.

        Texts of one data set share the folder of their parts, from which a larger text continues.
        """
        data = self.configs[run].data
        if data.source in (*configs.FILE_SOURCES, "python_docs"):
            return None
        quota = configs.text_quota(data, self.configs[run].tokenizer)
        name = "--".join([data.repository, data.subset, data.revision[:12], quota.unit])
        digest = json_digest([configs.text_source(data), asdict(quota)])
        return f"{re.sub('[^A-Za-z0-9._-]', '-', name)}/{digest}"

    def text_folder(self, run: str) -> str:
        """The folder with the text of a run: with its results, or in resources/ if it comes from a
        hub.
        """
        own = f"results/{self.data_run(run)}/data"
        dataset = self.dataset(run)
        # earlier versions kept texts and parts of a hub there too
        kept = any(Path(own, name).is_dir() for name in ("text", "parts"))
        return f"{own}/text" if dataset is None or kept else f"{_RESOURCES}/text/{dataset}"

    def text_file(self, name: str) -> Callable:
        """A file of the text that the run trains on."""
        return lambda wildcards: f"{self.text_folder(self.of(wildcards)[0])}/{name}"

    @property
    def held_out(self) -> dict[str, Callable]:
        """Held-out tokens, inputs of all jobs that open a checkpoint."""
        return {"val": self.data_file("val.bin"), "metadata": self.data_file("tokens.json")}

    def tokenizer_file(self, wildcards: Any) -> str | list[str]:
        """The file of the run's tokenizer; empty for bytes, which have none."""
        run, config = self.of(wildcards)
        match config.tokenizer.name:
            case "published":
                return f"{self.model_folder(run)}/{_TOKENIZER}"
            case "bpe":
                return self.data_file(_TOKENIZER)(wildcards)
            case name:
                return downloaded(_GPT2) if name == "gpt2" else []

    def tokenizer_settings(self, wildcards: Any) -> list[str]:
        """Further files on which the tokens of a published model depend."""
        model = self.of(wildcards)[1].model
        if model.folder is None:
            return self.model_files(wildcards)
        paths = [Path(model.folder, name) for name in _TOKENIZER_SETTINGS]
        return [str(path) for path in paths if path.is_file()]

    @property
    def downloads(self) -> list[str]:
        """Files of all runs that later jobs cannot recreate without a network."""
        files = []
        for run, config in self.configs.items():
            folder = self.text_folder(run)
            files += [f"{folder}/{shard}.parquet" for shard in self.text_shards]
            if config.tokenizer.name == "gpt2":
                files.append(downloaded(_GPT2))
            if config.model.repository is not None:
                files.append(f"{self.model_folder(run)}/{MANIFEST}")
        return list(dict.fromkeys(files))

    # --- published models -------------------------------------------------------------------------

    @cached_property
    def repositories(self) -> dict[str, dict[str, str | None]]:
        """Name of a folder in resources/models -> repository and revision of the hub that it is
        downloaded from.
        """
        models = (
            config.model for config in self.configs.values() if config.model.repository is not None
        )
        return {
            repository_name(each): {"repository": each.repository, "revision": each.revision}
            for each in models
        }

    def model_folder(self, run: str) -> str:
        """The folder with the files of a published model."""
        model = self.configs[run].model
        return (
            model.folder
            if model.folder is not None
            else downloaded(f"models/{repository_name(model)}")
        )

    def model_files(self, wildcards: Any) -> list[str]:
        """The files of a published model besides config.json; for those of a repository, the
        manifest of a download.
        """
        run, config = self.of(wildcards)
        if trains(config):
            return []
        if config.model.folder is None:
            return [f"{self.model_folder(run)}/{MANIFEST}"]
        reader, folder = configs.folder_reader(), Path(config.model.folder)
        index, files = folder / reader.INDEX, reader.PublishedFolder(folder).weight_files
        return [str(path) for path in ([index] if index.is_file() else []) + files]


def downloaded(name: str) -> str:
    """Where a download is: in resources/, or in results/, where earlier versions kept it."""
    earlier = f"{RESULTS}/{name}"
    return earlier if Path(earlier).exists() else f"{_RESOURCES}/{name}"


def repository_name(model: ModelConfig) -> str:
    """Name of the folder that a published model is downloaded to."""
    assert model.repository is not None
    assert model.revision is not None
    return f"{model.repository.replace('/', '--')}--{model.revision[:12]}"


def trains(config: Config) -> bool:
    """Whether the weights of a run are trained here."""
    return config.model.source == "trained"

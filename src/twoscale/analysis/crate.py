"""A finished run as an RO-Crate: code, config, results, and which job made which file from which others, and when.

The crate conforms to the profile Provenance Run Crate 0.5 of Workflow Run RO-Crate (https://w3id.org/ro/wfrun), with
one action per job. The jobs are read from the records that Snakemake keeps in `.snakemake/metadata`, one JSON
file per output. A file of the crate has the path that it has in the checkout. A file that a job read or wrote but that
the crate leaves out, such as a checkpoint, is described with its size and SHA-256 as a `CreativeWork`.
"""

import json
import mimetypes
import shutil
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from twoscale.base import InputError, sha256
from twoscale.config import PROJECT
from twoscale.export import citation as citations
from twoscale.report.snapshot import MANIFEST

if TYPE_CHECKING:
    from rocrate.model import ContextEntity
    from rocrate.rocrate import ROCrate

    from twoscale.jobs.study_job import StudyJob

RECORDS = Path(".snakemake", "metadata")
CONFIG = "config.json"  # in the crate: every key of the run; `snakemake --configfile config.json` plans it again
MAIN = "Snakefile"
# Files and folders of the checkout that the crate contains.
CODE = (
    *(MAIN, "config.yaml", "workflow", "scripts", "src", "envs", "profiles", "pyproject.toml"),
    *("requirements.txt", citations.FILE, "LICENSE", "README.md"),
)
NOT_CODE = ("__pycache__", "*.egg-info", "*.sif")
# The profiles that the crate conforms to, with their names.
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/ro/wfrun/provenance/0.5": "Provenance Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
WORKFLOW_PROFILE = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
MEDIA_TYPES = {".parquet": "application/vnd.apache.parquet", ".safetensors": "application/octet-stream"}


@dataclass(frozen=True)
class Job:
    """A job that Snakemake has recorded. Times are seconds since 1970, None where the record has none."""

    rule: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    start: float | None
    end: float | None


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Snakemake's records by the path of the output; those that cannot be read are left out.

    Args:
        folder: `RECORDS` of the folder that the jobs ran in. A file is named after the path in URL-safe base64; a long
            name is split, and all parts but the last are folders that begin with "@".
    """
    records = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = "".join(part.removeprefix("@") for part in file.relative_to(folder).parts)
        try:
            path, record = urlsafe_b64decode(name).decode(), json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # ValueError: also what base64, UTF-8 and JSON raise
            continue
        if isinstance(record, dict) and record.get("rule"):
            records[path] = record
    return records


def jobs_behind(results: Iterable[str], records: Mapping[str, Mapping[str, Any]]) -> list[Job]:
    """The jobs that made `results`, and those that made their inputs, in the order of their start.

    Args:
        results: Paths of outputs. One without a record was made by no job that is known.
        records: As of `read_records`.
    """
    outputs: dict[tuple[str, str], list[str]] = {}  # the outputs of one job have the same rule and command
    waiting, seen = list(results), set()
    while waiting:
        path = waiting.pop()
        if path in seen or path not in records:
            continue
        seen.add(path)
        record = records[path]
        outputs.setdefault((record["rule"], record.get("shellcmd") or path), []).append(path)
        waiting += record.get("input") or []
    found = [_job(rule, sorted(paths), records) for (rule, _), paths in outputs.items()]
    return sorted(found, key=lambda job: (job.start or 0.0, job.rule, job.outputs))


def _job(rule: str, outputs: list[str], records: Mapping[str, Mapping[str, Any]]) -> Job:
    of_outputs = [records[output] for output in outputs]
    inputs = dict.fromkeys(path for record in of_outputs for path in record.get("input") or [])
    times = [(record.get("starttime"), record.get("endtime")) for record in of_outputs]
    return Job(rule, tuple(inputs), tuple(outputs), *_span(times))


def _span(times: Sequence[tuple[float | None, float | None]]) -> tuple[float | None, float | None]:
    """The first of these starts and the last of these ends that are known."""
    starts, ends = ([time for time in part if time is not None] for part in zip(*times, strict=True))
    return min(starts, default=None), max(ends, default=None)


def write(folder: Path, snapshot: Path, project: Path, snakemake: str) -> None:
    """Write the crate of a run into `folder`, which is created; the working directory is the one of the run.

    Args:
        snapshot: Folder of `snakemake snapshot`: figures, claims and tables below `results`, with a manifest.
        project: Checkout with the code that the crate contains.
        snakemake: Version of Snakemake.

    Raises InputError if the package rocrate is not installed or Snakemake has recorded none of the files.
    """
    try:
        from rocrate.rocrate import ROCrate
    except ImportError:
        raise InputError(
            "Python package rocrate: not installed; install it with `pip install rocrate`, or use the environment "
            "envs/analysis.yaml."
        ) from None
    manifest = json.loads((snapshot / MANIFEST).read_text(encoding="utf-8"))
    results = {f"results/{name}": snapshot / name for name in manifest["files"]}
    jobs = jobs_behind(results, read_records(RECORDS))
    if not jobs:
        raise InputError(f"{RECORDS}: found no records of the jobs that made the {len(results)} files of {snapshot}.")
    crate = _Builder(ROCrate(version="1.1"), folder, project, manifest, snakemake)
    crate.add_files({MANIFEST: snapshot / MANIFEST} | results, jobs)
    crate.add_jobs(jobs)
    crate.crate.write(folder)


class _Builder:
    """The entities of one crate. Files are copied into `folder` at once, or when the crate is written."""

    def __init__(
        self, crate: "ROCrate", folder: Path, project: Path, manifest: Mapping[str, Any], snakemake: str
    ) -> None:
        self.crate, self.folder, self.project, self.manifest = crate, folder, project, manifest
        self.files: dict[str, Any] = {}  # path in the checkout -> entity
        # the context of RO-Crate 1.1 is older than the term
        crate.metadata.extra_terms["sha256"] = "https://schema.org/sha256"
        citation = citations.read(project)
        self.version = citation["version"]
        self._describe_root(citation)
        self._add_code(snakemake)

    def _describe_root(self, citation: Mapping[str, Any]) -> None:
        crate, run = self.crate, self.manifest["run"]
        crate.name = f"Run {run} of: {citation['title']}"
        commit = self.manifest["commit"] or "unknown"
        changed = " with changes" if self.manifest["modified"] else ""
        crate.description = (
            f"Figures, claims and tables of the run {run}, the code and the config that they were made with, and the "
            f"jobs that made them. Commit of the code: {commit}{changed}."
        )
        crate.root_dataset["author"] = _value(
            self._entity(
                f"#author/{number}",
                "Person" if citations.is_person(author) else "Organization",
                name=citations.author_name(author),
            )
            for number, author in enumerate(citation["authors"], 1)
        )
        crate.root_dataset["citation"] = _value(
            self._entity(reference["url"], "ScholarlyArticle", name=reference["title"])
            for reference in citation["references"]
        )
        crate.root_dataset["conformsTo"] = [
            self._entity(profile, "CreativeWork", name=name, version=profile.rpartition("/")[2])
            for profile, name in PROFILES.items()
        ]

    def _add_code(self, snakemake: str) -> None:
        """Copy the code; the Snakefile becomes the main entity, a folder becomes one entity."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in CODE:
            source = self.project / name
            if source.is_dir():
                shutil.copytree(
                    source, self.folder / name, ignore=shutil.ignore_patterns(*NOT_CODE), dirs_exist_ok=True
                )
                self.crate.add_dataset(dest_path=name, properties={"name": f"code of the workflow: {name}"})
            elif name != MAIN:
                self.crate.add_file(source, name, properties=_file_properties(source))
        self.crate.license = self.crate.dereference("LICENSE")
        self.crate.dereference("README.md")["about"] = self.crate.root_dataset
        # HowTo: it has steps
        kinds = ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"]
        properties = _file_properties(self.project / MAIN) | {"@type": kinds, "version": self.version}
        self.workflow = self.crate.add_workflow(
            self.project / MAIN, MAIN, properties=properties, main=True, lang="snakemake", lang_version=snakemake
        )
        self.workflow["conformsTo"] = {"@id": WORKFLOW_PROFILE}
        self.engine = self._entity("#snakemake", "SoftwareApplication", name="Snakemake", softwareVersion=snakemake)
        path = self.folder / CONFIG
        config = {"run": self.manifest["run"], **self.manifest["config"]}
        path.write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        self.config = self.crate.add_file(path, CONFIG, properties=_file_properties(path))
        parameter = self.crate.add_formal_parameter("config", "File", "#config", "every key of the run's config")
        parameter["workExample"], self.config["exampleOfWork"] = self.config, parameter
        self.workflow["input"] = parameter

    def add_files(self, contained: Mapping[str, Path], jobs: Iterable[Job]) -> None:
        """Add the files of the crate, and describe those that are only read or written on the way to them."""
        for name, source in contained.items():
            self.files[name] = self.crate.add_file(source, name, properties=_file_properties(source))
        for name in (name for job in jobs for name in (*job.inputs, *job.outputs)):
            if name not in self.files:
                path = Path(name)
                # no folders of the user's machine
                shown = f"elsewhere/{len(self.files)}/{path.name}" if path.is_absolute() else name
                properties = (_file_properties(path) if path.is_file() else {}) | {"name": shown}
                self.files[name] = self._entity(f"#{quote(shown)}", "CreativeWork", **properties)

    def add_jobs(self, jobs: Sequence[Job]) -> None:
        """Add one action per job, one step and one tool per rule, and the action of the whole run."""
        rules = list(dict.fromkeys(job.rule for job in jobs))
        tools = {
            rule: self._entity(f"#rule/{rule}", "SoftwareApplication", name=rule, softwareVersion=self.version)
            for rule in rules
        }
        steps = {
            rule: self._entity(f"#step/{rule}", "HowToStep", name=rule, position=str(position), workExample=tools[rule])
            for position, rule in enumerate(rules, 1)
        }
        self.workflow["step"], self.workflow["hasPart"] = _value(steps.values()), _value(tools.values())
        actions: dict[str, list[Any]] = {rule: [] for rule in rules}
        for number, job in enumerate(jobs, 1):
            action = self._action(f"#job/{number}", job.rule, tools[job.rule], [job])
            action["description"] = f"Job {number} of {len(jobs)}, which wrote {', '.join(job.outputs)}."
            if job.inputs:
                action["object"] = _value(self.files[name] for name in job.inputs)
            action["result"] = _value(self.files[name] for name in job.outputs)
            actions[job.rule].append(action)
        run = self._action("#run", f"run {self.manifest['run']}", self.workflow, jobs)
        run["description"] = f"All {len(jobs)} jobs that the figures, claims and tables of the run are made by."
        run["object"] = self.config
        run["result"] = _value(entity for entity in self.files.values() if "File" in entity.type)
        controls = [
            self._entity(f"#control/{rule}", "ControlAction", instrument=steps[rule], object=_value(actions[rule]))
            for rule in rules
        ]
        self._entity(
            "#orchestration",
            "OrganizeAction",
            name="Snakemake",
            instrument=self.engine,
            object=_value(controls),
            result=run,
        )
        self.crate.root_dataset["mentions"] = [run, *(action for of_rule in actions.values() for action in of_rule)]
        if "endTime" in run:
            self.crate.root_dataset["datePublished"] = run["endTime"]

    def _action(self, identifier: str, name: str, instrument: Any, jobs: Sequence[Job]) -> "ContextEntity":
        """An action from the start of the first to the end of the last of these jobs, as far as they are recorded."""
        start, end = _span([(job.start, job.end) for job in jobs])
        times = {name: _iso(time) for name, time in (("startTime", start), ("endTime", end)) if time is not None}
        return self._entity(identifier, "CreateAction", name=name, instrument=instrument, **times)

    def _entity(self, identifier: str, kind: str, **properties: Any) -> "ContextEntity":
        from rocrate.model import ContextEntity

        entity = self.crate.add(ContextEntity(self.crate, identifier, properties={"@type": kind}))
        for key, value in properties.items():
            entity[key] = value
        return entity


def _value(entities: Iterable[Any]) -> Any:
    """The value of a property: one entity alone, several as a list."""
    found = list(entities)
    return found[0] if len(found) == 1 else found


def _file_properties(path: Path) -> dict[str, str]:
    kind = MEDIA_TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
    return {
        "name": path.name,
        "contentSize": str(path.stat().st_size),
        "encodingFormat": kind,
        "sha256": sha256(path),
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def run(job: "StudyJob") -> None:
    """The job of the workflow. The jobs of a run come from Snakemake's records, which are no inputs."""
    write(job.file("crate"), job.file("snapshot"), PROJECT, job.config.snakemake)

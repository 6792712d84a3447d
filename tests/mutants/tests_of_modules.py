"""The modules of the core and of studies, and the files of tests that have to notice a fault in each, in order."""

from pathlib import Path

STUDIES = Path(__file__).parents[2] / "src" / "twoscale" / "studies"

# Module -> names of tests/unit/test_<name>.py.
CORE = {
    "model/transformer": ["model", "loss"],
    "model/noise": ["noise"],
    "model/linear": ["linear"],
    "model/rms_norm": ["rms_norm"],
    "model/loss": ["loss"],
    "model/attention": ["attention", "model"],
    "model/checkpoints": ["checkpoints", "published"],
    "model/flops": ["plan"],
    "exits/criteria": ["criteria"],
    "exits/criterion_file": ["criteria"],
    "exits/parallel": ["engine"],
    "exits/decoder": ["engine"],
    "exits/batched": ["batched"],
    "exits/controls": ["exit_controls"],
    "exits/oracle": ["fixed_loops", "probe"],
    "exits/probe": ["probe"],
    "exits/probe_fit": ["probe"],
    "exits/sequence_pass": ["lens", "regret"],
    "dynamics/vectors": ["measures", "criteria"],
    "dynamics/measures": ["measures"],
    "dynamics/trajectories": ["trajectories"],
    "dynamics/path_types": ["path_types"],
    "training/exit_gate": ["exit_gate"],
    "jobs/launch": ["launch"],
    "training/compilation": ["compile"],
    "training/recipe": ["training", "compile", "processes", "fake_cuda_training"],
    "training/state": ["training"],
    "training/trainer": ["training", "compile", "processes", "metrics_log", "fake_cuda_training"],
    "data/batches": ["batches", "rng"],
    "data/shards": ["shards"],
    "data/source_files": ["text_files", "workflow"],
    "data/token_files": ["shards"],
    "data/text": ["text"],
    "data/text_files": ["text_files", "text"],
    "data/ingestion": ["ingestion", "hub"],
    "data/hub": ["hub"],
    "analysis/aggregate": ["aggregate"],
    "analysis/bootstrap": ["bootstrap", "summaries"],
    "analysis/claims": ["claims_numbers", "claims"],
    "analysis/claims_exits": ["claims_numbers", "claims"],
    "analysis/claims_geometry": ["claims_numbers", "claims"],
    "analysis/evidence": ["claims_numbers", "claims"],
    "analysis/seeds": ["seeds"],
    "analysis/release": ["release"],
    "analysis/release_check": ["release_check"],
    "export/sources": ["export"],
    "export/model_card": ["export"],
    "export/folder": ["export"],
    "export/released": ["export"],
    "config/__init__": ["config_sections", "config_loading"],
    "config/definitions": ["config_sections", "plan"],
    "config/thresholds": ["config_sections"],
    "config/sections": ["config_sections", "config_reference", "config_loading", "plan"],
    "config/loading": ["config_loading"],
    "config/identity": ["config_sections", "config_loading"],
    "config/messages": ["config_sections", "config_loading"],
    "jobs/fingerprint": ["fingerprint", "preflight"],
    "files": ["files", "command"],
    "jobs/kept": ["kept"],
    "rng": ["rng"],
    "workflow": ["workflow"],
}

# The same for modules of studies: names of tests/studies/<study>/test_<name>.py.
OF_STUDIES = {
    "studies/arena/compare": ["arena"],
    "studies/arena/frozen": ["regret"],
    "studies/arena/page": ["arena"],
    "studies/arena/regret": ["regret"],
    "studies/calibration/compare": ["calibration"],
    "studies/calibration/measure": ["calibration"],
    "studies/calibration/per_group": ["per_group"],
    "studies/calibration/risk_control": ["risk_control"],
    "studies/throughput/measure": ["throughput"],
}


def files_of(module: str) -> list[str]:
    """The files of tests of a module, relative to the project."""
    if module in CORE:
        return [f"tests/unit/test_{name}.py" for name in CORE[module]]
    return [f"tests/studies/{module.split('/')[1]}/test_{name}.py" for name in OF_STUDIES[module]]


# Those of studies that are not here are left out.
MODULES = [*CORE, *(module for module in OF_STUDIES if (STUDIES / module.split("/")[1]).is_dir())]

# Slow tests of the engines, and criteria and models that ask no more of an engine than those that are left.
SLOW = "compiled or captured or float32 or cosine or minp or entropy or argmax or relative or normalized"
SLOW += " or Ouro or retrofitted or branch or blend"

# Which tests of these files, as for pytest -k: the others take most of the time and see no further fault.
SELECTED = {
    "model/flops": "flops or parameters or cache or count or bytes or row",
    "model/checkpoints": "test_checkpoints or opens_as_a_checkpoint",
    "training/recipe": "test_training or test_compile or two_processes_train or missing_package or finite or whole-b",
    "training/trainer": "test_training or test_compile or two_processes_train or missing_package or finite or whole-b",
    "exits/parallel": f"not ({SLOW} or replay or slots or warm or predictions)",
    "exits/decoder": f"not ({SLOW})",
}

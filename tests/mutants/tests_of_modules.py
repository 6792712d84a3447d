"""The modules of the core, and the files tests/unit/test_<name>.py that have to notice a fault in each, in order."""

TESTS = {
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
    "exits/per_group": ["per_group"],
    "exits/calibration": ["calibration"],
    "dynamics/measures": ["measures", "criteria"],
    "dynamics/trajectories": ["trajectories"],
    "dynamics/path_types": ["path_types"],
    "training/trainer": ["training", "compile", "processes", "metrics_log"],
    "data/batches": ["batches", "rng"],
    "data/shards": ["shards"],
    "data/text": ["text"],
    "data/text_files": ["text_files", "text"],
    "data/ingestion": ["ingestion", "hub"],
    "data/hub": ["hub"],
    "analysis/aggregate": ["aggregate"],
    "analysis/risk_control": ["risk_control"],
    "analysis/calibration": ["calibration"],
    "analysis/bootstrap": ["bootstrap", "summaries"],
    "analysis/claims": ["claims_numbers", "claims"],
    "analysis/claims_exits": ["claims_numbers", "claims"],
    "analysis/claims_geometry": ["claims_numbers", "claims"],
    "analysis/evidence": ["claims_numbers", "claims"],
    "analysis/seeds": ["seeds"],
    "config/__init__": ["config_sections", "config_loading"],
    "config/definitions": ["config_sections", "plan"],
    "config/sections": ["config_sections", "config_reference", "config_loading", "plan"],
    "config/loading": ["config_loading"],
    "config/identity": ["config_sections", "config_loading"],
    "config/messages": ["config_sections", "config_loading"],
    "fingerprint": ["fingerprint", "preflight"],
    "files": ["files", "command"],
    "kept": ["kept"],
    "rng": ["rng"],
    "workflow": ["workflow"],
}

# Slow tests of the engines, and criteria and models that ask no more of an engine than those that are left.
SLOW = "compiled or captured or float32 or cosine or minp or entropy or argmax or relative or normalized"
SLOW += " or Ouro or retrofitted or branch or blend"

# Which tests of these files, as for pytest -k: the others take most of the time and see no further fault.
SELECTED = {
    "model/flops": "flops or parameters or cache or count or bytes or row",
    "model/checkpoints": "test_checkpoints or opens_as_a_checkpoint",
    "training/trainer": "test_training or test_compile or two_processes_train or missing_package",
    "exits/parallel": f"not ({SLOW} or replay or slots or warm or predictions)",
    "exits/decoder": f"not ({SLOW})",
}

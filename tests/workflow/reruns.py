"""The table of docs/reruns.md: edited lines and the jobs that Snakemake then plans on a finished tiny run.

python -m tests.workflow.reruns
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.workflow.conftest import Project

PAGE = Path(__file__).parents[2] / "docs" / "reruns.md"
HEADER = """\
# Edited line → jobs planned

Each row shows an edit in a checkout with a finished run of `preset: tiny`, and which of the run's 25 jobs
`snakemake -n` then plans. A planned job that finds its code, config and inputs unchanged restores its cached result
instead of computing it again. `python -m tests.workflow.reruns` writes this page; `tests/workflow/test_reruns.py`
checks some rows.

| file | edit | jobs |
|---|---|---|
"""
# Rules whose jobs cost the most; the others of a plan are counted.
COSTLY = (
    *("prepare_text", "tokenize_text", "init_model", "train_segment", "train_segment_last", "extract_trajectories"),
    *("extract_states", "measure_exit_quality", "benchmark_exits"),
)
FEW = 3  # other rules of a plan that are named


class Edit(NamedTuple):
    """A text in a file and what replaces it; without the text, a line that is added at the end."""

    path: str
    old: str
    new: str

    @property
    def shown(self) -> str:
        new = self.new.replace("\n", " ").replace("|", "\\|")
        return f"`{self.old}` → `{new}`" if self.old else f"+ `{new}`"


LIBRARY = "src/twoscale"
EDITS = [
    Edit(f"{LIBRARY}/{path}", old, new)
    for path, old, new in [
        # what jobs compute with a config
        ("config/definitions.py", "math.sqrt(2 / 5)", "math.sqrt(3 / 5)"),
        ("config/definitions.py", "math.sqrt(self.hidden_size)", "2 * math.sqrt(self.hidden_size)"),
        ("config/definitions.py", "or 4 * self.hidden_size", "or 8 * self.hidden_size"),
        ("config/definitions.py", "* self.vocab_multiple", "* self.vocab_multiple + 1"),
        ("config/definitions.py", "self.hidden_size // self.num_heads", "self.hidden_size // self.num_heads // 2"),
        ("config/definitions.py", "max(1, round(self.mean_loops))", "max(2, round(self.mean_loops))"),
        ("config/definitions.py", 'f"{group[0]}-{group[-1]}"', 'f"{group[0]}–{group[-1]}"'),
        # what reaches them as values
        ("config/identity.py", "max(1, tokens // context_length)", "max(1, tokens // context_length + 1)"),
        ("config/identity.py", "CHARACTERS_PER_TOKEN = 9", "CHARACTERS_PER_TOKEN = 10"),
        ("config/data.py", "BYTES_VOCAB_SIZE = 257", "BYTES_VOCAB_SIZE = 258"),
        ("config/model.py", "key(1e-6,", "key(1e-5,"),
        ("studies/lens/study.py", 'config: config.sequences("lens")', 'config: config.sequences("lens") + 1'),
        ("config/model.py", "Hidden size of the MLP. null: 4", "Size of the MLP. null: 4"),
        ("config/types.py", "Field(gt=0, lt=1)", "Field(gt=0, le=1)"),
        ("config/messages.py", "LONGEST_VALUE = 80", "LONGEST_VALUE = 60"),
        ("config/thresholds.py", '"probe": float,', '"probe": float, "halving": float,'),
        ("tables.py", 'MEASURE_TYPE = "float32"', 'MEASURE_TYPE = "float64"'),
        ("tables.py", '"evaluations": ("float64"', '"evaluations": ("float32"'),
        # text and tokens
        ("data/text.py", 'TOPIC = "topic "', 'TOPIC = "help topic "'),
        ("data/bounded_parquet.py", "ROWS = 256", "ROWS = 128"),
        ("data/near_duplicates.py", "BITMAP_RATIO = 16", "BITMAP_RATIO = 32"),
        ("data/tokenizer.py", "", "EDITED = 1"),
        ("data/hub.py", "MAX_GLOBS = 100", "MAX_GLOBS = 10"),
        # model and training
        ("model/transformer.py", "2 / (5 * config.hidden_size)", "3 / (5 * config.hidden_size)"),
        ("rng.py", "[:16]", "[16:]"),
        ("model/published/ouro.py", "10_000.0", "20_000.0"),
        ("model/published/raven.py", "", "EDITED = 1"),
        ("training/recipe.py", "ADAM_EPSILON = 1e-8", "ADAM_EPSILON = 1e-9"),
        ("training/recipe.py", "(train.beta1, train.beta2)", "(train.beta1, 0.9 * train.beta2)"),
        ("training/processes.py", "timedelta(hours=1)", "timedelta(hours=2)"),
        ("training/metrics_log.py", 'METRICS = "metrics.csv"', 'METRICS = "log.csv"'),
        ("jobs/environment.py", '"MKL_DYNAMIC"', '"MKL_DYNAMICS"'),
        ("jobs/launch.py", '"--nnodes", "1"', '"--nnodes", "1:1"'),
        # measurements
        ("dynamics/vectors.py", "FLOOR_FACTOR = 16", "FLOOR_FACTOR = 8"),
        ("dynamics/measures.py", "", '@loop_measure("new", unit="1")\ndef new(step): return step.step_norm'),
        ("dynamics/path_types.py", '"undecided")', '"other")'),
        ("dynamics/states.py", "torch.float32", "torch.float64"),
        ("studies/spectrum/measure.py", "", "EDITED = 1"),
        ("exits/criteria.py", "", "EDITED = 1"),
        ("exits/decoder.py", "", "EDITED = 1"),
        ("exits/probe.py", "LEAST_STEP = 1e-8", "LEAST_STEP = 1e-9"),
        ("exits/probe_fit.py", "MOST_ITERATIONS = 500", "MOST_ITERATIONS = 50"),
        ("studies/lens/measure.py", "", "EDITED = 1"),
        ("exits/trial.py", "TRIAL_TOKENS = 8", "TRIAL_TOKENS = 4"),
        ("exits/batched.py", "", "EDITED = 1"),
        # analyses, claims and figures
        ("dynamics/aggregate.py", '("dlr", "jump_over_path")', '("dlr",)'),
        ("claims/bootstrap.py", "", "EDITED = 1"),
        ("claims/exits.py", "EQUAL_QUALITY = 0.01", "EQUAL_QUALITY = 0.02"),
        ("studies/spectrum/draw.py", "MOST_DOTS = 2000", "MOST_DOTS = 2001"),
        ("figures/fig2.py", "", "EDITED = 1"),
        ("figures/style.py", "LEAST_FONT = 6", "LEAST_FONT = 7"),
        # planning, files and messages
        ("workflow/resources.py", "TRAINING_MB = 16000", "TRAINING_MB = 8000"),
        ("jobs/result_cache.py", "", "EDITED = 1"),
        ("base.py", "", "EDITED = 1"),
        ("base.py", "", "EDITED = 1"),
    ]
] + [
    Edit("scripts/train_segment.py", "", "EDITED = 1"),
    Edit("workflow/report/fig2.rst", "", "One more sentence."),
    Edit("workflow/presets/tiny.yaml", "learning_rate: 1.0e-3", "learning_rate: 2.0e-3"),
    Edit("config.yaml", "", "seed: 7"),
    Edit("config.yaml", "", "exits: {latency_repeats: 1}"),
    Edit("config.yaml", "", "train: {save_seconds: 5}"),
    Edit("config.yaml", "", "figures: {fig1_tokens: 5}"),
]


def plan(project: Project, edit: Edit) -> dict[str, int]:
    """Rule -> number of jobs that are planned after an edit, which is then taken back."""
    file = project.root / edit.path
    text = file.read_text()
    assert edit.old in text, edit
    try:
        file.write_text(text.replace(edit.old, edit.new, 1) if edit.old else f"{text}\n{edit.new}\n")
        return project.plan()
    finally:
        file.write_text(text)


def row(edit: Edit, planned: Mapping[str, int]) -> str:
    """The row of an edit."""
    names = {rule: f"`{rule}`" + (f" ×{count}" if count > 1 else "") for rule, count in planned.items()}
    costly = [names[rule] for rule in COSTLY if rule in names]
    others = sorted(planned.keys() - set(COSTLY))
    if costly and len(others) > FEW:
        costly.append(f"{sum(planned[rule] for rule in others)} others")
    else:
        costly += [names[rule] for rule in others]
    return f"| `{edit.path.removeprefix(f'{LIBRARY}/')}` | {edit.shown} | {', '.join(costly) or 'none'} |\n"


if __name__ == "__main__":
    # imported here: processes of dry runs import this module, and need the library of the checkout
    from tests.workflow.conftest import checkout

    with tempfile.TemporaryDirectory() as folder:
        finished = checkout(Path(folder))
        finished.succeed()
        PAGE.write_text(HEADER + "".join(row(edit, plan(finished, edit)) for edit in EDITS))

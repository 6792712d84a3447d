"""docs/results.md and the table of verdicts in README, from the tables that are kept in docs/.

    python -m twoscale.report.results

Each run has a folder with released tables and a manifest; docs/seeds/{run}.parquet is its table "seeds", if it was
trained under several.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.base import markdown, replacing
from twoscale.claims.exits import REPORTED_LATENCY
from twoscale.claims.findings import FAILS, HOLDS, OPEN, marked
from twoscale.claims.geometry import REPORTED_COSINE
from twoscale.claims.scale import LABELS, MEANING, SMALL_SCALE, Scales, text
from twoscale.claims.scale import scales as scales_of
from twoscale.claims.seeds import MEAN, PER_RUN
from twoscale.claims.verdicts import ALL, CLAIMS, Claim
from twoscale.config import PROJECT, Config, text_label
from twoscale.report.pages import printed_scope, printed_value
from twoscale.report.release import MANIFEST, Release
from twoscale.report.render import blocks, number, table

PAGE = "results.md"
SEEDS = "seeds"  # folder in docs/
RELEASES = {"demo": "demo-release", "FineWeb": "fineweb", "GPU": "gpu-release"}  # heading -> folder in docs/
PAPER_SCALE = "snakemake --config preset=paper run=paper"
DOCUMENTS = f"{PAPER_SCALE} 'trajectories={{tokens: 49152}}'"
COURSE = f"{DOCUMENTS} 'train={{checkpoint_every: 1000}}'"
MORE_PROMPTS = "snakemake --config 'exits={latency_repeats: 30}'"
MORE_TEXT = "snakemake --config 'exits={quality_tokens: 12288}'"
VOCABULARY = "snakemake --config run=gpt2 'tokenizer={name: gpt2}'"
MARKS = {HOLDS: "✓", FAILS: "✗", OPEN: "?", "": ""}  # verdict on a number -> its mark


@dataclass(frozen=True)
class Paper:
    """The paper's number for a claim, and the run that would overturn our verdict.

    Attributes:
        command: The command of the run.
        why: Half a sentence: what this run has that ours have not.
        reported: Range of the number in the paper; None if it gives none in our unit.
        words: The number where it has another unit or no value.
    """

    command: str
    why: str
    reported: tuple[float, float] | None = None
    words: str = "no number"

    @property
    def number(self) -> str:
        """The paper's number in print."""
        return "–".join(dict.fromkeys(map(number, self.reported))) if self.reported else self.words

    def compared(self, value: float) -> str:
        """Distance of our value from the paper's range, or its ratio to the paper's number; empty if there is none."""
        if self.reported is None or np.isnan(value):
            return ""
        low, high = self.reported
        if low == high:
            return f"{number(value / low)} times the paper's"
        if low <= value <= high:
            return "in the paper's range"
        return f"{number(low - value)} below it" if value < low else f"{number(value - high)} above it"


SAVING = (REPORTED_LATENCY[1] / REPORTED_LATENCY[0],) * 2
LONG = "training of the paper's length, with a checkpoint every 1000 iterations"
WIDE = "a model of the paper's size"
UNITS = "a model of the paper's size, because τ is compared with the norms of the model"
MORE = "; at the checkpoints and documents of the preset it would most likely stay open ([power](verdicts.md))"
PAPER = {
    1: Paper(PAPER_SCALE, WIDE, words="5–10 steps"),
    2: Paper(COURSE, LONG),
    3: Paper(COURSE, LONG + MORE),
    4: Paper(DOCUMENTS, f"{WIDE}, on 96 held-out sequences{MORE}", REPORTED_COSINE),
    5: Paper(COURSE, LONG + MORE),
    6: Paper(PAPER_SCALE, WIDE, words="≫ 1"),
    7: Paper(MORE_PROMPTS, "more timed prompts (this command: the demo)", SAVING),
    8: Paper(MORE_TEXT, "three times the held-out text (this command: the demo)"),
    9: Paper(PAPER_SCALE, UNITS),
    10: Paper(PAPER_SCALE, "a model of the paper's size and vocabulary"),
    11: Paper(VOCABULARY, "a vocabulary of 50,257, with which KL costs more to evaluate (this command: the demo)"),
    12: Paper(COURSE, LONG),
    13: Paper(PAPER_SCALE, WIDE),
    14: Paper(PAPER_SCALE, UNITS),
    15: Paper(PAPER_SCALE, UNITS),
}

# Around the table of verdicts in README.
BEGIN, END = "<!-- verdicts: written by make generated -->", "<!-- end of verdicts -->"

HEADER = """\
# Results

For each claim of *Two-Scale Latent Dynamics for Recurrent-Depth Transformers*
([arXiv 2509.23314](https://arxiv.org/abs/2509.23314)) this page gives the paper's number, ours, the verdict, and the
command of a run that could overturn it. `make generated` writes it from the tables in `docs/`.

## Verdicts
"""
SCOPE = """\
## Scope

Each claim is judged on numbers with bounds, the same for every run ([rules](judging.md#rules)).
A number agrees with its claim (✓) if its whole 95 % interval is within the bounds. It disagrees (✗) if the whole
interval is outside, even after widening for the number of findings; otherwise it is open (?). A claim *does not hold*
if any of its numbers disagrees, and *cannot be judged* if none disagrees but at least one is open.
{meaning}

Intervals are over the held-out documents or timed prompts of one training run. Another seed changes angles by more
([seeds](seeds.md)): where the mean over seeds is open, trust the mean rather than the run. Claims 1 to 11 were written
before a run was judged. Claims 12 to 15, and the present rules of claims 3, 10, 11, 13 and 14, were written after demo
runs had been seen ([changes](../CHANGELOG.md)). Simulations estimate [how often a verdict is wrong](verdicts.md).

The verdicts are our own and concern our runs; no code or weights of the authors were used. `make check-demo` compares
a demo on your machine with these numbers.

## At a glance
"""
KEPT = """\
The paper states 60 thousand iterations and 300 M tokens; {tokens} is the product of iterations, batch size and context
length here. It names one model and does not state a number of seeds. A run with *earlier* rules was judged by the rules
at its commit.
`preset: paper` needs a GPU; `make plan PRESET=paper` prints its cost."""
CLOSING = """\
## What was easy to reproduce

- The paper gives the architecture, the three exit criteria and Algorithm 1 in full, and FineWeb is public.
- The code of nanoGPT and of Geiping et al. settles points for which the paper refers to them.

## What was hard

- Angles depend on choices that the paper leaves open: initial state, initial projection, position of the norms
  ([variants](variants.md#what-the-variants-change)).
- Eq. 2 does not say which state the next group starts from; we measure [four](reproduction.md#measures).
- τ is absolute, so the same τ means something else in a model with other norms. In the demo τ = 1e-2 is 0.2 to 0.3 %
  of a step at k = 1. The step norm loses no quality there, which says little about larger τ (Fig. 4).
- In float32, rounding limits step norms and angles. We measure in float64.
- Latency depends on the machine, so claims about time have a verdict for each run but none over seeds.

## What remains unknown

- Whether the verdicts change at the paper's scale.
- The paper's hardware, number of seeds, held-out text, and the spread of its numbers.
- Which of [our choices](reproduction.md) differ from the authors'.

More seeds can overturn verdicts on claims that are not about time:
`snakemake seeds --config 'seeds=[1337, 1338, 1339]'`.

## Tables

Tables and manifests of these runs: {links}. [Tables](tables.md) explains their columns.
"""


@dataclass(frozen=True)
class Column:
    """Verdicts and numbers of one run, or of its mean over seeds, on each claim.

    Attributes:
        name: Heading.
        rows: Table "claims", or the rows of table "seeds" about the mean.
        each: Rows of table "seeds" about each seed; empty for one run.
        scales: Of the run and of the paper.
        reference_state: Of the drift-to-loop ratio in figures.
        facts: Rows of the first table, besides the scale: label -> value.
    """

    name: str
    rows: pd.DataFrame
    each: pd.DataFrame
    scales: Scales
    reference_state: str
    facts: Mapping[str, str]

    def of(self, claim: int) -> pd.DataFrame:
        return self.rows[self.rows["claim"] == claim]

    def verdict(self, claim: int) -> str:
        """The verdict with the mark of the scale; of times over seeds, the number of seeds with each."""
        verdict = _verdicts(self.of(claim)).iloc[-1]
        if verdict == PER_RUN:
            counts = _verdicts(self.each[self.each["claim"] == claim]).value_counts()
            verdict = ", ".join(f"{name}: {counts[name]}" for name in (HOLDS, FAILS, OPEN) if name in counts)
        return marked(verdict, self.scales.mark)

    def keys(self, claim: int) -> list[tuple[str, str]]:
        """Quantity and scope of the numbers that are judged, and of the untrained model's.

        Drift-to-loop ratios are for the last checkpoint and the reference state of figures.
        """
        rows = self.of(claim)
        quantity, scope = rows["quantity"], rows["scope"]
        other_state = scope.str.contains(", ") & ~scope.str.endswith(f", {self.reference_state}")
        shown = (rows["bounds"] != "") | quantity.str.contains("untrained")
        shown &= (scope != ALL) & ~other_state & ~quantity.str.contains("DLR, iteration")
        return list(zip(quantity[shown], scope[shown], strict=True))

    def value(self, claim: int, quantity: str, scope: str) -> str:
        """A number with its interval, mark, comparison with the paper and remark; empty if the run does not have it."""
        rows = self.of(claim)
        for row in rows[(rows["quantity"] == quantity) & (rows["scope"] == scope)].itertuples():
            value = f"{printed_value(row)} {MARKS[row.verdict]}".strip()
            compared = PAPER[claim].compared(row.value) if row.bounds else ""
            return "; ".join(part for part in (value, compared, row.reason.partition("; ")[2]) if part)
        return ""


def _verdicts(rows: pd.DataFrame) -> pd.Series:
    return rows.loc[rows["scope"] == ALL, "verdict"]


def columns(docs: Path) -> Iterator[Column]:
    """The runs whose tables are in `docs`, each followed by its mean over seeds, if there is one."""
    for run, (name, folder) in released_runs(docs).items():
        config, facts = released(folder)
        scales, state = scales_of(config), config.figures.dlr_reference_state
        claims = tables.read("claims", folder / run / "tables" / "claims.parquet")
        yield Column(name, claims, claims.iloc[:0], scales, state, facts | {"rules of judging": rules(claims)})
        if (file := docs / SEEDS / f"{run}.parquet").is_file():
            frame = pd.read_parquet(file)  # a study declares this table, and studies can be removed
            each, means = (frame[(frame["seed"] == MEAN) == mean] for mean in (False, True))
            count = each["seed"].nunique()
            yield Column(f"{name}, {count} seeds", means, each, scales.of_seeds(count), state, {"text": facts["text"]})


def rules(judged: pd.DataFrame) -> str:
    """Whether the claims of the table "claims" were judged as they are stated now."""
    stated = judged.drop_duplicates("claim").set_index("claim")["statement"]
    return "present" if all(stated.get(claim.number) == claim.statement for claim in CLAIMS) else "earlier"


def released_runs(docs: Path) -> dict[str, tuple[str, Path]]:
    """Name of each run with released tables in `docs` -> its heading and folder."""
    folders = [(name, docs / folder) for name, folder in RELEASES.items() if (docs / folder / MANIFEST).is_file()]
    return {_manifest(folder)["run"]: (name, folder) for name, folder in folders}


def _manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))


def released(folder: Path) -> tuple[Config, dict[str, str]]:
    """Config of the run in a folder of released tables, and what its manifest says of hardware and time."""
    manifest = _manifest(folder)
    config = Release.open(str(folder), Config().download).runs({})[manifest["run"]]
    seconds, processor = (sum(job[key] for job in manifest["jobs"]) for key in ("total_s", "cpu_s"))
    facts = {
        "text": text_label(config.data),
        "hardware": hardware(manifest),
        "hours of training": number(manifest["training"]["hours"]),
        "hours of all jobs": number(seconds / 3600),
        "hours of processor time": number(processor / 3600),
    }
    return config, facts


def hardware(manifest: Mapping[str, Any]) -> str:
    """The GPUs that training recorded, otherwise the processor."""
    gpus = dict.fromkeys(found["gpu"] for found in manifest["training"]["environments"] if "gpu" in found)
    machine = manifest["machine"]
    return markdown(", ".join(gpus) or f"{machine['processor']}, {machine['cpus']} cores")


# --- the page -------------------------------------------------------------------------------------------------------


def page(docs: Path) -> str:
    """The Markdown of the page, for the tables in a folder `docs`."""
    found = list(columns(docs))
    verdicts = [
        (f"[{c.number}](#claim-{c.number})", c.title, *(run.verdict(c.number) for run in found)) for c in CLAIMS
    ]
    links = ", ".join(f"[{name}]({folder.name}/)" for name, folder in released_runs(docs).values())
    tokens = text(found[0].scales.paper.tokens)
    return blocks(
        HEADER,
        table(("claim", "in short", *(run.name for run in found)), verdicts),
        SCOPE.format(meaning=MEANING),
        table(("", "the paper", *(run.name for run in found)), _glance(found)),
        KEPT.format(tokens=tokens),
        *(part for claim in CLAIMS for part in _section(claim, found)),
        CLOSING.format(links=links),
    )


def _glance(found: list[Column]) -> Iterator[tuple[str, ...]]:
    paper = found[0].scales.paper
    yield ("text", "FineWeb", *(markdown(run.facts["text"]) for run in found))
    for key, label in LABELS.items():
        if key != "hardware":
            yield (label, text(getattr(paper, key)), *(text(getattr(run.scales.run, key)) for run in found))
    yield ("hardware", paper.hardware, *(run.facts.get("hardware", "") for run in found))
    yield ("rules of judging", "", *(run.facts.get("rules of judging", "") for run in found))
    for label in ("hours of training", "hours of all jobs", "hours of processor time"):
        yield (label, "not stated", *(run.facts.get(label, "") for run in found))


def _section(claim: Claim, found: list[Column]) -> tuple[str, ...]:
    place, _, says = claim.where.partition(": ")
    paper = PAPER[claim.number]
    keys = dict.fromkeys(key for run in found for key in run.keys(claim.number))
    ours = [(key, [run.value(claim.number, *key) for run in found]) for key in keys]
    rows = [
        (printed_scope(scope), quantity, "" if "untrained" in quantity else paper.number, *values)
        for (quantity, scope), values in ours
    ]
    verdicts = ("**verdict**", "", "", *(f"**{run.verdict(claim.number)}**" for run in found))
    return (
        f"## Claim {claim.number}",
        f"**{claim.title}.** The paper, {place}: {says}.",
        f"Judged: {claim.statement}",
        table(("scope", "number", "the paper", *(run.name for run in found)), [*rows, verdicts]),
        f"This verdict could be overturned by {paper.why}: `{paper.command}`",
    )


def summary(docs: Path) -> str:
    """The table of verdicts in README: words and marks, without the mark of the scale."""
    found = list(columns(docs))
    rows = [(text(c.number), c.title, *(_short(run.verdict(c.number)) for run in found)) for c in CLAIMS]
    return table(("claim", "in short", *(run.name for run in found)), rows)


def _short(verdict: str) -> str:
    word = verdict.removesuffix(f", {SMALL_SCALE}")
    return f"{MARKS.get(word.partition(':')[0], '')} {word}".strip()


def with_summary(readme: str, docs: Path) -> str:
    """The text of README with the table of verdicts between its two comments."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n\n{summary(docs)}\n\n{end}{after}"


def main() -> None:
    docs, readme = PROJECT / "docs", PROJECT / "README.md"
    pages = {docs / PAGE: page(docs), readme: with_summary(readme.read_text(encoding="utf-8"), docs)}
    for path, content in pages.items():
        with replacing(path) as temporary:
            temporary.write_text(content, encoding="utf-8")
        print(path.relative_to(PROJECT))


if __name__ == "__main__":
    main()

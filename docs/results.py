"""Write docs/results.md from the runs with a folder of released tables in docs/.

    python -m docs.results
    python -m docs.results results     # compare them with a folder of `snakemake --config release=docs/demo-release`

docs/seeds/{run}.parquet is the table "seeds" of a run that was trained under several.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.base import markdown, replacing
from twoscale.claims import verdicts as judging
from twoscale.claims.evidence import NO_COSTS, UNDER_FLOOR, Evidence
from twoscale.claims.geometry import AFTER_WARMUP, REPORTED_COSINE, SINCE_UNTRAINED
from twoscale.claims.scale import LABELS, MEANING, Scales, scales, text
from twoscale.claims.seeds import MEAN
from twoscale.claims.verdicts import ALL, CLAIMS, READING
from twoscale.claims.words import FAILS, HOLDS, KINDS, OPEN, kind, marked, word
from twoscale.config import PROJECT, Config, text_label
from twoscale.report.pages import printed_scope, printed_value
from twoscale.report.release import MANIFEST, Manifest, Release
from twoscale.report.render import number, render

PAGE = "results.md"  # in docs/, as its template and all that follows
SEEDS = "seeds"
RELEASES = {
    "demo": "demo-release",
    "FineWeb": "fineweb",
    "GPU": "gpu-release",
}  # heading -> folder in docs/
PAPER_SCALE = "snakemake --config preset=paper run=paper"
DOCUMENTS = f"{PAPER_SCALE} 'trajectories={{tokens: 49152}}'"
COURSE = f"{DOCUMENTS} 'train={{checkpoint_every: 1000}}'"
MORE_TEXT = "snakemake --config 'exits={quality_tokens: 12288}'"
VOCABULARY = "snakemake --config run=gpt2 'tokenizer={name: gpt2}'"
MARKS = {HOLDS: "✓", FAILS: "✗", OPEN: "?", "": ""}  # verdict on a number -> its mark


@dataclass(frozen=True)
class Paper:
    """The paper's number for a claim, and the run that would overturn our verdict."""

    command: str  # one of `RUNS`
    # range of the number in the paper; None if it gives none in our unit
    reported: tuple[float, float] | None = None
    words: str = "no number"  # where it has another unit or no value

    @property
    def number(self) -> str:
        return "–".join(dict.fromkeys(map(number, self.reported))) if self.reported else self.words

    def compared(self, value: float) -> str:
        """Distance of our value from the paper's range, or its ratio to the paper's number; empty
        if there is none.
        """
        if self.reported is None or np.isnan(value):
            return ""
        low, high = self.reported
        if low == high:
            return f"{number(value / low)} times the paper's"
        if low <= value <= high:
            return "in the paper's range"
        return (
            f"{number(low - value)} below it" if value < low else f"{number(value - high)} above it"
        )


SAVING = (360 / 580,) * 2  # ms per token under acceleration at τ = 1e-2 and 1e-5 (section 4, about)
# A run that could overturn verdicts -> what it has that ours have not.
RUNS = {
    PAPER_SCALE: "a model of the paper's size and vocabulary; τ is compared with its norms",
    COURSE: "training of the paper's length, with a checkpoint every 1000 iterations",
    DOCUMENTS: "a model of the paper's size, on 96 held-out sequences",
    MORE_TEXT: "three times the held-out text, for the demo",
    VOCABULARY: "a vocabulary of 50,257, with which KL costs more to evaluate, for the demo",
}
PAPER = {
    1: Paper(PAPER_SCALE, words="5–10 steps"),
    2: Paper(COURSE),
    3: Paper(COURSE),
    4: Paper(DOCUMENTS, REPORTED_COSINE),
    5: Paper(COURSE),
    6: Paper(PAPER_SCALE, words="≫ 1"),
    7: Paper(MORE_TEXT, SAVING),
    8: Paper(MORE_TEXT),
    9: Paper(PAPER_SCALE),
    10: Paper(PAPER_SCALE),
    11: Paper(VOCABULARY),
    12: Paper(COURSE),
    13: Paper(PAPER_SCALE),
    14: Paper(PAPER_SCALE),
    15: Paper(PAPER_SCALE),
    16: Paper(PAPER_SCALE),
}


@dataclass(frozen=True)
class Column:
    """Verdicts and numbers of one run, or of its mean over seeds, on each claim."""

    name: str
    rows: pd.DataFrame  # table "claims", or the rows of table "seeds" about the mean
    each: pd.DataFrame  # rows of table "seeds" about each seed; empty for one run
    scales: Scales
    reference_state: str  # of the drift-to-loop ratio in figures
    facts: Mapping[str, str]  # rows of the first table, besides the scale: label -> value

    def of(self, claim: int) -> pd.DataFrame:
        return self.rows[self.rows["claim"] == claim]

    @property
    def is_over_seeds(self) -> bool:
        return not self.each.empty

    def verdict(self, claim: int) -> str:
        """The verdict; none over seeds, which are one model with a spread (docs/seeds.md)."""
        if self.is_over_seeds:
            return ""
        rows = self.of(claim)
        last = rows[rows["scope"] == ALL].iloc[-1]
        return word(last["verdict"], last["scale"])

    def by_reading(self, claim: int) -> dict[str, str]:
        """The verdict under each reading of a claim, in words."""
        rows = self.of(claim)
        rows = rows[rows["scope"] == READING]
        return {row.quantity: word(row.verdict, row.scale) for row in rows.itertuples()}

    def keys(self, claim: int) -> list[tuple[str, str]]:
        """Quantity and scope of the numbers that are judged, of the untrained model's, and of
        measured times.

        Drift-to-loop ratios are for the last checkpoint and the reference state of figures.
        """
        rows = self.of(claim)
        quantity, scope = rows["quantity"], rows["scope"]
        other_state = scope.str.contains(", ") & ~scope.str.endswith(f", {self.reference_state}")
        shown = (rows["bounds"] != "") | quantity.str.contains("untrained|measured:|the same:")
        shown |= quantity.str.contains(r"CE\((?:1|3.16|10|31.6)\) − CE of random")
        shown &= ~scope.isin((ALL, READING)) & ~other_state
        shown &= ~quantity.str.contains("DLR, iteration")
        return list(zip(quantity[shown], scope[shown], strict=True))

    def value(self, claim: int, quantity: str, scope: str) -> str:
        """A number with its interval, mark, comparison with the paper and remark; empty if the run
        does not have it.
        """
        rows = self.of(claim)
        for row in rows[(rows["quantity"] == quantity) & (rows["scope"] == scope)].itertuples():
            value = f"{printed_value(row)} {MARKS[row.verdict]}".strip()
            compared = PAPER[claim].compared(row.value) if row.bounds else ""
            remark = row.reason.partition("; ")[2]
            if UNDER_FLOOR in row.reason:  # without the shares of each seed
                remark = UNDER_FLOOR
            return "; ".join(part for part in (value, compared, remark) if part)
        return ""


def judged(docs: Path) -> dict[str, pd.DataFrame]:
    """The table "claims" of each run with released tables in `docs`, by the present rules.

    A run without all tables that claims are judged on has the table that was released, but a run
    whose costs were not measured is only not judged on times.
    """
    found = {}
    for release in releases(docs).values():
        run = release.manifest.run
        folder = Path(release.source, run, "tables")
        files = {name: folder / f"{file}.parquet" for name, file in tables.CLAIM_TABLES.items()}
        files = {name: file for name, file in files.items() if file.is_file()}
        if not files.keys() >= tables.CLAIM_TABLES.keys() - {"costs"}:
            found[run] = _without_times(tables.read("claims", folder / "claims.parquet"))
            continue
        config = release.runs({})[run]
        evidence = Evidence.read(
            files,
            max_loops=config.exits.max_loops,
            warmup=config.train.warmup_iterations,
            seed=config.seed,
        )
        found[run] = judging.table(judging.verdicts(evidence), run, scales(config).mark)
    return found


def columns(docs: Path, claims_of: Mapping[str, pd.DataFrame]) -> Iterator[Column]:
    """The runs whose tables are in `docs`, each followed by its mean over seeds, if there is
    one.

    `claims_of` has the table "claims" of each run, see `judged`.
    """
    for name, release in releases(docs).items():
        run = release.manifest.run
        config = release.runs({})[run]
        scale, state, facts = (
            scales(config),
            config.figures.dlr_reference_state,
            _facts(release.manifest, config),
        )
        claims = claims_of[run]
        has_costs = f"{run}/tables/exit_costs.parquet" in release.manifest.files
        stated = claims.drop_duplicates("claim").set_index("claim")["statement"]
        as_now = all(stated.get(claim.number) == claim.statement for claim in CLAIMS)
        rules = {"rules of judging": "present" if as_now else "earlier"}
        yield Column(name, claims, claims.iloc[:0], scale, state, facts | rules)
        if (file := docs / SEEDS / f"{run}.parquet").is_file():
            frame = pd.read_parquet(file)  # a study declares this table, and studies can be removed
            if not has_costs:
                frame = _without_times(frame)
            each, means = (frame[(frame["seed"] == MEAN) == mean] for mean in (False, True))
            count = each["seed"].nunique()
            names = set(claims.loc[claims["bounds"] != "", "quantity"])
            rules = {"rules of judging": "present" if names <= set(each["quantity"]) else "earlier"}
            scale = scale.with_run(seeds=count)
            yield Column(
                f"{name}, {count} seeds", means, each, scale, state, {"text": facts["text"]} | rules
            )


def _without_times(frame: pd.DataFrame) -> pd.DataFrame:
    """The table "claims" or "seeds" of a run whose times were measured and not computed."""
    timed = [claim for claim in CLAIMS if claim.timed]
    is_timed = frame["claim"].isin(claim.number for claim in timed)
    kept = frame[~is_timed | (frame["scope"] == ALL)].copy()
    for claim in timed:
        columns = ["statement", "verdict", "reason"]
        kept.loc[kept["claim"] == claim.number, columns] = [claim.statement, OPEN, NO_COSTS]
    return kept


def releases(docs: Path) -> dict[str, Release]:
    """Heading of each run with released tables in `docs` -> its release."""
    folders = {
        name: docs / folder
        for name, folder in RELEASES.items()
        if (docs / folder / MANIFEST).is_file()
    }
    return {name: Release.open(str(folder), Config().download) for name, folder in folders.items()}


def _facts(manifest: Manifest, config: Config) -> dict[str, str]:
    """Text of a run, and what its manifest says of hardware and time."""
    seconds, processor = (sum(job[key] for job in manifest.jobs) for key in ("total_s", "cpu_s"))
    machine = manifest.machine
    gpus = dict.fromkeys(
        found["gpu"] for found in manifest.training["environments"] if "gpu" in found
    )
    return {
        "text": text_label(config.data),
        "hardware": markdown(", ".join(gpus) or f"{machine['processor']}, {machine['cpus']} cores"),
        "hours of training": number(manifest.training["hours"]),
        "hours of all jobs": number(seconds / 3600),
        "hours of processor time": number(processor / 3600),
    }


def results(docs: Path, claims_of: Mapping[str, pd.DataFrame] | None = None) -> str:
    """The Markdown of results.md; `claims_of` is by default what `judged` finds."""
    found = list(columns(docs, judged(docs) if claims_of is None else claims_of))
    links = [f"[{name}]({RELEASES[name]}/)" for name in releases(docs)]
    runs = [run for run in found if not run.is_over_seeds]
    return render(
        f"{PAGE}.j2",
        names=[marked(run.name, run.scales.mark) for run in found],
        models_named=[marked(run.name, run.scales.mark) for run in runs],
        verdicts=[
            (
                f"[{claim.number}](#claim-{claim.number})",
                claim.title,
                _counted(runs, claim.number),
                *(run.verdict(claim.number) for run in runs),
            )
            for claim in CLAIMS
        ],
        readings=list(_readings(runs)),
        models={claim.number: _counted(runs, claim.number) for claim in CLAIMS},
        summary=_summary(runs),
        steps=_steps(runs),
        meaning=MEANING,
        glance=list(_glance(found)),
        tokens=text(found[0].scales.paper.tokens),
        claims=[
            (claim, *claim.where.split(": ", 1), _numbers(claim.number, found)) for claim in CLAIMS
        ],
        overturning=[(_claims_of(command), what, f"`{command}`") for command, what in RUNS.items()],
        links=", ".join(links),
    )


def _claims_of(command: str) -> str:
    """The claims that a run could decide otherwise."""
    return ", ".join(str(claim) for claim, paper in PAPER.items() if paper.command == command)


def _glance(found: list[Column]) -> Iterator[tuple[str, ...]]:
    paper = found[0].scales.paper
    yield ("text", "FineWeb", *(markdown(run.facts["text"]) for run in found))
    for key, label in LABELS.items():
        if key != "hardware":
            yield (
                label,
                text(getattr(paper, key)),
                *(text(getattr(run.scales.run, key)) for run in found),
            )
    yield ("hardware", paper.hardware, *(run.facts.get("hardware", "") for run in found))
    yield ("rules of judging", "", *(run.facts.get("rules of judging", "") for run in found))
    for label in ("hours of training", "hours of all jobs", "hours of processor time"):
        yield (label, "not stated", *(run.facts.get(label, "") for run in found))


def _numbers(claim: int, found: list[Column]) -> list[tuple[str, ...]]:
    """Rows of the numbers of a claim under each run, and last of its verdicts."""
    rows = [
        (
            printed_scope(scope),
            quantity,
            "" if re.search("untrained|the same:|of random", quantity) else PAPER[claim].number,
            *(run.value(claim, quantity, scope) for run in found),
        )
        for quantity, scope in dict.fromkeys(key for run in found for key in run.keys(claim))
    ]
    return [*rows, ("**verdict**", "", "", *(_bold(run.verdict(claim)) for run in found))]


def _readings(found: list[Column]) -> Iterator[tuple[str, ...]]:
    """A row for each reading of a claim, and for its bounds, in every run."""
    for claim in CLAIMS:
        by_run = [run.by_reading(claim.number) for run in found]
        for reading in dict.fromkeys(name for readings in by_run for name in readings):
            cells = [readings.get(reading, "") for readings in by_run]
            yield (f"[{claim.number}](#claim-{claim.number})", reading, *cells)


def _bold(text: str) -> str:
    return f"**{text}**" if text else ""


def models(found: list[Column], claim: int) -> pd.DataFrame:
    """The verdicts on a claim, one row per run, with the columns verdict and scale."""
    every = pd.concat(run.rows for run in found)
    whole = (every["claim"] == claim) & (every["scope"] == ALL)
    return every.loc[whole, ["verdict", "scale"]]


def _in_words(verdicts: pd.DataFrame) -> dict[str, int]:
    """The verdicts in words, each with its number of rows."""
    rows = sorted(zip(verdicts["verdict"], verdicts["scale"], strict=True))
    rows.sort(key=lambda row: KINDS.index(kind(row[0])))
    words = [word(*row) for row in rows]
    return {name: words.count(name) for name in dict.fromkeys(words)}


def _summary(found: list[Column]) -> str:
    """The claims that hold in all models, that fail in all, and all others."""
    of_claims = {claim.number: models(found, claim.number)["verdict"] for claim in CLAIMS}

    def numbers(verdict: str) -> list[str]:
        return [str(n) for n, verdicts in of_claims.items() if (verdicts == verdict).all()]

    hold, fail = numbers(HOLDS), numbers(FAILS)
    others = len(CLAIMS) - len(hold) - len(fail)
    return (
        f"Of {len(CLAIMS)} claims, {len(hold)} hold in all {len(of_claims[1])} models"
        f" ({', '.join(hold)}), {len(fail)} fail in all at this scale ({', '.join(fail)}), and {others}"
        " vary, depend on how the paper is read, or cannot be judged"
    )


def _steps(found: list[Column]) -> dict[str, object]:
    """How much shorter the steps of groups are than with fresh weights, and how many grow again."""
    rows = pd.concat(run.of(12) for run in found)
    by_reading = rows.groupby("reading")["value"]
    shorter = np.exp(-by_reading.get_group(SINCE_UNTRAINED.name))
    growing = by_reading.get_group(AFTER_WARMUP.name) > 0
    least, most = (f"{end:.2g}" for end in (shorter.min(), shorter.max()))
    return {"groups": len(shorter), "least": least, "most": most, "growing": int(growing.sum())}


def _counted(found: list[Column], claim: int) -> str:
    """The verdicts of `models` as words: "holds in 5 of 5"."""
    counts = _in_words(models(found, claim))
    total = sum(counts.values())
    return ", ".join(f"{name} in {count} of {total}" for name, count in counts.items())


def check(folder: Path, others: Mapping[str, pd.DataFrame] | None = None) -> bool:
    """Whether claims of the demo that `folder` has from its released tables give the page of this
    checkout, with the claims of other runs, by default what `judged` finds.
    """
    docs = PROJECT / "docs"
    again = tables.read("claims", folder / "released/demo/tables/claims.parquet")
    claims_of = {**(judged(docs) if others is None else others), "demo": again}
    found = next(columns(docs, claims_of))
    for claim in CLAIMS:
        print(f"{claim.number:>2}  {found.verdict(claim.number):<66}{claim.title}")
    agree = (docs / PAGE).read_text(encoding="utf-8") == results(docs, claims_of)
    print(f"docs/{PAGE}: its verdicts and numbers {'agree' if agree else 'differ'}")
    return agree


def main() -> None:
    if arguments := sys.argv[1:]:
        sys.exit(0 if check(Path(*arguments)) else 1)
    docs = PROJECT / "docs"
    with replacing(docs / PAGE) as temporary:
        temporary.write_text(results(docs), encoding="utf-8")
    print(f"docs/{PAGE}")


if __name__ == "__main__":
    main()

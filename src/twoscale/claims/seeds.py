"""The claims over several seeds: each quantity under each seed, its mean, a verdict on the mean.

All seeds are measured on the same documents, so seeds and documents are crossed: the value under a
seed is the truth plus an effect of the seed, one of the documents, and one of both. The spread
between seeds has the first and the last, the bootstrap over documents the second and the last; the
mean over seeds varies with all three. Its interval joins

- the interval of Student's t of the mean over seeds, as if the documents were fixed, and
- the bootstrap of the mean over documents, drawn alike under every seed, as if the seeds were
  fixed,

by the root of the sum of their squared lengths on either side (Zou and Donner 2008, "Construction
of confidence limits about effect measures"). Each part keeps its degrees of freedom. The effect of
both is in both parts, so the interval is conservative, like the bootstrap that resamples seeds and
documents (Owen 2007, "The pigeonhole bootstrap"). That one is of no use for few seeds: resamples of
three have two thirds of their variance, and ten different values.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.claims import bootstrap
from twoscale.claims import verdicts as claims
from twoscale.claims.estimates import Estimate, InconclusiveError
from twoscale.claims.evidence import Evidence
from twoscale.claims.findings import Finding, Quantity, find
from twoscale.claims.verdicts import CLAIMS, Claim, Decision, Verdict
from twoscale.claims.words import NOT_ASKED

MEAN = "mean"  # in the place of a seed: the mean over seeds
PER_RUN = "per run"  # the verdict over seeds on times, which depend on the machine


@dataclass(frozen=True)
class SeedMean(Estimate):
    """A mean over seeds, whose interval has the spread of seeds and of documents.

    The mean of ratios is geometric. `parts` are the same number with its interval over documents
    and with that over seeds; of a ratio its logarithm.
    """

    parts: tuple[Estimate, ...] = ()

    def widened(self, findings: int) -> Estimate:
        of_documents, of_seeds = (part.widened(findings) for part in self.parts)
        return _joined(of_documents, of_seeds, self.is_ratio)


def mean_over_seeds(estimates: Sequence[Estimate]) -> SeedMean:
    """The mean of the estimates of one quantity, one per seed, of which there are two or more.

    Raises InconclusiveError if one of them is not finite or has no bootstrap over the same number
    of documents.
    """
    values = _values(estimates)
    samples = _samples(estimates).mean(axis=0)  # (R,), of the mean over seeds
    mean = float(values.mean())
    effective = min(estimate.effective for estimate in estimates)
    low, high = bootstrap.interval_about(mean, samples, effective)
    of_documents = Estimate(mean, low, high, freedom=effective - 1)
    return _joined(of_documents, over_seeds(values), estimates[0].is_ratio).checked()


def _values(estimates: Sequence[Estimate]) -> np.ndarray:
    """The estimates (seeds,), logarithms of ratios."""
    values = np.array([estimate.value for estimate in estimates])
    if all(estimate.is_ratio for estimate in estimates):
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log(values)
    if not np.isfinite(values).all():
        raise InconclusiveError("the quantity is infinite under a seed")
    return values


def _samples(estimates: Sequence[Estimate]) -> np.ndarray:
    """Bootstrap samples (seeds, R) of estimates, which are of the same documents for all seeds."""
    samples = [estimate.samples for estimate in estimates if estimate.samples is not None]
    units = {estimate.units for estimate in estimates}
    if len(samples) < len(estimates) or len(units) > 1:
        raise InconclusiveError("the seeds were not measured on the same documents")
    return np.array(samples)


def over_seeds(values: np.ndarray) -> Estimate:
    """The mean of values (seeds,) with the interval of Student's t."""
    low, high = bootstrap.t_interval(values)
    return Estimate(float(values.mean()), low, high, freedom=len(values) - 1)


def _joined(of_documents: Estimate, of_seeds: Estimate, is_ratio: bool) -> SeedMean:
    low, high = bootstrap.joined(
        of_documents.value,
        (of_documents.low, of_documents.high),
        (of_seeds.low, of_seeds.high),
    )
    parts = (of_documents, of_seeds)
    mean = SeedMean(of_documents.value, float(low), float(high), parts=parts)
    return mean.exponential() if is_ratio else mean


@dataclass(frozen=True)
class SeedFinding:
    """One quantity of a claim under every seed; the spreads are NaN where they are not measured."""

    of_seeds: tuple[Finding, ...]
    mean: Finding
    deviation: float = np.nan  # standard deviation between seeds, for ratios of their logarithms
    # standard error due to the choice of documents, root mean square over the seeds
    document_error: float = np.nan


@dataclass(frozen=True)
class SeedVerdict(Decision):
    """The verdicts on a claim under each seed, and the verdict on the means over seeds."""

    claim: Claim = field(kw_only=True)
    of_seeds: tuple[Verdict, ...] = field(kw_only=True)
    findings: tuple[SeedFinding, ...] = ()

    @property
    def moves(self) -> bool:
        """As `Verdict.moves`, of the means over seeds."""
        return claims.all_move(self.verdict, [finding.mean for finding in self.findings])


def examine(claim: Claim, evidence: Mapping[int, Evidence]) -> SeedVerdict:
    """The verdict on one claim, from the tables of two seeds or more.

    Their bootstraps have the same seed, so they draw the same documents.
    """
    runs = list(evidence.values())
    of_seeds = tuple(claims.examine(claim, run) for run in runs)
    if not all(verdict.findings for verdict in of_seeds):
        return SeedVerdict(NOT_ASKED, of_seeds[0].reason, claim=claim, of_seeds=of_seeds)

    # the same quantities for all seeds
    quantities = list(zip(*(claim.quantities(run) for run in runs), strict=True))
    of_first = [quantity for quantity, *_ in quantities]
    by_quantity = zip(*(verdict.findings for verdict in of_seeds), strict=True)
    findings = []
    for of_runs, row in zip(quantities, by_quantity, strict=True):
        if claim.timed:
            findings.append(SeedFinding(row, Finding(of_runs[0], Estimate())))
        else:
            counted = claims.number_judged(of_runs[0], of_first)
            findings.append(_compare(list(evidence), of_runs, row, counted))

    decision = Decision(PER_RUN, "times depend on the machine")
    if not claim.timed:
        obstacle = claim.needs.obstacle(runs[0].extent)
        means = [finding.mean for finding in findings]
        decision = Decision(*obstacle) if obstacle else claims.decide(means)
    return SeedVerdict(**vars(decision), claim=claim, of_seeds=of_seeds, findings=tuple(findings))


def _compare(
    seeds: list[int], quantities: Sequence[Quantity], row: tuple[Finding, ...], counted: int
) -> SeedFinding:
    """The finding about the mean over seeds, with those of each seed.

    It is judged as one of so many that count.
    """
    estimates = [finding.estimate for finding in row]
    missing = [
        f"seed {seed}: {finding.reason}"
        for seed, finding in zip(seeds, row, strict=True)
        if np.isnan(finding.estimate.value)
    ]

    def measure() -> Estimate:
        if missing:
            raise InconclusiveError("; ".join(missing))
        return mean_over_seeds(estimates)

    trends = [quantity.trend for quantity in quantities if quantity.trend is not None]

    def trend() -> Estimate:
        return mean_over_seeds([trend_of_seed() for trend_of_seed in trends])

    of_mean = replace(quantities[0], measure=measure, trend=trend if trends else None)
    mean = find(of_mean, counted)
    if np.isnan(mean.estimate.value):
        return SeedFinding(row, mean)
    # the variance of n units from that of resamples, which is (n - 1) / n of it
    variances = [
        samples.var() * estimate.effective / (estimate.effective - 1)
        for samples, estimate in zip(_samples(estimates), estimates, strict=True)
    ]
    return SeedFinding(
        of_seeds=row,
        mean=mean,
        deviation=float(_values(estimates).std(ddof=1)),
        document_error=float(np.sqrt(np.mean(variances))),
    )


def verdicts(
    evidence: Mapping[int, Evidence], examined: Iterable[Claim] = CLAIMS
) -> list[SeedVerdict]:
    return [examine(claim, evidence) for claim in examined]


def table(
    judged: Iterable[SeedVerdict], run: str, seeds: Sequence[int], mark: str = ""
) -> pd.DataFrame:
    """The table "seeds": a row per finding and seed and one for the mean, then the verdicts.

    `mark` is that of the run's scale, see `twoscale.claims.scale`.
    """
    names = [*map(str, seeds), MEAN]
    rows = []
    for verdict in judged:
        claim = verdict.claim
        for finding in verdict.findings:
            for seed, found in zip(names, [*finding.of_seeds, finding.mean], strict=True):
                rows.append(claims.finding_row(claim, found, mark) | {"seed": seed})
            rows[-1] |= {
                "deviation": finding.deviation,
                "document_error": finding.document_error,
            }
        for seed, of_each in zip(names, [*verdict.of_seeds, verdict], strict=True):
            rows += [row | {"seed": seed} for row in claims.verdict_rows(of_each, mark)]
    return pd.DataFrame(rows, columns=list(tables.columns("seeds"))).assign(run=run)

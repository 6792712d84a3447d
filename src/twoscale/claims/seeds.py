"""The claims over several seeds: every quantity under each seed, its mean over seeds, and a verdict
on the mean.

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
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.claims import bootstrap
from twoscale.claims import verdicts as claims
from twoscale.claims.evidence import (
    NOT_ASKED,
    Estimate,
    Evidence,
    Finding,
    InconclusiveError,
    Quantity,
    combine,
    find,
)
from twoscale.claims.verdicts import CLAIMS, Claim, Verdict

MEAN = "mean"  # in the place of a seed: the mean over seeds
PER_RUN = "per run"  # the verdict over seeds on times, which depend on the machine


@dataclass(frozen=True)
class SeedMean(Estimate):
    """A mean over seeds, the geometric one of ratios, whose interval has the spread of seeds and of
    documents.

    `parts` are the same number with its interval over documents and with that over seeds; the
    logarithm of a ratio.
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
    if len({estimate.units for estimate in estimates}) > 1 or any(
        e.samples is None for e in estimates
    ):
        raise InconclusiveError("the seeds were not measured on the same documents")
    effective, mean = min(estimate.effective for estimate in estimates), float(values.mean())
    samples = np.mean(
        [estimate.samples for estimate in estimates if estimate.samples is not None], axis=0
    )
    of_documents = Estimate(
        mean, *bootstrap.interval_about(mean, samples, effective), freedom=effective - 1
    )
    return _joined(of_documents, over_seeds(values), estimates[0].is_ratio).checked()


def _values(estimates: Iterable[Estimate]) -> np.ndarray:
    """The estimates (seeds,), logarithms of ratios."""
    values = np.array([estimate.value for estimate in estimates])
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log(values) if all(estimate.is_ratio for estimate in estimates) else values
    if not np.isfinite(values).all():
        raise InconclusiveError("the quantity is infinite under a seed")
    return values


def over_seeds(values: np.ndarray) -> Estimate:
    """The mean of values (seeds,) with the interval of Student's t."""
    return Estimate(float(values.mean()), *bootstrap.t_interval(values), freedom=len(values) - 1)


def _joined(of_documents: Estimate, of_seeds: Estimate, is_ratio: bool) -> SeedMean:
    parts, value = (of_documents, of_seeds), of_documents.value
    low, high = bootstrap.joined(value, *((part.low, part.high) for part in parts))
    joined = SeedMean(value, float(low), float(high), parts=parts)
    return joined.exponential() if is_ratio else joined


@dataclass(frozen=True)
class SeedFinding:
    """One quantity of a claim under every seed; the spreads are NaN where they are not measured."""

    of_seeds: tuple[Finding, ...]
    mean: Finding
    deviation: float = np.nan  # standard deviation between seeds, for ratios of their logarithms
    document_error: float = (
        np.nan
    )  # standard error due to the choice of documents, root mean square over the seeds


@dataclass(frozen=True)
class SeedVerdict:
    """The verdicts on a claim under each seed, and the verdict on the means over seeds."""

    claim: Claim
    of_seeds: tuple[Verdict, ...]
    findings: tuple[SeedFinding, ...]
    verdict: str
    reason: str


def examine(claim: Claim, evidence: Mapping[int, Evidence]) -> SeedVerdict:
    """The verdict on one claim, from the tables of two seeds or more, whose bootstraps have the
    same seed.
    """
    of_seeds = tuple(claims.examine(claim, found) for found in evidence.values())
    if not all(verdict.findings for verdict in of_seeds):
        return SeedVerdict(claim, of_seeds, (), NOT_ASKED, of_seeds[0].reason)
    quantities = list(claim.quantities(next(iter(evidence.values()))))
    rows = list(zip(*(verdict.findings for verdict in of_seeds), strict=True))
    counted = sum(quantity.counts for quantity in quantities)
    if claim.timed:
        findings = tuple(
            map(SeedFinding, rows, (quantity.finding(Estimate()) for quantity in quantities))
        )
        return SeedVerdict(
            claim, of_seeds, findings, PER_RUN, "times depend on the machine and its load"
        )
    findings = tuple(map(partial(_compare, list(evidence), counted), quantities, rows))
    return SeedVerdict(claim, of_seeds, findings, *combine(finding.mean for finding in findings))


def _compare(
    seeds: list[int], counted: int, quantity: Quantity, row: tuple[Finding, ...]
) -> SeedFinding:
    """The finding about the mean over seeds with the findings of each seed, one of so many that
    count.
    """
    missing = [
        f"seed {seed}: {f.reason}"
        for seed, f in zip(seeds, row, strict=True)
        if np.isnan(f.estimate.value)
    ]
    estimates = [finding.estimate for finding in row]

    def measure() -> Estimate:
        if missing:
            raise InconclusiveError("; ".join(missing))
        return mean_over_seeds(estimates)

    mean = find(replace(quantity, measure=measure), counted)
    if np.isnan(mean.estimate.value):
        return SeedFinding(row, mean)
    variances = [
        e.samples.var() * e.effective / (e.effective - 1)
        for e in estimates
        if e.samples is not None
    ]
    return SeedFinding(
        row, mean, float(_values(estimates).std(ddof=1)), float(np.sqrt(np.mean(variances)))
    )


def verdicts(
    evidence: Mapping[int, Evidence], examined: Iterable[Claim] = CLAIMS
) -> list[SeedVerdict]:
    return [examine(claim, evidence) for claim in examined]


def table(
    judged: Iterable[SeedVerdict], run: str, seeds: Sequence[int], mark: str = ""
) -> pd.DataFrame:
    """The table "seeds": a row per finding and seed and one for the mean, then the verdicts; `mark`
    of the scale.
    """
    rows = []
    for verdict in judged:
        for finding in verdict.findings:
            pairs = zip(seeds, finding.of_seeds, strict=True)
            rows += [
                claims.row(verdict.claim, found) | {"seed": str(seed)} for seed, found in pairs
            ]
            spread = {"deviation": finding.deviation, "document_error": finding.document_error}
            rows.append(claims.row(verdict.claim, finding.mean) | {"seed": MEAN} | spread)
        for seed, whole in zip([*seeds, MEAN], [*verdict.of_seeds, verdict], strict=True):
            rows.append(claims.row(verdict.claim, claims.whole(whole)) | {"seed": str(seed)})  # type: ignore[arg-type]
    return pd.DataFrame(rows, columns=list(tables.columns("seeds"))).assign(run=run, scale=mark)

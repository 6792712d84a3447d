"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # One row per (criterion, threshold, number of sequences, timed repeat).
    "throughput": table(
        "run criterion threshold sequences repeat tokens tokens_per_second latency_ms latency_high_ms "
        "load_average cpus",
        sequences=("int32", "number of sequences decoded together"),
        tokens=("int64", "number of tokens decoded while all sequences were in flight"),
        tokens_per_second=("float64", "tokens per second of all sequences together"),
        latency_ms=("float64", "median time between two tokens of one sequence"),
        latency_high_ms=("float64", "95 % quantile of this time"),
        threads=("int32", "number of PyTorch threads"),
    ),
    # The mean evaluations per group, with the same repeats.
    "throughput_loops": table(
        "run criterion threshold sequences repeat group evaluations",
        sequences=("int32",),
    ),
}

"""What a run would take, before anyone spends it: `make plan PRESET=paper`.

Hours are at --tflops sustained tera-FLOP/s, the causal count; no claim about a machine is made.
"""

import argparse
import math
import sys

from twoscale.training import flops
from twoscale import config
from twoscale.errors import InputError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default=config.DEFAULT_PRESET, help="file of workflow/presets/")
    parser.add_argument("--tflops", type=float, default=100.0, help="sustained tera-FLOP/s (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        if not 0 < arguments.tflops < math.inf:
            raise InputError(f"option --tflops: found {arguments.tflops:g}, expected a finite number > 0.")
        runs = config.runs({"preset": arguments.preset})
    except InputError as error:
        sys.exit(f"error: {error}")
    for name, settings in runs.items():
        print(f"run {name}")
        for label, value in rows(flops.plan(settings), arguments.tflops):
            print(f"  {label:<46}{value:>16}")


def rows(plan: flops.Plan, tflops: float) -> list[tuple[str, str]]:
    """Label and value of every line."""
    seconds = plan.training_flops / (tflops * 1e12)
    return [
        ("parameters", f"{plan.parameters / 1e6:.1f} M"),
        ("iterations", f"{plan.iterations:,}"),
        ("tokens trained on", f"{plan.tokens / 1e6:,.1f} M"),
        ("FLOPs per token, causal attention", f"{plan.flops_per_token / 1e9:.2f} G"),
        ("training FLOPs, causal attention", f"{plan.training_flops:.3g}"),
        ("training FLOPs, full attention", f"{plan.training_flops_full_attention:.3g}"),
        (f"hours of training at {tflops:g} TFLOP/s", f"{seconds / 3600:.2f}"),
        ("training jobs (one a checkpoint)", str(plan.training_jobs)),
        ("checkpoints to analyse", str(plan.analysis_jobs)),
        (f"text to collect, {plan.text_unit}", "all" if plan.text is None else f"{plan.text:,}"),
        ("checkpoints on disk", gigabytes(plan.checkpoint_bytes)),
        ("optimizer and partial states on disk, at most", gigabytes(plan.optimizer_bytes)),
        ("states for Fig. 1 on disk", gigabytes(plan.states_bytes)),
        ("per-token tables on disk, at most", gigabytes(plan.table_bytes)),
        ("cache of one decoded sequence, in memory", gigabytes(plan.cache_bytes)),
    ]


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.3f} GB"


if __name__ == "__main__":
    main()

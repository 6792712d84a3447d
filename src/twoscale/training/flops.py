

def plan_rows(plan: Plan, tflops: float) -> list[tuple[str, str]]:
    """Label and value of each line of a printed plan; hours are at `tflops` sustained tera-FLOP/s."""
    hours = plan.training_flops / (tflops * 1e12) / 3600
    return [
        ("parameters", f"{plan.parameters / 1e6:.1f} M"),
        ("iterations", f"{plan.iterations:,}"),
        ("tokens trained on", f"{plan.tokens / 1e6:,.1f} M"),
        ("FLOPs per token, causal attention", f"{plan.flops_per_token / 1e9:.2f} G"),
        ("training FLOPs, causal attention", f"{plan.training_flops:.3g}"),
        ("training FLOPs, full attention", f"{plan.training_flops_full_attention:.3g}"),
        (f"hours of training at {tflops:g} TFLOP/s", f"{hours:.2f}"),
        ("training jobs (one a checkpoint)", str(plan.training_jobs)),
        ("checkpoints to analyse", str(plan.analysis_jobs)),
        (f"text to collect, {plan.text_unit}", "all" if plan.text is None else f"{plan.text:,}"),
        ("checkpoints on disk", _gigabytes(plan.checkpoint_bytes)),
        ("optimizer and partial states on disk, at most", _gigabytes(plan.optimizer_bytes)),
        ("states for Fig. 1 on disk", _gigabytes(plan.states_bytes)),
        ("per-token tables on disk, at most", _gigabytes(plan.table_bytes)),
        ("cache of one decoded sequence, in memory", _gigabytes(plan.cache_bytes)),
    ]


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.3f} GB"

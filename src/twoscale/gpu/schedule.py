"""The training schedule that fits a given time: iterations, checkpoints, warm-up and cosine."""

from typing import Any

from twoscale.config import Config, checkpoint_iterations
from twoscale.training.plan import mean_flops_per_token

RESERVE = 0.9  # of the time for iterations; the rest is for measurements, saves, and jobs that share the GPU
NEAR_END = 0.9  # share of the iterations after which there is no checkpoint but the last


def schedule(config: Config, flops_per_s: float, startup: float, seconds: float) -> dict[str, Any]:
    """Keys of `train` for the schedule that takes `seconds`: as many iterations as fit, with one whole cosine.

    Checkpoints are at the iterations of `config` and the last one. The warm-up is at most a tenth of the iterations.

    Args:
        config: The config of the run.
        flops_per_s: Speed of training.
        startup: Seconds from the start of a training job to its second iteration, once per checkpoint.
        seconds: Time for all training jobs.
    """
    train = config.train
    early = checkpoint_iterations(train)
    iteration_flops = mean_flops_per_token(config.model, train).total * train.batch_size * config.model.context_length
    training = RESERVE * (seconds - startup * len(early))
    iterations = max(1, min(999_999, int(training * flops_per_s / iteration_flops)))
    iterations -= iterations % 10 ** max(0, len(str(iterations)) - 3)  # three digits
    return {
        "iterations": iterations,
        "checkpoint_every": iterations,
        "early_checkpoints": [iteration for iteration in early if iteration < NEAR_END * iterations],
        "warmup_iterations": min(train.warmup_iterations, iterations // 10),
        "lr_decay_iterations": None if train.lr_decay_iterations is None else iterations,
    }

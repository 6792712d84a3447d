"""Config of training and its hardware."""

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from twoscale.config.identity import checkpoint_iterations
from twoscale.config.types import Count, Flag, Natural, NonNegative, Number, Positive, Section, Share, key
from twoscale.errors import InputError

if TYPE_CHECKING:
    from twoscale.config.sections import CoreConfig


class ComputeConfig(Section):
    """Hardware of all jobs that use torch."""

    device: Literal["cpu", "cuda"] = key(
        "cuda", "Device of all torch jobs. Selects the precision of training and the GPU resource of jobs."
    )


class ExitGateTraining(Section):
    """Training of the exit gate with the model, as the first stage of Ouro (arXiv 2510.25741)."""

    entropy_weight: NonNegative = key(
        0.1,
        "Factor beta of the entropy of the exit distribution, in nats, which the loss subtracts. Ouro starts with 0.1 "
        "and goes on with 0.05. 0: the distribution may collapse onto one loop step.",
        source="arXiv 2510.25741",
    )


class TrainConfig(Section):
    """Training run: schedule, batches, optimizer and held-out loss."""

    iterations: Annotated[int, Field(ge=1, le=999_999), Number] = key(
        60_000, "Optimizer updates; 60 000 x 10 x 512 = 307 M tokens.", source="App. B"
    )
    checkpoint_every: Count = key(5000, "Iterations between checkpoints; one training job each.")
    early_checkpoints: tuple[Count, ...] = key(
        (500, 1000, 2000), "Additional checkpoints early in training, where the geometry changes fastest."
    )
    save_seconds: Positive = key(
        120.0,
        "Seconds between saves inside a job. A job that is killed loses at most this much, one iteration and the "
        "writing.",
    )
    log_every: Count = key(
        10, "Iterations between lines of training/metrics.csv, which also has those with a held-out loss."
    )
    print_seconds: Positive = key(
        60.0, "Seconds between lines about a segment on the terminal: iteration, loss and time left."
    )
    tracker: Literal["none", "tensorboard"] = key(
        "none",
        "Further files for the lines of training/metrics.csv. tensorboard: event files beside it; it needs the package "
        "tensorboard.",
    )
    order: Literal["permutation", "offsets"] = key(
        "permutation",
        "Order of the text: non-overlapping sequences in a new order each epoch, or random offsets as in nanoGPT.",
    )
    batch_size: Count = key(10, "Sequences per iteration, derived from App. B: 300 M / 60 000 / 512.")
    micro_batches: Count = key(1, "Gradient accumulation steps, at most batch_size, which they need not divide.")
    processes: Count = key(
        1,
        "Data-parallel processes, those of all nodes together, one per GPU, at most batch_size, which they need not "
        "divide.",
    )
    nodes: Count = key(
        1, "Nodes of the SLURM job that trains, with as many processes on each; more than 1 needs the profile slurm."
    )
    shard: Flag = key(
        False,
        "Divide weights, gradients and moments over the processes, for a model that one GPU cannot hold (FSDP2 of "
        "PyTorch). false: each process has all of them.",
    )
    compile: Flag | Literal["auto"] = key(
        "auto",
        "Apply torch.compile to each group's loop step. auto: on CUDA only. On CPU it needs a C++ compiler. It changes "
        "the result by rounding, so it is part of a run's identity.",
    )
    precision: Literal["auto", "float32", "bfloat16"] = key(
        "auto",
        "Precision of matrix products and attention in training, by autocast; weights and optimizer are float32. auto: "
        "bfloat16 on CUDA, float32 on CPU. On CPU bfloat16 needs AVX512-BF16 or AMX to be fast.",
    )
    recompute: Flag = key(
        False, "Activation checkpointing per loop step: a third more FLOPs, and only one state per loop step in memory."
    )
    prefetch: Flag = key(True, "Read the next batch during the computation of the current one.")
    peak_tflops: Positive | None = key(
        None, "Peak bf16 throughput of the GPU in TFLOPS, for the utilisation in the log. null: not logged."
    )
    cpu_threads: Count = key(1, "Torch threads of training on CPU. The result depends on it bit by bit.")
    learning_rate: Positive = key(6e-4, "Maximum learning rate.", source="App. B, nanoGPT")
    min_learning_rate: Positive = key(6e-5, "Learning rate at the end of the cosine.", source="App. B, nanoGPT")
    warmup_iterations: Natural = key(2000, "Iterations of linear warm-up.", source="App. B, nanoGPT")
    lr_decay_iterations: Count | None = key(
        60_000,
        "Iteration at which the cosine ends, independent of `iterations`. null: constant after warm-up.",
        source="App. B, nanoGPT",
    )
    beta1: Share = key(0.9, "Coefficient of AdamW's first moment.", source="App. B, nanoGPT")
    beta2: Share = key(0.95, "Coefficient of AdamW's second moment.", source="App. B, nanoGPT")
    weight_decay: NonNegative = key(0.1, "Weight decay of matrices and embeddings.", source="App. B, nanoGPT")
    grad_clip: Positive = key(1.0, "Maximum norm of the gradient.", source="App. B, nanoGPT")
    backprop_depth: Count | None = key(
        None,
        "Loop steps that the gradient passes through, counted from the last. null: all. The paper does not mention "
        "truncation; [G] uses 8.",
    )
    exit_gate: ExitGateTraining | None = key(
        None,
        "Train the gate of model.exit_gate with the model (one looped group). The loss is then the cross-entropy that "
        "the exit distribution expects over all loop steps, each decoded through the layers behind the group, minus "
        "its entropy times entropy_weight; so is the column loss of the log. null: the gate keeps its initial weights.",
        source="arXiv 2510.25741",
        optional=True,
    )
    held_out_every: Count = key(
        500, "Iterations between measurements of the held-out loss, which is also measured at each checkpoint."
    )
    held_out_sequences: Count = key(32, "Sequences per measurement of the held-out loss.")
    held_out_loops: Count = key(12, "Fixed loop count of the held-out loss.")

    def compiles(self, device: str) -> bool:
        """Whether training on `device` compiles the model."""
        return device == "cuda" if self.compile == "auto" else self.compile

    def precision_on(self, device: str) -> str:
        """The precision of training on `device`: float32 or bfloat16."""
        return {"cuda": "bfloat16", "cpu": "float32"}[device] if self.precision == "auto" else self.precision

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.iterations not in checkpoint_iterations(self):
            raise InputError(
                f"config key train.iterations: found {self.iterations}, expected an iteration of the checkpoint "
                f"schedule (a multiple of train.checkpoint_every = {self.checkpoint_every}), so that a longer run "
                "can continue this one."
            )
        return self

    @model_validator(mode="after")
    def _check_batch(self) -> Self:
        for name in ("micro_batches", "processes"):
            if getattr(self, name) > self.batch_size:
                raise InputError(
                    f"config key train.{name}: found {getattr(self, name)}, expected at most train.batch_size = "
                    f"{self.batch_size}."
                )
        return self

    @model_validator(mode="after")
    def _check_processes(self) -> Self:
        if self.processes % self.nodes:
            raise InputError(
                f"config key train.nodes: found {self.nodes}, expected a divisor of train.processes = "
                f"{self.processes}, which all nodes have together."
            )
        if self.shard and self.processes == 1:
            raise InputError(
                "config key train.shard: found true, expected false with train.processes = 1, or more processes to "
                "divide the model over."
            )
        # processes that compute nothing would not take part in the gathering of weights
        if self.shard and self.micro_batches * self.processes > self.batch_size:
            raise InputError(
                f"config key train.micro_batches: found {self.micro_batches}, expected at most train.batch_size / "
                f"train.processes = {self.batch_size} / {self.processes} with train.shard."
            )
        return self

    @model_validator(mode="after")
    def _check_learning_rate(self) -> Self:
        if self.min_learning_rate > self.learning_rate:
            raise InputError(
                f"config key train.min_learning_rate: found {self.min_learning_rate}, expected at most "
                f"train.learning_rate = {self.learning_rate}."
            )
        if self.lr_decay_iterations is not None and self.lr_decay_iterations <= self.warmup_iterations:
            raise InputError(
                f"config key train.lr_decay_iterations: found {self.lr_decay_iterations}, expected more than "
                f"train.warmup_iterations = {self.warmup_iterations}, or null for a constant rate."
            )
        return self

    def needed_sequences(self, config: "CoreConfig") -> dict[str, int]:
        return {"held_out_sequences": self.held_out_sequences} if config.model.source == "trained" else {}

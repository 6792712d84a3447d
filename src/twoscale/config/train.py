"""Config of training and its hardware."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from twoscale.config.identity import checkpoint_iterations
from twoscale.config.types import Count, Flag, Fraction, Natural, NonNegative, Number, Positive, Section, key, require

if TYPE_CHECKING:
    from twoscale.config.sections import CoreConfig


class ComputeConfig(Section):
    """Hardware for all jobs that use torch."""

    device: Literal["cpu", "cuda"] = key(
        "cuda",
        "Device for all torch jobs. It determines the default training precision and whether jobs request a GPU.",
    )


class ExitGateTraining(Section):
    """Training of the exit gate together with the model, as in the first stage of Ouro (arXiv 2510.25741)."""

    entropy_weight: NonNegative = key(
        0.1,
        "Factor beta of the entropy of the exit distribution (in nats); their product is subtracted from the loss. "
        "Ouro starts with 0.1 and continues with 0.05. With 0 the distribution may collapse to one loop step.",
        source="arXiv 2510.25741",
    )


class TrainConfig(Section):
    """Training: schedule, batches, optimizer and held-out loss."""

    iterations: Annotated[int, Field(ge=1, le=999_999), Number] = key(
        60_000, "Optimizer updates; 60 000 x 10 x 512 = 307 M tokens.", source="App. B"
    )
    checkpoint_every: Count = key(5000, "Iterations between checkpoints. Each interval is a training job.")
    early_checkpoints: tuple[Count, ...] = key(
        (500, 1000, 2000), "Additional checkpoints early in training, where the geometry changes fastest."
    )
    save_seconds: Positive = key(
        120.0,
        "Seconds between saves within a job. A killed job loses at most the work of this time, one iteration, and the "
        "time to save.",
    )
    log_every: Count = key(
        10, "Iterations between lines of training/metrics.csv. Iterations with a held-out loss are always logged."
    )
    print_seconds: Positive = key(
        60.0, "Seconds between progress lines on the terminal: iteration, loss and time left."
    )
    order: Literal["permutation", "offsets"] = key(
        "permutation",
        "Order of the text: permutation, non-overlapping sequences in a new order each epoch, or random offsets "
        "as in nanoGPT.",
    )
    batch_size: Count = key(10, "Sequences per iteration, derived from App. B: 300 M / 60 000 / 512.")
    micro_batches: Count = key(
        1, "Number of gradient accumulation steps, at most batch_size. It need not divide batch_size."
    )
    processes: Count = key(
        1,
        "Number of data-parallel processes across all nodes, one per GPU; at most batch_size. It need not divide "
        "batch_size.",
    )
    nodes: Count = key(
        1, "Number of nodes of a SLURM training job, a divisor of processes. More than 1 requires the profile slurm."
    )
    shard: Flag = key(
        False,
        "Shard weights, gradients and moments over the processes (PyTorch FSDP2), for models that do not fit on "
        "one GPU.",
    )
    compile: Flag | Literal["auto"] = key(
        "auto",
        "Apply torch.compile to each group's loop step. auto: on CUDA only. Compiling for CPU requires a C++ "
        "compiler. Compiled results differ by rounding, so this key is part of a run's identity.",
    )
    precision: Literal["auto", "float32", "bfloat16"] = key(
        "auto",
        "Precision of matrix products and attention in training (autocast). Weights and optimizer are float32. "
        "auto: bfloat16 on CUDA, float32 on CPU. On CPU, bfloat16 is fast only with AVX512-BF16 or AMX.",
    )
    recompute: Flag = key(
        False,
        "Activation checkpointing per loop step: costs a third more FLOPs, and keeps only one state per loop step"
        " in memory.",
    )
    prefetch: Flag = key(True, "Read the next batch while the current one is computed.")
    peak_tflops: Positive | None = key(
        None, "Peak bf16 throughput of the GPU in TFLOP/s, to log the utilisation. null: not logged."
    )
    cpu_threads: Count = key(1, "Torch threads for training on CPU. The bits of the result depend on it.")
    learning_rate: Positive = key(6e-4, "Maximum learning rate.", source="App. B, nanoGPT")
    min_learning_rate: Positive = key(6e-5, "Learning rate at the end of the cosine.", source="App. B, nanoGPT")
    warmup_iterations: Natural = key(2000, "Iterations of linear warm-up.", source="App. B, nanoGPT")
    lr_decay_iterations: Count | None = key(
        60_000,
        "Iteration at which the cosine ends, independent of `iterations`. null: constant rate after warm-up.",
        source="App. B, nanoGPT",
    )
    beta1: Fraction = key(0.9, "Coefficient of AdamW's first moment.", source="App. B, nanoGPT")
    beta2: Fraction = key(0.95, "Coefficient of AdamW's second moment.", source="App. B, nanoGPT")
    weight_decay: NonNegative = key(0.1, "Weight decay of matrices and embeddings.", source="App. B, nanoGPT")
    grad_clip: Positive = key(1.0, "Maximum norm of the gradient.", source="App. B, nanoGPT")
    backprop_depth: Count | None = key(
        None,
        "Number of last loop steps that gradients pass through. null: all. The paper does not mention truncation;"
        " [G] uses 8.",
    )
    exit_gate: ExitGateTraining | None = key(
        None,
        "Train the gate of model.exit_gate with the model (one looped group). The loss, also in the log, is then the "
        "expected cross-entropy under the exit distribution over all loop steps, each decoded through the layers "
        "after the group, minus entropy_weight times the entropy of this distribution. null: the gate is not trained.",
        source="arXiv 2510.25741",
        optional=True,
    )
    held_out_every: Count = key(
        500, "Iterations between measurements of the held-out loss. It is also measured at each checkpoint."
    )
    held_out_sequences: Count = key(32, "Sequences per measurement of the held-out loss.")
    held_out_loops: Count = key(12, "Fixed loop count of the held-out loss.")

    def compiles(self, device: str) -> bool:
        """Whether training on `device` compiles the model."""
        return device == "cuda" if self.compile == "auto" else self.compile

    def precision_on(self, device: str) -> str:
        """The precision of training on `device`: float32 or bfloat16."""
        return {"cuda": "bfloat16", "cpu": "float32"}[device] if self.precision == "auto" else self.precision

    def check_keys(self) -> None:
        self._check_schedule()
        self._check_processes()

    def _check_schedule(self) -> None:
        every = f"a multiple of train.checkpoint_every = {self.checkpoint_every}"
        expected = f"an iteration of the checkpoint schedule ({every}), so that a longer run can continue this one"
        require(self.iterations in checkpoint_iterations(self), "train.iterations", self.iterations, expected)
        most, least = self.learning_rate, self.min_learning_rate
        require(least <= most, "train.min_learning_rate", least, f"at most train.learning_rate = {most}")
        end, warmup = self.lr_decay_iterations, self.warmup_iterations
        expected = f"more than train.warmup_iterations = {warmup}, or null for a constant rate"
        require(end is None or end > warmup, "train.lr_decay_iterations", end, expected)

    def _check_processes(self) -> None:
        size, processes = self.batch_size, self.processes
        for name in ("micro_batches", "processes"):
            count = getattr(self, name)
            require(count <= size, f"train.{name}", count, f"at most train.batch_size = {size}")
        together = f"a divisor of train.processes = {processes}, the total over all nodes"
        require(processes % self.nodes == 0, "train.nodes", self.nodes, together)
        one = "false for train.processes = 1, or more processes"
        require(not self.shard or processes > 1, "train.shard", "true", one)
        # processes that compute nothing would not take part in the gathering of weights
        most = f"at most train.batch_size / train.processes = {size} / {processes} with train.shard"
        fits = not self.shard or self.micro_batches * processes <= size
        require(fits, "train.micro_batches", self.micro_batches, most)

    def check(self, config: "CoreConfig") -> None:
        model = config.model
        depth, groups = self.backprop_depth, len(model.groups)
        expected = (
            "null for model.injection: none, where a truncated gradient does not reach the layers before the loop"
        )
        require(depth is None or model.injection != "none", "train.backprop_depth", depth, expected)
        found = f"model.exit_gate: {str(model.exit_gate).lower()} and {groups} looped groups"
        expected = "model.exit_gate: true and one looped group; for several groups use the criterion probe"
        require(self.exit_gate is None or (model.exit_gate and groups == 1), "train.exit_gate", found, expected)

    def needed_sequences(self, config: "CoreConfig") -> dict[str, int]:
        return {"held_out_sequences": self.held_out_sequences} if config.model.source == "trained" else {}

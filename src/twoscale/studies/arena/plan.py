"""The cost of the study."""

from twoscale.config.sections import Config
from twoscale.training.analyses import Cost, exits_cost, oracle_forward, passes_cost


def cost(run: Config) -> Cost:
    """The benchmark of the dense grid, the oracle, and fixed loop counts on the same text."""
    sequences = run.sequences("pareto", "quality_tokens")
    benchmark = exits_cost(run, run.exit_grids["pareto"], sequences)
    uniform = passes_cost(run, [(sequences, loops) for loops in run.loop_grid])
    oracle = run.model.context_length * run.sequences("oracle") * oracle_forward(run)
    return Cost(benchmark.flops + uniform.flops + oracle, benchmark.tokens)

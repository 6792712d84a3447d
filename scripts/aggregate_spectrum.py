"""Rule aggregate_spectrum: what the spectrum predicts against what paths do, slow tokens, and the last checkpoint."""

from twoscale import command, tables
from twoscale.analysis import aggregate
from twoscale.studies.spectrum import compare as spectrum


def main(arguments) -> None:
    run, seed = arguments.config.run, arguments.config.seed
    frames = {
        "token_spectrum": tables.read("token_spectrum", arguments.tokens[-1]),
        "spectrum": spectrum.agreement(arguments.tokens, run, seed),
        "spectrum_metrics": aggregate.spectrum_metrics(arguments.tokens, run),
        "slow_tokens": spectrum.slow_tokens(arguments.tokens, run, seed),
    }
    for table, frame in frames.items():
        tables.write(table, frame, getattr(arguments, table))


if __name__ == "__main__":
    outputs = ("token_spectrum", "spectrum", "spectrum_metrics", "slow_tokens")
    command.run(main, command.parser(__doc__, files=outputs, lists=("tokens",)))

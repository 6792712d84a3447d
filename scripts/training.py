"""Rule training: loss, learning rate, gradient norm and loops drawn at every training iteration."""

from twoscale import command, tables
from twoscale.figures import style
from twoscale.figures import training


def main(arguments):
    chosen = arguments.config
    log = tables.read("training", arguments.training)
    figure = training.draw(
        log, chosen["mean_loops"], chosen["held_out_loops"], chosen["clip"], chosen["run"], chosen["text"]
    )
    style.save(figure, arguments.output)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--training", required=True, help="table training")
    parser.add_argument("--output", required=True, help="figure, .pdf or .png")
    command.run(main, parser)

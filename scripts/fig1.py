"""Rule fig1: trajectories of tokens through the model in two principal components, one loop enlarged."""

from twoscale import command
from twoscale.figures import style
from twoscale.figures import fig1


def main(arguments):
    chosen = arguments.config
    states = fig1.read_states(arguments.states)
    figure = fig1.draw(states, chosen["tokens"], chosen["run"], chosen["text"])
    style.save(figure, arguments.output)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--states", required=True, help="states of one held-out sequence, safetensors")
    parser.add_argument("--output", required=True, help="figure, .pdf or .png")
    command.run(main, parser)

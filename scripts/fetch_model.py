"""Rule fetch_model: download a published model at one commit, so that no later job needs the
network; resumes.
"""

from twoscale.data.hub import fetch_model
from twoscale.jobs import command


def main(arguments) -> None:
    config = arguments.config
    fetch_model(
        config.repository, config.revision, arguments.manifest.parent, arguments.download.download
    )


if __name__ == "__main__":
    parser = command.parser(__doc__, files=("description", "tokenizer", "manifest"), download=True)
    command.run(main, parser)

"""Rule fetch_release: the tables of a release, each with the size and the SHA-256 of its manifest."""

from twoscale import command
from twoscale.analysis.release import Manifest, Release
from twoscale.config import ConfigSlice
from twoscale.json import checked


def main(arguments) -> None:
    manifest = checked({"run": "released", "config": {}, "files": arguments.config.files}, Manifest)
    release = Release(arguments.place, manifest, arguments.download.download)
    for name, path in zip(sorted(manifest.files), arguments.tables, strict=True):
        release.fetch(name, path)


if __name__ == "__main__":
    parser = command.parser(__doc__, lists=("tables",))
    parser.add_argument("--place", required=True, help="folder or address of the release")
    parser.add_argument("--download", type=ConfigSlice.from_json, required=True, help="section download, as JSON")
    command.run(main, parser)

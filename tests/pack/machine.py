"""An environment with what a machine with a GPU has: PyTorch and a few packages, but neither
Snakemake nor pydantic.

Called with the Python of another environment that has these packages, and the folder for the new
one, which gets links to them. Nothing is installed, so it takes seconds.
"""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

PACKAGES = (
    *(
        "torch",
        "numpy",
        "pandas",
        "pyarrow",
        "seaborn",
        "tiktoken",
        "tokenizers",
        "safetensors",
        "tqdm",
        "PyYAML",
    ),
    *("pytest", "hypothesis"),
)


def needed(package: str, found: dict[str, metadata.Distribution]) -> None:
    """Add a package and what it needs to `found`; what is not installed is left out, such as the
    libraries of CUDA.
    """
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return
    if distribution.name not in found:
        found[distribution.name] = distribution
        for requirement in map(Requirement, distribution.requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(requirement.name, found)


def link(distribution: metadata.Distribution, site: Path) -> None:
    """Link the folders and modules of a package."""
    tops = {
        file.parts[0] for file in distribution.files if file.parts[0] not in ("..", "__pycache__")
    }
    for top in tops:
        if not (site / top).exists() and not top.endswith(".pth"):
            (site / top).symlink_to(distribution.locate_file(top))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    distributions: dict[str, metadata.Distribution] = {}
    for package in PACKAGES:
        needed(package, distributions)
    for distribution in distributions.values():
        link(distribution, site)

"""Which packages the scripts for a GPU machine need. Nothing is imported here, so it works where they are missing."""

from importlib.util import find_spec

# module -> package; torch.utils.benchmark imports setuptools, and the tests hypothesis
CHECK = {
    "torch": "torch",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "pydantic": "pydantic",
    "yaml": "PyYAML",
    "safetensors": "safetensors",
    "tqdm": "tqdm",
    "pytest": "pytest",
    "hypothesis": "hypothesis",
    "setuptools": "setuptools",
}


def missing_packages(needed: dict[str, str]) -> str | None:
    """A sentence that names the packages that are not installed; None if all are."""
    missing = [package for module, package in needed.items() if find_spec(module) is None]
    if not missing:
        return None
    return (
        f"error: Python packages: found no {', '.join(missing)}, expected {', '.join(needed.values())} "
        "(versions: requirements.txt)."
    )

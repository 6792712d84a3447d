"""Install a torch for tests on a CPU, without the packages of CUDA (several GB).

    python tests/cpu_torch.py [REQUIREMENT]

Without a requirement, such as `torch` for the newest, it is the oldest that pyproject.toml allows.
Call it with the Python of the environment. Where the index only has the build for CUDA, that build
loads the libraries of CUDA, but calls nothing in them on a machine without a GPU, so one library
whose functions return "no device" takes their place.
"""

import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib import metadata
from pathlib import Path

OMITTED = re.compile(r"nvidia-|cuda-|triton|.*extra ==")  # requirements of torch
LIBRARY = re.compile(r"NEEDED.*\[(lib(?:cu|nv|nccl)[^]]*)]")
VERSION = re.compile(r"File: lib(?:cu|nv).*\n +\S+ +Name: (\S+)")  # of the symbols of one library
SYMBOL = re.compile(r" UND ((?:__cu|cu|nv|nccl)\w+)(?:@(\S+))?")
NO_DEVICE = 100  # cudaErrorNoDevice; the other libraries report a failure with it


def output(*command: str | Path, text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def install(*requirements: str) -> None:
    output(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        *requirements,
    )


def loads() -> bool:
    return (
        subprocess.run(
            [sys.executable, "-c", "import torch"], capture_output=True, check=False
        ).returncode
        == 0
    )


def replace_libraries(folder: Path) -> None:
    """Write the libraries of CUDA that the libraries in torch's folder name, as one file."""
    found = "".join(output("readelf", "-WdV", "--dyn-syms", path) for path in folder.glob("*.so"))
    names = defaultdict(set, {version: set() for version in VERSION.findall(found)})
    for name, version in SYMBOL.findall(found):
        names[version].add(name)
    code = "".join(
        f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in set().union(*names.values())
    )
    nodes = (
        f"{version} {{ {'; '.join(sorted(names[version]))}; }};\n"
        for version in filter(None, names)
    )
    library, versions = folder / "no_device.so", folder / "no_device.map"
    versions.write_text("".join(nodes))
    output(
        "gcc",
        "-w",
        "-shared",
        "-fPIC",
        "-xc",
        "-",
        "-o",
        library,
        f"-Wl,--version-script={versions}",
        text=code,
    )
    for name in set(LIBRARY.findall(found)):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(library.name)


def oldest_torch() -> str:
    project = tomllib.loads(
        (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    )["project"]
    extra = project["optional-dependencies"]["torch"]
    (requirement,) = (need for need in extra if need.startswith("torch>="))
    return requirement.replace(">=", "==") + ".*"


if __name__ == "__main__":
    install("--no-deps", "--upgrade", *(sys.argv[1:] or [oldest_torch()]))
    install(*(need for need in metadata.requires("torch") if not OMITTED.match(need)))
    if not loads():
        replace_libraries(Path(str(metadata.distribution("torch").locate_file("torch/lib"))))
    sys.exit(None if loads() else "torch does not load")

"""No test depends on the variables of the user's shell. This module is imported before any test and
any library.
"""

import os
import warnings

# Prefixes of variables that change what Python, the libraries or Snakemake do. Some are set by
# tests on purpose.
PREFIXES = (
    "HF_",
    "HUGGINGFACE_",
    "HUGGING_FACE_",
    "DATASETS_",
    "TRANSFORMERS_",
    "TIKTOKEN_",
    "DATA_GYM_",
    "SNAKEMAKE_",
    "SLURM_",
    "SBATCH_",
    "PYTHON",
    "MPL",
    "MATPLOTLIB",
    "TORCH",
    "PYTORCH",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "NUMEXPR_",
    "VECLIB_",
    "MALLOC_",
    "SSL_CERT_",
    "REQUESTS_",
    "CURL_",
    "CLICOLOR",
    "LC_",
    "PET_",
    "ATEN_",
    "DNNL_",
    "ONEDNN_",
    "CUBLAS_",
    "NVIDIA_TF32",
)
PROXIES = frozenset(
    {"http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"}
)  # in capitals too
DISPLAY = frozenset({"LANG", "LANGUAGE", "TZ", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"})
PROCESSES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)  # of torch.distributed
KEPT = frozenset({"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"})


def of_the_shell(name: str) -> bool:
    """Whether a variable could change the result of a test."""
    return name not in KEPT and (
        name.startswith(PREFIXES) or name.lower() in PROXIES or name in DISPLAY or name in PROCESSES
    )


for variable in filter(of_the_shell, list(os.environ)):
    del os.environ[variable]
os.environ |= {"LC_ALL": "C.UTF-8", "TZ": "UTC"}
warnings.resetwarnings()  # PYTHONWARNINGS; pytest sets filters of its own for each test

import hypothesis  # noqa: E402 - after the variables are gone

from tests import selection  # noqa: E402

# no limits of time on a busy machine, the same examples in every run, no folder of earlier failures
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("tests")


def pytest_addoption(parser) -> None:
    parser.addoption("--since", metavar="REVISION", help="only tests that changes since it touch")


def pytest_collection_modifyitems(config, items) -> None:
    """Leave out tests that no change can touch, and run those of the workflow first.

    These take longest, and none should be left to one worker at the end.
    """
    if revision := config.getoption("since"):
        changed = selection.changed_since(revision)
        files = {item.path for item in items}
        touched = {path for path in files if selection.is_touched(path, changed)}
        config.hook.pytest_deselected(items=[item for item in items if item.path not in touched])
        items[:] = [item for item in items if item.path in touched]
    items.sort(
        key=lambda item: "workflow" not in item.path.parts and item.path.name != "test_rules.py"
    )

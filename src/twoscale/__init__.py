"""Two-scale latent dynamics of looped transformers: train, measure and compare looped language
models.

The public names, each with a docstring for `help`, as in `help(twoscale.open_run)`:

    open_run        a model with its tokenizer: any checkpoint of a run, or a published model
    read_table      a table of a run as a pandas DataFrame
    make_criterion  an exit criterion at a threshold
    evaluate        loop steps and quality of each token of a text under an exit criterion
    Recorder        records the loops of any PyTorch module
    compare         a table of two runs as one DataFrame

They are imported on first use. `read_table`, `compare` and the command `twoscale` need no torch;
the others need pip install 'twoscale[torch]'. docs/tour.ipynb uses all six.
"""

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

# The commands of a notebook inherit the backend of its kernel, and matplotlib cannot be imported
# where that is not installed. No figure of this library needs a backend. One that matplotlib
# accepts is left to the user, and a session that has imported matplotlib as it is.
if (_backend := os.environ.get("MPLBACKEND")) and "matplotlib" not in sys.modules:
    del os.environ["MPLBACKEND"]
    with suppress(ImportError, ValueError):
        import matplotlib

        matplotlib.rcParams["backend"] = _backend
        os.environ["MPLBACKEND"] = _backend

__version__ = "0.3.0"
__all__ = [
    "Recorder",
    "__version__",
    "compare",
    "evaluate",
    "make_criterion",
    "open_run",
    "read_table",
]

if TYPE_CHECKING:
    from twoscale.dynamics.run_tables import compare, read_table
    from twoscale.exits.evaluation import evaluate, make_criterion
    from twoscale.model.trained_run import open_run
    from twoscale.recorder.recorder import Recorder
else:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'twoscale' has no attribute {name!r}")
        from twoscale.base import needing

        with needing("torch"):
            match name:
                case "compare" | "read_table":
                    from twoscale.dynamics import run_tables as home
                case "evaluate" | "make_criterion":
                    from twoscale.exits import evaluation as home
                case "open_run":
                    from twoscale.model import trained_run as home
                case "Recorder":
                    from twoscale.recorder import recorder as home
        return getattr(home, name)

    def __dir__() -> list[str]:
        return __all__

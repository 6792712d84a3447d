"""The config: sections and their checks, layers and runs, and the identities derived from them.

Its names are imported on first use: the class `Config` has the sections of all studies, whose modules import parts of
this package. Values of the config reach jobs in their params; only the formulas of `twoscale.config.definitions` are
covered by the fingerprints of the code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twoscale.config.data import *  # noqa: F403
    from twoscale.config.loading import *  # noqa: F403
    from twoscale.config.model import *  # noqa: F403
    from twoscale.config.sections import *  # noqa: F403
    from twoscale.config.types import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        # `loading` comes last: it imports the studies
        for module in () if name.startswith("_") else ("types", "definitions", "data", "model", "sections", "loading"):
            home = import_module(f"twoscale.config.{module}")
            if hasattr(home, name):
                return getattr(home, name)
        raise AttributeError(f"module 'twoscale.config' has no attribute {name!r}")

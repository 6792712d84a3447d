"""Recording of any torch module that loops, and the figures and claims of what was recorded."""

from typing import TYPE_CHECKING, Any

__all__ = ["Input", "Loop", "Output", "Recorder"]

if TYPE_CHECKING:
    from twoscale.recorder.recorder import Input, Loop, Output, Recorder
else:

    def __getattr__(name: str) -> Any:  # on first use: what draws recorded states imports no torch
        if name not in __all__:
            raise AttributeError(f"module 'twoscale.recorder' has no attribute {name!r}")
        from twoscale.base import needing

        with needing("torch"):
            from twoscale.recorder import recorder
        return getattr(recorder, name)

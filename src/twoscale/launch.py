"""The processes that torchrun started together, if it started this one.

Operators of clusters and shells inside another launch export the same variables to processes that train nothing
together. So these count only beside the one that torchrun alone sets, and the workflow removes all of them from the
environment of its jobs, in which a torchrun of a rule sets them anew.
"""

import os
from collections.abc import MutableMapping
from typing import NamedTuple

from twoscale.errors import InputError

STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
# torchrun's options have defaults in variables PET_*, for example PET_NNODES. Source: torch.distributed.argparse_util.
PREFIXES = ("TORCHELASTIC_", "PET_")
NAMES = frozenset(
    f"{scope}{what}" for scope in ("", "LOCAL_", "GROUP_", "ROLE_", "NODE_") for what in ("RANK", "WORLD_SIZE")
) | {"ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"}


class Team(NamedTuple):
    """The number `rank` of this process, and the number of processes of its launch."""

    rank: int = 0
    size: int = 1


def team() -> Team:
    """The team of this process; of one process unless torchrun started it. Raises InputError."""
    if STARTED_BY_TORCHRUN not in os.environ:
        return Team()
    return Team(_number("RANK", 0), _number("WORLD_SIZE", 1))


def checked_team(processes: int) -> Team:
    """The team of this process, which must have the size train.processes of the config. Raises InputError."""
    found = team()
    if found.size != processes:
        raise InputError(
            f"config key train.processes: found {processes}, expected {found.size}, the number of processes that "
            f"started together ({STARTED_BY_TORCHRUN} and WORLD_SIZE in the environment, which torchrun sets)."
        )
    return found


def leave_team(environment: MutableMapping[str, str]) -> None:
    """Remove the variables of every launch from an environment."""
    for name in [name for name in environment if name in NAMES or name.startswith(PREFIXES)]:
        del environment[name]


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise InputError(f"variable {name}: found {text!r}, expected the number that torchrun sets.")
    return int(text)

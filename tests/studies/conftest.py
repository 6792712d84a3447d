"""The tests of a study are collected where the study is; `rm -r` of its folder needs no change
here.
"""

from pathlib import Path

from tests.unit.conftest import pytest_collection_modifyitems  # noqa: F401 - what unit tests share
from tests.workflow.conftest import editable, finished, fresh  # noqa: F401 - a copy of the project
from twoscale.base import STUDIES

collect_ignore = [
    path.name
    for path in Path(__file__).parent.iterdir()
    if path.is_dir() and path.name not in STUDIES
]

"""files: a file is there whole or as it was before."""

import os

import pytest

from twoscale.files import replacing


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_new_content_appears_under_the_name_when_the_block_ends(tmp_path):
    path = tmp_path / "table.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["table.txt"]


def test_a_failure_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "table.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="halfway"), replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise RuntimeError("halfway")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["table.txt"]


def test_a_failure_before_the_first_byte_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError, match="early"), replacing(tmp_path / "new.txt"):
        raise RuntimeError("early")
    assert names(tmp_path) == []


def test_folders_on_the_way_are_made(tmp_path):
    path = tmp_path / "results" / "run" / "table.txt"
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"


def test_the_temporary_file_is_on_the_same_disk_and_belongs_to_this_process(tmp_path):
    with replacing(tmp_path / "table.txt") as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path
        assert str(os.getpid()) in temporary.name

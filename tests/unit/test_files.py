"""files: a file is there whole or as it was before."""

import os

import pytest

from twoscale.files import replacing


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def fail_halfway(path):
    with replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise RuntimeError("halfway")


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
    with pytest.raises(RuntimeError, match="halfway"):
        fail_halfway(path)
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


def test_everyone_may_read_the_file_who_may_read_an_ordinary_one(tmp_path):
    path, ordinary = tmp_path / "table.txt", tmp_path / "ordinary.txt"
    ordinary.write_text("new")
    with replacing(path) as temporary:
        temporary.touch(mode=0o600)
    assert path.stat().st_mode == ordinary.stat().st_mode


def test_the_temporary_file_is_on_the_same_disk_and_belongs_to_this_process(tmp_path):
    with replacing(tmp_path / "table.txt") as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path
        assert str(os.getpid()) in temporary.name

"""Atomic writes: a file has its new content or its previous one."""

import os

import pytest

from twoscale.files import replacing


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def fail_halfway(path):
    with replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise RuntimeError("halfway")


def test_the_new_content_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "table.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["table.txt"]


def test_a_failure_keeps_the_old_file_and_leaves_no_other(tmp_path):
    path = tmp_path / "table.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="halfway"):
        fail_halfway(path)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["table.txt"]


def test_a_failure_before_the_first_byte_leaves_no_file(tmp_path):
    with pytest.raises(RuntimeError, match="early"), replacing(tmp_path / "new.txt"):
        raise RuntimeError("early")
    assert names(tmp_path) == []


def test_missing_folders_are_created(tmp_path):
    path = tmp_path / "results" / "run" / "table.txt"
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"


def test_the_mode_is_that_of_an_ordinary_file(tmp_path):
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


def test_the_bytes_are_on_disk_before_the_file_gets_its_name(tmp_path, monkeypatch):
    path, synced = tmp_path / "table.txt", []

    def fsync(number):
        synced.append((os.fstat(number).st_ino, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert synced == [(path.stat().st_ino, False)]

"""Atomic writes: a file has its new content or its previous one."""

import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from twoscale.base import link, replacing


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def fail_halfway(path):
    with replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise RuntimeError("halfway")


def test_the_new_content_appears_when_the_block_ends(tmp_path):
    path, ordinary = tmp_path / "results" / "run" / "table.txt", tmp_path / "ordinary.txt"
    ordinary.write_text("old")
    for before, after in (("", "old"), ("old", "new")):
        with replacing(path) as temporary:
            temporary.write_text(after)
            assert temporary.parent == path.parent
            assert not before or path.read_text() == before
        assert path.read_text() == after
    assert names(path.parent) == ["table.txt"]
    assert path.stat().st_mode == ordinary.stat().st_mode


def test_a_failure_keeps_the_old_file_and_leaves_no_other(tmp_path):
    path = tmp_path / "table.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="halfway"):
        fail_halfway(path)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["table.txt"]


KILLED = """
import os, signal, sys
from twoscale.base import replacing
with replacing(sys.argv[1]) as temporary:
    temporary.write_text("half of the n")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_temporary_file_of_a_killed_process_is_removed_a_day_later_and_no_other(tmp_path):
    path = tmp_path / "table.txt"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (orphan,) = names(tmp_path)
    assert killed.returncode == -9
    others = [".other.txt.0.tmp", ".table.txt.new.tmp", "table.txt.0.tmp"]
    for name in others:
        (tmp_path / name).touch()
    for name, hours in ((orphan, 25), (others[0], 25), (others[1], 23), (others[2], 25)):
        written = time.time() - hours * 3600
        os.utime(tmp_path / name, (written, written))
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert names(tmp_path) == sorted([*others, "table.txt"])


def test_a_temporary_file_has_a_name_that_nobody_can_foresee(tmp_path):
    tokens = set()
    for _ in range(20):
        with replacing(tmp_path / "table.txt") as temporary:
            tokens.add(re.fullmatch(r"\.table\.txt\.(\w{16})\.tmp", temporary.name)[1])
    assert len(tokens) == 20


def test_a_file_that_a_library_makes_private_gets_the_mode_of_others(tmp_path):
    path, ordinary = tmp_path / "table.txt", tmp_path / "ordinary.txt"
    ordinary.touch()
    with replacing(path) as temporary:
        temporary.unlink()
        temporary.touch(mode=0o600)
    assert path.stat().st_mode == ordinary.stat().st_mode


def plant_link(path, victim):
    with replacing(path) as temporary:
        temporary.unlink()
        temporary.symlink_to(victim)


def test_a_link_in_place_of_the_temporary_file_is_not_followed(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "table.txt"
    victim.write_text("of another user")
    victim.chmod(0o600)
    path.write_text("old")
    with pytest.raises(OSError, match="symbolic links"):
        plant_link(path, victim)
    assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("of another user", 0o600)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["table.txt", "victim"]


def test_a_hard_link_replaces_a_file_and_may_be_made_twice(tmp_path):
    source, path = tmp_path / "source", tmp_path / "path"
    source.write_text("new")
    path.write_text("old")
    for _ in range(2):
        link(source, path)
        assert path.samefile(source)
    assert names(tmp_path) == ["path", "source"]


UMASK = """
import os, sys
os.umask(0o077)
from twoscale.base import replacing
with replacing(sys.argv[1]) as temporary:
    temporary.write_text("private")
print(oct(os.umask(0)))
"""


def test_the_umask_of_the_user_is_kept_and_obeyed(tmp_path):
    path, source = tmp_path / "table.txt", Path(__file__).parents[2] / "src"
    command = [sys.executable, "-c", UMASK, path]
    environment = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.strip() == "0o77"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_bytes_are_on_disk_before_the_file_gets_its_name(tmp_path, monkeypatch):
    path, synced = tmp_path / "table.txt", []

    def fsync(number):
        synced.append((os.fstat(number).st_ino, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert synced == [(path.stat().st_ino, False)]

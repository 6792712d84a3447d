"""Progress in a log: whole lines, and few of them."""

import re

import pytest

from twoscale import base


@pytest.fixture
def log(capsys):
    """Lines that the meter has printed; captured standard error is not a terminal."""
    return lambda: capsys.readouterr().err.splitlines()


def counts(line: str) -> tuple[float, str]:
    """Completed amount and total in a line."""
    done, total = re.search(r"([\d.]+)/([\d.]+)", line).groups()
    return float(done), total


def test_quick_work_prints_one_line_with_the_total(log):
    with base.meter("train 0 -> 200", 200, "it") as bar:
        for _ in range(200):
            bar.update()
    (line,) = log()
    assert line.startswith("train 0 -> 200")
    assert counts(line) == (200, "200")
    assert "100%" in line


def test_long_work_prints_a_line_per_interval(log, monkeypatch):
    monkeypatch.setattr(base, "LOG_SECONDS", 0.0)
    with base.meter("train", 2, "it") as bar:
        bar.update()
        bar.set_postfix_str("loss 1.5")
        bar.update()
    lines = log()
    assert [counts(line)[0] for line in lines] == [1, 2, 2]
    assert "loss" not in lines[0]
    assert "loss 1.5" in lines[1]


def test_resumed_work_counts_from_its_initial_amount(log):
    with base.meter("train", 10, "it", initial=7) as bar:
        bar.update(3)
    assert counts(log()[0]) == (10, "10.0")


def test_work_without_a_total_is_counted(log):
    with base.meter("documents", None, "documents") as bar:
        bar.update(5)
    (line,) = log()
    assert re.match(r"documents: 5\.0+ \[", line)

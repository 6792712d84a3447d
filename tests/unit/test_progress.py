"""Progress in a log: a bar every few seconds."""

import re

import pytest

from twoscale import base


@pytest.fixture
def log(capsys):
    """Amount, total and text of the lines that the meter has printed; captured standard error is
    not a terminal.
    """

    def lines():
        found = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
        return [(*re.search(r"([\d.]+)/([\d.]+) ", line).groups(), line) for line in found]

    return lines


def test_quick_work_prints_its_beginning_and_its_end(log):
    with base.meter("train 7 -> 200", 200, "it", initial=7) as bar:
        for _ in range(193):
            bar.update()
    (first, *_), (last, total, line) = log()
    assert (first, last, total) == ("7.00", "200", "200")
    assert line.startswith("train 7 -> 200: 100%")


def test_long_work_prints_a_line_per_interval(log, monkeypatch):
    monkeypatch.setattr(base, "LOG_SECONDS", 0.0)
    with base.meter("train", 2, "it") as bar:
        bar.update()
        bar.set_postfix_str("loss 1.5", refresh=False)
        bar.update()
    lines = log()
    assert [float(done) for done, *_ in lines] == [0, 1, 2, 2]
    assert ["loss 1.5" in line for *_, line in lines] == [False, False, True, True]


def test_work_without_a_total_is_counted_and_other_processes_print_nothing(capsys):
    for visible in (True, False):
        with base.meter("documents", None, "documents", visible=visible) as bar:
            bar.update(5)
    said = capsys.readouterr().err
    assert re.fullmatch(r"\rdocuments: 0\.0+.*\rdocuments: 5\.0+.*\n", said)

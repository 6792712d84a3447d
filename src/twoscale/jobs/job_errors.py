"""Errors on the terminal: the shell line of a failed job once, and every cause as a sentence in the last lines.

Snakemake reports a failure twice, each time with the shell line, and ends with a message that names no cause. A filter
of its logger drops the first report and adds the causes to that message, or says that the user interrupted the run. It
also takes the sentence of a refused plan out of the report on the input function in which the plan was checked. It uses
only attributes of log records.
"""

import logging
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from twoscale.base import one_line
from twoscale.jobs import changed_params

# "Command '...' returned non-zero exit status 1." or "Command '...' died with <Signals.SIGKILL: 9>."
FAILED = re.compile(r"Command '(.*)' (?:returned non-zero exit status|died with <Signals\.\w+:) (\d+)", re.DOTALL)
ENDED = "At least one job did not complete successfully."
INTERRUPTING = "Terminating processes on user request"
INTERRUPTED = "Interrupted. Repeat the command to continue: finished jobs are kept, and training resumes."
REFUSED = re.compile(r"(?:WrongInput|InputError):\s*(.+?)\s*\n\s*Wildcards:", re.DOTALL)
NO_RULE = re.compile(r"No rule to produce (.*?) \(if you use input functions", re.DOTALL)
SIGKILL, STOPPED = 9, {2: "SIGINT", 15: "SIGTERM"}
LITTLE_SPACE = 2**16  # bytes; a disk with less is full


class JobErrors(logging.Filter):
    """Remembers why jobs failed, and says it in Snakemake's last message."""

    def __init__(self) -> None:
        super().__init__()
        self._status: dict[str, int] = {}  # shell line -> exit status
        self._causes: dict[Any, str] = {}  # job -> rule and cause
        self._interrupted = False
        # a file that no rule makes -> the sentence on it
        self.missing: Callable[[str], str] | None = None

    @classmethod
    def install(cls, logger: logging.Logger) -> "JobErrors":
        """Add one filter to Snakemake's logger, even if several Snakefiles include this workflow."""
        installed: Any = next((known for known in logger.filters if type(known).__name__ == cls.__name__), None)
        if installed is None:
            logger.addFilter(installed := cls())
        for handler in logger.handlers:  # file names in any script, also where the locale has only ASCII
            stream: Any = getattr(handler, "stream", None)
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        return installed

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether Snakemake prints a record."""
        try:
            return self._observe(record)
        except (
            Exception
        ):  # raised here, it would end the thread that reports failures, and Snakemake would wait forever
            return True

    def _observe(self, record: Any) -> bool:
        event = str(getattr(record, "event", None))
        self._interrupted |= INTERRUPTING in str(record.msg)
        if event == "error" and (match := FAILED.search(str(record.msg))):
            self._status[match[1]] = int(match[2]) % 128  # 128 + signal in a shell
            return False
        if event == "job_info" and getattr(record, "reason", None):
            record.reason = changed_params.named(str(record.reason))
        if event == "job_error":
            self._causes[record.jobid] = f"{record.rule_name}: {self._cause(record.log, record.shellcmd)}"
            return not self._interrupted
        if event == "job_finished":  # at another attempt
            self._causes.pop(getattr(record, "job_id", None), None)
        elif event == "error" and ENDED in str(record.msg):
            record.msg = INTERRUPTED if self._interrupted else "\n".join([record.msg, *self._causes.values()])
        elif event == "error" and (match := REFUSED.search(str(record.msg))):
            record.msg = match[1]
        elif event == "error" and self.missing and (match := NO_RULE.search(str(record.msg))):
            record.msg = self.missing(match[1])
        return True

    def _cause(self, logs: Iterable[str], command: str | None) -> str:
        status = next((status for line, status in self._status.items() if command and command in line), None)
        if status == SIGKILL:
            return "the job was killed (SIGKILL), as happens when memory runs out."
        if status in STOPPED:
            return f"the job was stopped ({STOPPED[status]})."
        return next(filter(None, map(last_line, logs)), None) or "the job wrote no message."


def last_line(path: str) -> str | None:
    """The last line of a log, or why it has none; None if it is empty."""
    log = Path(path)
    if not log.is_file():
        return None
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    if (line := next(filter(None, map(str.strip, reversed(lines))), None)) is not None:
        return one_line(line)
    if shutil.disk_usage(log).free < LITTLE_SPACE:
        return f"error: {log}: found the error 'No space left on device', expected free space on its disk."
    return None

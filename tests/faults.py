"""How many of the faults that are planted in the library the tests notice.

    python -m tests.faults list --seed 7 --count 80
    python -m tests.faults map --coverage FOLDER --map map.json
    python -m tests.faults run --seed 7 --count 80 --map map.json --out noticed.jsonl

Functions, class bodies and module bodies are drawn, weighted by their numbers of statements, and one
fault in each. A draw depends on the seed and on the name and the code of its function only, so an
edit elsewhere does not change it. Faults without an effect for a user are listed with a reason in
faults.txt, and do not count.

`run` plants a fault in a temporary worktree of HEAD and runs tests that execute its function, the
cheapest first, for about --seconds. Faults that these do not notice are planted together for one run
of the suite, and each is planted alone for the tests that fail in it. A test that also fails without
a fault does not count. A second call with the same --out continues the first.

`map` measures which test executes which function, file by file, and also continues an earlier call.
It needs the package `coverage`, which nothing else here uses, and takes two to three times as long as
the suite. A map of an earlier commit is good enough; without a map the tests follow from imports.
"""

import argparse
import ast
import copy
import json
import math
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

import psutil
import pytest

from tests.selection import is_touched

ROOT = Path(__file__).parents[1]
SOURCE = Path("src", "twoscale")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

# --- faults -------------------------------------------------------------------------------------

OPERATORS = "Lt LtE,Gt GtE,Eq NotEq,Is IsNot,In NotIn,And Or,Add Sub,Mult Div,BitAnd BitOr"  # codespell:ignore
CALLS = "min max,any all,argmin argmax,minimum maximum,floor ceil,mean sum,amin amax"
OTHER = dict(pair.split() for pair in f"{OPERATORS},{CALLS}".split(","))
OTHER |= {second: first for first, second in OTHER.items()} | {"FloorDiv": "Mult", "Mod": "Mult"}
# name -> number of arguments of a call with a default
DEFAULTS = {"get": 2, "pop": 2, "setdefault": 2, "next": 2, "getattr": 3}
TEXTS = (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple, ast.Dict, ast.DictComp, ast.Set)

# Parts without faults: types, what a person only reads or sees, and `strict` of zip, an assertion.
NO_CODE = set("annotation returns decorator_list exc cause msg format_spec".split())
PRINTED = set("print warn info add_argument".split())
WORDS = set("description help metavar title unit meaning message label text source strict".split())
LOOK = set(
    "color linewidth linewidths linestyle zorder loc alpha fontsize ncols nbins ha va pad s marker"
    " markersize markeredgecolor labelsize xytext textcoords width_ratios height_ratios figsize"
    " path_effects err_kws length linscale layout upright bottom top left right steps aspect"
    " interpolation tick_params margins set_axisbelow despine tight_layout".split()
)


@dataclass(frozen=True)
class Fault:
    file: str  # below src/twoscale
    scope: str  # the function; for what runs at import the class, or nothing
    line: int
    key: str  # file, scope, before and after
    start: int  # the bytes that `text` replaces
    end: int
    text: str


def draw(seed: int, count: int) -> list[Fault]:
    """Faults by the seed, each in another scope.

    Each scope of w statements has a random time from the exponential distribution of rate w; the
    first ones are a draw without replacement by weight.
    """
    times = []
    for file in sorted((ROOT / SOURCE).rglob("*.py")):
        name, source = file.relative_to(ROOT / SOURCE).as_posix(), file.read_bytes()
        for scope, nodes in _scopes(ast.parse(source).body):
            weight = sum(isinstance(part, ast.stmt) for node in nodes for part in ast.walk(node))
            times.append((_time(f"{seed} {name} {scope}", weight), name, source, scope, nodes))
    faults: list[Fault] = []
    for _, *place in sorted(times, key=lambda row: row[:2]):
        if len(faults) < count:
            faults += _draw_fault(seed, *place)
    return faults


def _time(name: str, rate: float) -> float:
    return -math.log(1 - random.Random(name).random()) / rate


def _scopes(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, list[ast.stmt]]]:
    """Names and statements of functions and methods, and of classes and the module without these."""
    others = []
    for node in body:
        if isinstance(node, FUNCTIONS):
            yield prefix + node.name, [node]
        elif isinstance(node, ast.ClassDef):
            yield from _scopes(node.body, f"{prefix}{node.name}.")
        elif not isinstance(node, ast.Import | ast.ImportFrom):
            others.append(node)
    if others:
        yield prefix.rstrip("."), others


def _draw_fault(
    seed: int, file: str, source: bytes, scope: str, nodes: list[ast.stmt]
) -> list[Fault]:
    """One fault of a scope, if it has any; all kinds of faults have the same weight."""
    look = LOOK if "figures/" in file or file.endswith("draw.py") else set()
    parts = [part for node in nodes for part in _parts(node, look)]
    names = {part.arg for part in parts if isinstance(part, ast.arg)} - {"self", "cls"}
    names |= {ast.unparse(part) for part in parts if isinstance(getattr(part, "ctx", 0), ast.Store)}
    lines = [0, *(match.end() for match in re.finditer(b"\n", source)), len(source)]
    kinds: dict[str, dict[str, Fault]] = defaultdict(dict)
    for kind, old, text in (
        change for part in parts for change in _changes(part, sorted(names), look)
    ):
        start = lines[old.lineno - 1] + old.col_offset
        end = lines[old.end_lineno - 1] + old.end_col_offset
        first, last = lines[old.lineno - 1], lines[old.end_lineno]
        new = source[first:start] + text.encode() + source[end:last]
        key = f"{file} {scope or '-'}: {_difference(source[first:last].decode(), new.decode())}"
        kinds[kind].setdefault(key, Fault(file, scope, old.lineno, key, start, end, text))
    times = {
        fault: _time(f"{seed} {fault.key}", 1 / len(faults))
        for faults in kinds.values()
        for fault in faults.values()
    }
    for fault in sorted(times, key=times.__getitem__):
        with suppress(SyntaxError):
            if ast.dump(ast.parse(planted(source, [fault]))) != ast.dump(ast.parse(source)):
                return [fault]
    return []


def planted(source: bytes, faults: list[Fault]) -> bytes:
    for fault in sorted(faults, key=lambda fault: fault.start, reverse=True):
        source = source[: fault.start] + fault.text.encode() + source[fault.end :]
    return source


def _difference(old: str, new: str, around: int = 40) -> str:
    """Where two texts without their comments differ, with the characters around."""
    old, new = (" ".join(re.sub("  # .*", "", text).split()) for text in (old, new))
    before = len(os.path.commonprefix([old, new]))  # noqa: RUF071 - not of paths
    ends = [text[before:][::-1] for text in (old, new)]
    after = len(os.path.commonprefix(ends))  # noqa: RUF071
    start, end = max(before - around, 0), max(after - around, 0)
    texts = [text[start : len(text) - end] for text in (old, new)]
    return " -> ".join(
        text if len(text) < 160 else f"{text[:100]} … {text[-50:]}" for text in texts
    )


def _parts(node: ast.AST, look: set[str]) -> Iterator[ast.AST]:
    """A node and its parts that are code. Python 3.11 has no positions in an f-string."""
    match node:
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return
        case ast.Call(func=function) if _name(function) in PRINTED | look:
            return
        case ast.keyword(arg=name) if name in WORDS | look:
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Dict(keys=keys) if {getattr(key, "value", "") for key in keys} & look:
            return
    yield node
    for field, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and field not in NO_CODE:
                yield from _parts(part, look)


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def _is_number(operand: ast.expr) -> bool:
    """Whether an operator can be replaced, so that not any call fails."""
    is_text = isinstance(operand, TEXTS) or isinstance(getattr(operand, "value", 0), str)
    return not is_text and not re.search(r"(?i)folder|path|root\b|results$", ast.unparse(operand))


def _changes(node: ast.AST, names: list[str], look: set[str]) -> Iterator[tuple[str, ast.AST, str]]:
    """Kind, part and its new text for every fault in a node itself; `names` are its variables."""

    def edit(kind: str, part: ast.AST = node, **fields) -> tuple[str, ast.AST, str]:
        new = copy.copy(part)
        vars(new).update(fields)
        return kind, part, ast.unparse(new)

    def other(operator: ast.AST) -> ast.AST:
        return getattr(ast, OTHER.get(type(operator).__name__, type(operator).__name__))()

    one = ast.Constant(1)
    match node:
        case ast.Compare(ops=operators):
            for at, operator in enumerate(operators):
                changed = [*operators[:at], other(operator), *operators[at + 1 :]]
                yield edit("comparison", ops=changed)
        case ast.BinOp(left=left, op=operator, right=right):
            if _is_number(left) and _is_number(right):
                yield edit("arithmetic", op=other(operator))
        case ast.BoolOp(op=operator):
            yield edit("and or", op=other(operator))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "condition", test, f"not ({ast.unparse(test)})"
        case ast.comprehension(ifs=[test]):
            yield "condition", test, f"not ({ast.unparse(test)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "condition", node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield edit("constant", value=not value)
        case ast.Constant(value=int(value) | float(value)):
            yield edit("constant", value=value + 1)
            yield edit("constant", value=value - 1 if value >= 1 else value * 10)
        case ast.Slice(lower=lower, upper=upper, step=None):
            yield edit("slice", lower=ast.BinOp(lower, ast.Add(), one) if lower else one)
            minus_one = ast.UnaryOp(ast.USub(), one)
            yield edit("slice", upper=ast.BinOp(upper, ast.Sub(), one) if upper else minus_one)
        case ast.Call(func=function, args=arguments, keywords=keywords):
            for at, keyword in enumerate(keywords):
                if keyword.arg and keyword.arg not in WORDS | look:
                    yield edit("argument", keywords=keywords[:at] + keywords[at + 1 :])
                if keyword.arg in ("dim", "axis"):
                    yield "axis", keyword.value, "1" if ast.unparse(keyword.value) == "0" else "0"
            if len(arguments) == DEFAULTS.get(_name(function)):
                yield edit("argument", args=arguments[:-1])
            if replaced := OTHER.get(_name(function)):
                field = "attr" if isinstance(function, ast.Attribute) else "id"
                yield edit("function", function, **{field: replaced})
        case ast.Return(value=ast.Name()):
            for name in names:
                yield "returned", node, f"return {name}"
        case ast.Return(value=ast.Tuple(elts=values)) if len(values) > 1:
            yield edit("returned", node.value, elts=[*values[1:], values[0]])
        case ast.Expr(value=ast.Call(func=function)) if _name(function) not in PRINTED | look:
            yield "statement", node, "pass"
        case ast.If(body=[ast.Raise()], orelse=[]) | ast.Raise() | ast.AugAssign() | ast.Delete():
            yield "statement", node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Continue() | ast.Break():
            yield "statement", node, "pass"


# --- tests that execute a function ---------------------------------------------------------------

COVERAGE = """[run]
parallel = true
data_file = {folder}/data
include = */src/twoscale/*
context = ${{FAULTS_TEST-}}
patch = fork, _exit
disable_warnings = no-data-collected, module-not-measured, already-imported, trace-changed
"""


def measure(folder: Path, out: Path) -> None:
    """Run each file with tests under coverage, unless it has run already, and write the map.

    The context is the test, also in processes that it starts; in those that several tests share, it
    is their file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder.resolve() / "coveragerc"
    settings.write_text(COVERAGE.format(folder=settings.parent))
    for name in _test_files():
        report = folder / f"{name.replace('/', '+')}.jsonl"
        part = report.with_suffix(".part").resolve()
        if not report.exists():
            part.write_text("")
            command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.faults", name]
            variables = {"FAULTS_TEST": name, "FAULTS_REPORT": str(part)}
            shell = os.environ | variables | {"COVERAGE_PROCESS_START": str(settings)}
            subprocess.run(command, cwd=ROOT, env=shell, check=False)
            part.rename(report)
    seconds: dict[str, float] = defaultdict(float)
    for report in folder.glob("*.jsonl"):
        for test, _, duration in map(json.loads, report.read_text().splitlines()):
            seconds[test] += duration
            seconds[_file_of(test)] += duration
    numbers = {test: number for number, test in enumerate(seconds)}
    functions = {
        f"{file} {scope}": sorted(numbers[test] for test in tests & numbers.keys())
        for (file, scope), tests in _executed(folder).items()
    }
    out.write_text(json.dumps({"seconds": seconds, "functions": functions}))


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _test_files() -> list[str]:
    folders = [ROOT / "tests" / name for name in ("unit", "studies", "workflow")]
    files = [file for folder in folders for file in sorted(folder.rglob("test_*.py"))]
    return [file.relative_to(ROOT).as_posix() for file in files]


def _executed(folder: Path) -> dict[tuple[str, str], set[str]]:
    """(File, function) -> tests, and files with tests, that execute a line of its body."""
    from coverage import CoverageData

    executed: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in folder.glob("data.*"):
        data = CoverageData(str(path))
        data.read()
        for measured in data.measured_files():
            file = measured.rpartition(f"{SOURCE}/")[2]
            scopes = _scope_of_line(ROOT / SOURCE / file)
            for line, contexts in data.contexts_by_lineno(measured).items():
                if line in scopes:
                    executed[file, scopes[line]] |= {name.rpartition("|")[2] for name in contexts}
    return executed


@cache
def _scope_of_line(file: Path) -> dict[int, str]:
    source = file.read_text(encoding="utf-8") if file.suffix == ".py" and file.exists() else ""
    return {
        line: scope
        for scope, (node, *_) in _scopes(ast.parse(source).body)
        if isinstance(node, FUNCTIONS)  # its head, like all else, is executed by the import
        for line in range(node.body[0].lineno, node.end_lineno + 1)
    }


def choose_tests(fault: Fault, seconds: dict, functions: dict, most: float) -> list[str]:
    """Tests, and files with tests, in the order in which they should run, for `most` seconds.

    They execute the function, or else import its module, where no test is known to execute it. Files
    that name the module come first, then those that take less time.
    """
    module = ROOT / SOURCE / fault.file
    dotted = ".".join(module.relative_to(ROOT / "src").with_suffix("").parts)
    names = list(seconds)
    chosen = [names[number] for number in functions.get(f"{fault.file} {fault.scope}", [])]
    chosen = chosen or [name for name in _test_files() if is_touched(ROOT / name, {module})]
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in _test_files()}
    of_file: dict[str, float] = defaultdict(float)
    for test in chosen:
        of_file[_file_of(test)] += seconds.get(test, 30)

    def place(test: str) -> tuple:
        file = _file_of(test)
        return dotted not in texts[file], of_file[file], file, seconds.get(test, 30), test

    ordered = sorted((test for test in chosen if _file_of(test) in texts), key=place)
    ends = list(accumulate(seconds.get(test, 30) for test in ordered))
    return [test for test, end in zip(ordered, ends, strict=True) if end < most] or ordered[:1]


# --- a plugin of pytest in the processes that run the tests ---------------------------------------

MOST_MEMORY = 10 << 30  # bytes of data in a process


def pytest_configure() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, resource.RLIM_INFINITY))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items) -> None:
    """Keep the tests that FAULTS_TESTS names, in its order."""
    names = json.loads(os.environ.get("FAULTS_TESTS", "[]"))
    places: dict[str, int] = dict(zip(names, range(len(names)), strict=True))

    def place(item) -> int | None:
        return places.get(item.nodeid, places.get(_file_of(item.nodeid)))

    if names:
        items[:] = sorted((item for item in items if place(item) is not None), key=place)


def pytest_runtest_protocol(item) -> None:
    _report(item.nodeid, "started")
    if "COVERAGE_PROCESS_START" in os.environ:
        from coverage import Coverage

        if "workflow" not in item.path.parts:
            os.environ["FAULTS_TEST"] = item.nodeid
        Coverage.current().switch_context(item.nodeid)


def pytest_runtest_logreport(report) -> None:
    _report(report.nodeid, report.outcome, report.duration)


def pytest_runtest_logfinish(nodeid) -> None:
    _report(nodeid, "finished")


def pytest_collectreport(report) -> None:
    if report.failed:
        _report(report.nodeid, "failed")


def _report(test: str, outcome: str, seconds: float = 0) -> None:
    with open(os.environ["FAULTS_REPORT"], "a", encoding="utf-8") as log:
        print(json.dumps([test, outcome, round(seconds, 3)]), file=log)


# --- planting -------------------------------------------------------------------------------------


class Checkout:
    """A worktree of HEAD in which faults are planted; `limit` is the time of a test in seconds."""

    def __init__(self, root: Path, limit: float) -> None:
        self.root, self.limit = root, limit
        self.passes: dict[str, bool] = {}  # test -> whether it passes without a fault

    def noticing(self, faults: list[Fault], tests: list[str], stop: bool = True) -> dict[str, str]:
        """Tests that fail with these faults and pass without them -> "failed" or "ended".

        "ended": at the limit, or together with its process. `tests` are the whole suite if empty. With
        `stop` the first such test is enough.
        """
        while True:
            failed = self._run(faults, tests, stop)
            for test in failed.keys() - self.passes.keys():
                self.passes[test] = not self._run([], [test])
                if failed[test] == "ended" and not self.passes[test]:  # none after it has run
                    sys.exit(f"{test}: does not end without a fault, either, in --limit seconds")
            noticing = {test: end for test, end in failed.items() if self.passes[test]}
            tests = [test for test in tests if self.passes.get(test, True)]
            if noticing or not failed or not stop or not tests:
                return noticing

    def _run(self, faults: list[Fault], tests: list[str], stop: bool = True) -> dict[str, str]:
        """Tests that fail or do not end with these faults."""
        report = self.root.with_name("report.jsonl")
        report.write_text("")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.faults", *["-x"] * stop]
        command += ["--continue-on-collection-errors", "-o", f"faulthandler_timeout={self.limit}"]
        command += ["-o", "faulthandler_exit_on_timeout=true", *dict.fromkeys(map(_file_of, tests))]
        shell = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        shell |= {"PYTHONPATH": str(self.root / "src"), "FAULTS_RUN": uuid.uuid4().hex}
        shell |= {"FAULTS_REPORT": str(report), "FAULTS_TESTS": json.dumps(tests)}
        status = None
        with (
            self._planted(faults),
            self.root.with_name("log.txt").open("w") as log,
            suppress(subprocess.TimeoutExpired),
        ):
            options = {"cwd": self.root, "env": shell, "timeout": 20 * self.limit}
            status = subprocess.run(command, stdout=log, stderr=log, **options).returncode
        for process in psutil.process_iter():  # those that a test has started and not ended
            with suppress(psutil.Error):
                if process.environ().get("FAULTS_RUN") == shell["FAULTS_RUN"]:
                    process.kill()
        failed: dict[str, str] = {}
        for test, outcome, _ in map(json.loads, report.read_text().splitlines()):
            if outcome in ("started", "failed"):
                failed[test] = "ended" if outcome == "started" else "failed"
            elif outcome == "finished" and failed.get(test) == "ended":
                del failed[test]
        if status not in (0, 5) and not failed:  # not even the collection has ended
            return {tests[0] if tests else "tests/unit/test_imports.py": "ended"}
        return failed

    @contextmanager
    def _planted(self, faults: list[Fault]) -> Iterator[None]:
        originals = {fault.file: self._path(fault.file).read_bytes() for fault in faults}
        for file, source in originals.items():
            here = [fault for fault in faults if fault.file == file]
            self._path(file).write_bytes(planted(source, here))
        yield
        for file, source in originals.items():
            self._path(file).write_bytes(source)

    def _path(self, file: str) -> Path:
        return self.root / SOURCE / file


def run(faults: list[Fault], out: Path, map_file: Path | None, most: float, limit: float) -> None:
    """Write a line for each fault: noticed (by which test) or survived; "passed" is not the end."""
    git = ["git", "-C", str(ROOT)]
    if subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src", "tests"]).returncode:
        sys.exit("src, tests: found uncommitted changes, expected none: faults are planted in HEAD")
    content = json.loads(map_file.read_text()) if map_file else {"seconds": {}, "functions": {}}
    rows = read(out)

    def write(fault: Fault, outcome: str, noticing: dict[str, str], begun: float) -> None:
        rows[fault.key] = {
            **{"key": fault.key, "line": fault.line, "outcome": outcome},
            **{"noticed_by": noticing, "seconds": round(time.monotonic() - begun)},
        }
        with out.open("a", encoding="utf-8") as file:
            print(json.dumps(rows[fault.key], ensure_ascii=False), file=file)
        print(f"{outcome}: {fault.key} {list(noticing)}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "checkout")
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", root], check=True)
        try:
            checkout = Checkout(root, limit)
            for fault in faults:
                if fault.key not in rows:
                    begun = time.monotonic()
                    tests = choose_tests(fault, **content, most=most)
                    noticing = checkout.noticing([fault], tests)
                    write(fault, "noticed" if noticing else "passed", noticing, begun)
            left = [fault for fault in faults if rows[fault.key]["outcome"] == "passed"]
            while left:
                begun = time.monotonic()
                failing = checkout.noticing(left, [], stop=False)
                alone = [
                    checkout.noticing([fault], list(failing)) if failing else {} for fault in left
                ]
                # a test that has ended its process keeps all faults from the tests that follow it
                is_last = "ended" not in failing.values() or not any(alone)
                for fault, noticing in zip(left, alone, strict=True):
                    if noticing or is_last:
                        write(fault, "noticed" if noticing else "survived", noticing, begun)
                left = [fault for fault in left if rows[fault.key]["outcome"] == "passed"]
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", root], check=True)


def read(out: Path) -> dict[str, dict]:
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.faults", description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=["list", "map", "run"])
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--count", type=int, default=80, help="of faults with the equivalent ones")
    parser.add_argument("--map", type=Path, help="JSON of the tests that execute each function")
    parser.add_argument("--coverage", type=Path, help="folder for the measurement, which is kept")
    parser.add_argument("--out", type=Path, help="JSON lines of the results")
    parser.add_argument(
        "--seconds", type=float, default=300, help="tests of a fault alone (%(default)s)"
    )
    parser.add_argument(
        "--limit", type=float, default=600, help="seconds of one test (%(default)s)"
    )
    arguments = parser.parse_args()
    if arguments.command == "map":
        return measure(arguments.coverage, arguments.map)
    listed = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    reasons = dict(re.findall(r"^(\S.*)\n +(.+)$", listed, re.MULTILINE))  # of keys
    faults = draw(arguments.seed, arguments.count)
    counted = [fault for fault in faults if fault.key not in reasons]
    if arguments.command == "list":
        for fault in faults:
            name, _, change = fault.key.partition(" ")
            print(f"{SOURCE / name}:{fault.line} {change}")
            if fault.key in reasons:
                print(f"    equivalent: {reasons[fault.key]}")
    if arguments.command == "run":
        run(counted, arguments.out, arguments.map, arguments.seconds, arguments.limit)
        rows = read(arguments.out)
        noticed = sum(rows[fault.key]["outcome"] == "noticed" for fault in counted)
        print(
            f"{noticed} of {len(counted)} faults noticed; {len(faults) - len(counted)} equivalent"
        )
    return None


if __name__ == "__main__":
    main()

"""The sizes that this project keeps small, of this checkout or of another one.

    python -m tests.size [CHECKOUT]

The five figures and the claims stand on the modules that their jobs import, directly or not, also
inside a function.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

# Scripts of the jobs that the figures and claims stand on.
SCRIPTS = (
    "prepare_text train_tokenizer fetch_gpt2 tokenize_text join_tokens init_model train_segment"
    " measure call draw"
)
FIGURES = {f"figures.fig{number}" for number in range(1, 6)}
CALLED = re.compile(r'"twoscale\.([\w.]+)\.\w+"')  # the module of a function that a rule calls


class Checkout:
    """The modules below src/twoscale by dotted name, and which imports which."""

    def __init__(self, root: Path) -> None:
        self.root, source = root, root / "src" / "twoscale"
        names = {
            ".".join(path.relative_to(source).with_suffix("").parts): path
            for path in source.rglob("*.py")
        }
        self.files = {
            name.removesuffix("__init__").rstrip("."): path for name, path in names.items()
        }
        self.arrows = {name: self.imports(path) - {name} for name, path in self.files.items()}
        # also those under TYPE_CHECKING: who reads a file has to know them too
        self.named = {
            name: self.imports(path, types=True) - {name} for name, path in self.files.items()
        }

    def imports(self, path: Path, types: bool = False) -> set[str]:
        """Modules of the library that a file imports anywhere, also in a function; with `types` for
        annotations too.
        """
        found = set()
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if not types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif (
                isinstance(node, ast.ImportFrom) and node.module
            ):  # imports a module, or some of a package
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        return {
            name.removeprefix("twoscale.") for name in found if name.startswith("twoscale.")
        } & self.files.keys()

    def upward(self) -> list[tuple[str, str]]:
        """Imports from a floor above the module's own."""
        floors = (
            (self.root / "tests/unit/test_imports.py")
            .read_text()
            .partition("\nFLOORS = ")[2]
            .partition("\n]\n")
        )
        level = {
            name: level
            for level, names in enumerate(ast.literal_eval(floors[0] + "]"))
            for name in names
        }
        pairs = [(name, target) for name in self.files if name for target in self.named[name]]
        return [(a, b) for a, b in pairs if level[b.partition(".")[0]] > level[a.partition(".")[0]]]

    def circles(self) -> set[str]:
        """Modules in circles of imports. A package may import its own modules, to offer their
        names.
        """
        left = {
            name: {t for t in targets if not name.startswith(f"{t}.")}
            for name, targets in self.named.items()
        }
        # first drop those that import nothing that is left, again and again, then those that
        # nothing left imports
        while free := {name for name, targets in left.items() if not targets}:
            left = {name: targets - free for name, targets in left.items() if name not in free}
        while free := left.keys() - set().union(*left.values()):
            left = {name: targets for name, targets in left.items() if name not in free}
        return set(left)

    def closure(self, planning: bool) -> set[str]:
        stages = [path for path in self.root.glob("workflow/rules/*.smk") if path.stem != "report"]
        unread = FIGURES.union(*(CALLED.findall(path.read_text()) for path in stages))
        unread = unread.union(
            *(self.imports(p) for p in self.root.glob("scripts/*.py") if p.stem in SCRIPTS.split())
        )
        if planning:
            unread.add("workflow.snakefile")
        found = set(unread)
        while unread:
            unread |= self.arrows[unread.pop()] - found
            found |= unread
        return found

    def lines(self, modules: set[str] | dict[str, Path]) -> int:
        return sum(len(self.files[name].read_text().splitlines()) for name in modules)

    def tracked(self, pattern: str) -> str:
        names = subprocess.check_output(
            ["git", "ls-files", pattern], cwd=self.root, text=True
        ).splitlines()
        return "".join(
            path.read_text() for path in map(self.root.joinpath, names) if path.is_file()
        )


def main() -> None:
    checkout = Checkout(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
    print(f"source: {checkout.lines(checkout.files)} lines in {len(checkout.files)} modules")
    print(f"tests: {len(checkout.tracked('tests/*.py').splitlines())} lines")
    print(
        *(f"{name}: {len(checkout.tracked(name).split())} words" for name in ("*.md", "README.md")),
        sep="\n",
    )
    for planning, name in (
        (False, "figures and claims"),
        (True, "figures and claims with planning"),
    ):
        print(
            f"{name}: {checkout.lines(inside := checkout.closure(planning))} lines in"
            f" {len(inside)} modules"
        )
    print(f"rooms: {len({name.partition('.')[0] for name in checkout.files})}", end="; ")
    print(
        f"imports upward: {len(checkout.upward())}; modules in circles of imports:"
        f" {len(checkout.circles())}"
    )


if __name__ == "__main__":
    main()

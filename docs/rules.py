"""Write docs/rules.svg, the rules of the figures and verdicts and what each needs, from `snakemake
--rulegraph`.

python -m docs.rules
"""

import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from xml.sax.saxutils import escape

from twoscale.config import PROJECT

WIDTH, HEIGHT, COLUMN, ROW = 138, 22, 168, 40  # of a box, and from one box to the next, in pixels
STYLE = (
    "rect{fill:#fff;stroke:#1f5fae}text{font:11px sans-serif;text-anchor:middle;fill:#222}"
    "path{fill:none;stroke:#999;marker-end:url(#end)}"
)
HEAD = (
    '<marker id="end" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6"'
    ' orient="auto">'
)
Needs = Mapping[str, Collection[str]]  # rule -> the rules whose files it reads


def needs_of(dot: str) -> dict[str, set[str]]:
    """The edges of a graph in Graphviz's language, without loops and without those that a longer
    path implies.
    """
    names = dict(re.findall(r'(\d+)\[label = "(\w+)"', dot))
    needs: dict[str, set[str]] = {name: set() for name in names.values()}
    for source, target in re.findall(r"(\d+) -> (\d+)", dot):
        if source != target:
            needs[names[target]].add(names[source])

    def before(rule: str) -> set[str]:
        return needs[rule].union(*map(before, needs[rule]))

    return {rule: direct - set().union(*map(before, direct)) for rule, direct in needs.items()}


def rows_of(needs: Needs) -> list[list[str]]:
    """The rules by the length of the longest path to them; in a row they have the order of what
    they need.
    """
    place: dict[str, float] = {}
    rows: list[list[str]] = []
    while len(place) < len(needs):
        ready = [rule for rule in needs if rule not in place and place.keys() >= set(needs[rule])]
        centre = {
            rule: sum(place[name] for name in needs[rule]) / max(1, len(needs[rule]))
            for rule in ready
        }
        rows.append(sorted(ready, key=lambda rule: (centre[rule], rule)))
        place |= {rule: number - (len(ready) - 1) / 2 for number, rule in enumerate(rows[-1])}
    return rows


def svg(needs: Needs) -> str:
    rows = rows_of(needs)
    width, height = COLUMN * max(map(len, rows)), ROW * len(rows)
    at = {
        rule: (width / 2 + COLUMN * (number - (len(row) - 1) / 2), ROW * (depth + 0.5))
        for depth, row in enumerate(rows)
        for number, rule in enumerate(row)
    }
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
    ]
    lines.append(f'<style>{STYLE}</style><defs>{HEAD}<path d="M0 0 6 3 0 6"/></marker></defs>')
    for rule, (x, y) in at.items():
        for name in sorted(needs[rule]):
            x0, y0 = at[name][0], at[name][1] + HEIGHT / 2
            middle = (y0 + y - HEIGHT / 2) / 2
            lines.append(
                f'<path d="M{x0:g} {y0:g}C{x0:g} {middle:g} {x:g} {middle:g} {x:g}'
                f' {y - HEIGHT / 2:g}"/>'
            )
    for rule, (x, y) in at.items():
        box = (
            f'x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="5"'
        )
        lines.append(f'<rect {box}/><text x="{x:g}" y="{y + 4:g}">{escape(rule)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def drawn() -> str:
    """The picture, of a folder that has no results."""
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--rulegraph",
        "--directory",
        str(PROJECT / ".test"),
        "--forceall",
    ]
    done = subprocess.run(
        [*command, "all"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    return svg(needs_of(done.stdout))


if __name__ == "__main__":
    (PROJECT / "docs/rules.svg").write_text(drawn(), encoding="utf-8")
    print("docs/rules.svg")

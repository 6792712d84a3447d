"""Texts for the tests of tokenizers and token shards."""

import random
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

CORPUS = [
    "The state of a loop is the state before it, and one step more.",
    "def step(state, injected):\n    return state + injected  # 12 times\n",
    "Der Zustand läuft im Kreis; 状態は回る; состояние ходит по кругу 😀",
    "  \n\n\t spaces   and\r\n line ends \u00a0\u2003 of every kind  ",
    "it's we'll they've I'd 1234567890 !!! ???",
] * 4


def strange_texts(count: int) -> Iterator[str]:
    """Random texts: letters of several scripts, spaces of every kind, digits, controls."""
    draw = random.Random(0)
    pieces = [
        *"abest  \n\t\r'.,_-0189",
        "'ll",
        "é",
        "ß",
        "中",
        "я",
        "😀",
        "\u0301",
        "\u00a0",
        "\u2003",
        "\x00",
        "\x85",
    ]
    for _ in range(count):
        yield "".join(draw.choice(pieces) for _ in range(draw.randrange(40)))
        yield "".join(
            chr(draw.choice([draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)]))
            for _ in range(5)
        )

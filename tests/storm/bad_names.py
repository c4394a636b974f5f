"""Names of files that a terminal, a spreadsheet, a shell or a file system could trip over."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path

from tally import Ended

PIECES = [
    *("=cmd", "+1+1", "-1", "@x", "\x1b[31m", "\x1b]0;title\x07", "\x9b31m", "\n", "\r", "\t", "  ", " "),
    *("'", '"', "$(id)", "`id`", ";", ",", "%s", "{x}", "[red]", "<b>", "\\", "*", "#", "~"),
    *("\u202e", "\u2028", "\u3000", "\udcff", "ä", "日本", "x" * 180),
]


def bad_name(dice: random.Random, number: int) -> str:
    """A name that no other has, made of such pieces."""
    name = "".join(dice.choice(PIECES) for _ in range(dice.randint(1, 3)))
    while len(f"{name}{number}.png".encode(errors="surrogateescape")) > 255:
        name = name[:-1]
    return f"{name}{number}.png"


def escaped(text: str) -> str | None:
    """What in a text would steer a terminal; None if nothing would."""
    found = [each for each in text if each != "\n" and not each.isprintable() and each != "\u3000"]
    return f"{found[0]!r} reaches the terminal" if found else None


def formula(text: str) -> str | None:
    """The cell of a CSV file that a spreadsheet would compute; None if there is none."""
    cells = [row[0] for row in csv.reader(io.StringIO(text)) if row]
    found = [cell for cell in cells if cell.startswith(tuple("=+-@\t\r"))]
    return f"{found[0]!r} is a formula" if found else None


def scores_in(ended: Ended, out: Path | None, *, as_json: bool) -> list[float]:
    """The scores that a command printed or wrote."""
    text = out.read_text() if out else ended.out
    if as_json:
        return [row["score"] for row in json.loads(text)]
    return [float(row["score"]) for row in csv.DictReader(io.StringIO(text))]

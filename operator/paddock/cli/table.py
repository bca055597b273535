"""Tables that fit: aligned columns without a box, cut to a terminal's width, whole when piped."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from paddock.cli.words import NOTHING, clean

GAP = 2
PIPED_GAP = 3
ELLIPSIS = "\u2026"


class Cell(NamedTuple):
    """Text and its rich style."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Column:
    """One column."""

    title: str
    right: bool = False
    least: int = 0
    """Width that it may be cut to in a narrow terminal; 0: never cut."""
    ample: int = 0
    """Width below which it is cut only after every column with a higher `drop` than 1 is left out."""
    drop: int = 0
    """Order in which columns are left out when cutting is not enough: the highest first; 0: never."""
    quiet: str | None = None
    """When every row has this text the column is left out before anything is cut."""
    wrap: bool = False
    """The last column may go on in further lines, instead of being cut; `least` is the least that it is given."""


Row = Sequence[Cell | str]


def render(columns: Sequence[Column], rows: Sequence[Row], width: int | None) -> list[Text]:
    """Give the header line and the rows. Without a width (a pipe) nothing is cut, and an empty cell is a dash."""
    cells = [[_cell(cell) for cell in row] for row in rows]
    chosen = list(range(len(columns)))
    widths = [
        max([cell_len(column.title), *(cell_len(row[n].text) for row in cells)]) for n, column in enumerate(columns)
    ]
    gap = PIPED_GAP if width is None else GAP
    if width is not None:
        chosen = _fitting(columns, cells, widths, width)
        _cut(columns, chosen, widths, width)
        widths[chosen[-1]] = max(1, widths[chosen[-1]] - max(0, _total(chosen, widths) - width))
    shown = [columns[n] for n in chosen]
    sizes = [widths[n] for n in chosen]
    lines = [_line([Cell(column.title, "bold") for column in shown], shown, sizes, gap)]
    for row in cells:
        parts = _parts([row[n] for n in chosen], shown, sizes)
        lines += [_line(part, shown, sizes, gap) for part in parts]
    if width is not None:
        for line in lines:
            line.truncate(width, overflow="ellipsis")
    return lines


def _parts(row: list[Cell], columns: Sequence[Column], sizes: Sequence[int]) -> list[list[Cell]]:
    """Give a row, and the further lines of its last cell where that one may go on."""
    last, room = row[-1], sizes[-1]
    if not columns[-1].wrap or cell_len(last.text) <= room:
        return [row]
    first, *more = wrap(last.text, room)
    rest = [[*[Cell("")] * (len(row) - 1), Cell(text, last.style)] for text in more]
    return [[*row[:-1], Cell(first, last.style)], *rest]


def _cell(cell: Cell | str) -> Cell:
    found = Cell(cell) if isinstance(cell, str) else cell
    return Cell(clean(found.text) or NOTHING, found.style if found.text else "dim")


def _total(chosen: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[n] for n in chosen) + GAP * (len(chosen) - 1)


def _fitting(
    columns: Sequence[Column], cells: Sequence[Sequence[Cell]], widths: Sequence[int], width: int
) -> list[int]:
    """Choose the columns that can be made to fit."""
    chosen = list(range(len(columns)))
    for n, column in enumerate(columns):
        if _total(chosen, widths) <= width:
            return chosen
        if column.quiet is not None and all(row[n].text == column.quiet for row in cells):
            chosen.remove(n)
    for above, ample in ((1, True), (0, False)):
        least = [_least(column, widths[n], ample=ample) for n, column in enumerate(columns)]
        while _total(chosen, least) > width:
            droppable = [n for n in chosen if columns[n].drop > above]
            if not droppable:
                break
            chosen.remove(max(droppable, key=lambda n: columns[n].drop))
    return chosen


def _least(column: Column, width: int, *, ample: bool) -> int:
    """Give the width that a column may be cut to."""
    if not column.least:
        return width
    return min(width, max(column.ample if ample else column.least, column.least, cell_len(column.title)))


def _cut(columns: Sequence[Column], chosen: Sequence[int], widths: list[int], width: int) -> None:
    """Take from the widest column that may be cut, until the line fits or nothing may."""
    while _total(chosen, widths) > width:
        able = [n for n in chosen if columns[n].least and widths[n] > max(columns[n].least, cell_len(columns[n].title))]
        if not able:
            return
        widths[max(able, key=lambda n: widths[n] - columns[n].least)] -= 1


def _line(cells: Sequence[Cell], columns: Sequence[Column], widths: Sequence[int], gap: int) -> Text:
    line = Text(no_wrap=True)
    for number, (cell, column, size) in enumerate(zip(cells, columns, widths, strict=True)):
        text = cell.text
        if cell_len(text) > size:
            text = set_cell_size(text, size - 1).rstrip() + ELLIPSIS
        room = " " * (size - cell_len(text))
        line.append(room if column.right else "")
        line.append(text, style=cell.style)
        last = number == len(cells) - 1
        line.append("" if column.right or last else room)
        line.append("" if last else " " * gap)
    line.rstrip()
    return line

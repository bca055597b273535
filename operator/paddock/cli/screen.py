"""Where output goes: coloured and cut to width in a terminal, plain and whole in a pipe; JSON and YAML as they are."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from paddock.cli.output import Output
from paddock.cli.table import Column, Row, render

NARROWEST = 8
"""Columns that a paragraph is given in however narrow a terminal."""


@dataclass(frozen=True)
class Screen:
    """Standard output."""

    console: Console

    @classmethod
    def of_process(cls) -> "Screen":
        """Give the screen of this process; NO_COLOR and TERM=dumb are honoured."""
        return cls(Console(highlight=False, markup=False, emoji=False))

    @property
    def terminal(self) -> bool:
        """Whether a person looks at it."""
        return self.console.is_terminal

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None for a pipe."""
        return self.console.width if self.terminal else None

    def line(self, text: str | Text = "", label: str | Text = "") -> None:
        """Print one paragraph, wrapped between words in a terminal only; further lines stand below the first word."""
        value, head = _text(text), _text(label)
        lines = [value]
        if self.terminal:
            lines = list(value.wrap(self.console, max(NARROWEST, self.console.width - head.cell_len)))
        for number, one in enumerate(lines):
            one.rstrip()
            before = head if number == 0 else Text(" " * head.cell_len)
            self.console.print(Text.assemble(before, one), soft_wrap=True)

    def raw(self, text: str) -> None:
        """Print text as it is, without a line end of its own."""
        self.console.file.write(text)
        self.console.file.flush()

    def table(self, columns: Sequence[Column], rows: Sequence[Row], *, whole: bool = False) -> None:
        """Print a table; `whole` cuts nothing even in a narrow terminal."""
        for line in render(columns, rows, None if whole else self.width):
            self.console.print(line, soft_wrap=True)

    def data(self, value: object, output: Output) -> None:
        """Print a value as JSON or YAML."""
        if output is Output.YAML:
            import yaml  # noqa: PLC0415 start-up time

            self.raw(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110))
        else:
            self.raw(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _text(text: str | Text) -> Text:
    return text if isinstance(text, Text) else Text(text)

"""What of a file is safely on the disk: blocks, noted in a journal beside the data after they were brought there."""

import json
import os
from pathlib import Path
from typing import Final, Self

BLOCK: Final = 4 * 1024 * 1024
"""Bytes of a block, the unit in which a killed fetch goes on."""


class Journal:
    """The blocks of one file, in memory and in the journal; one process writes it, several threads ask it."""

    def __init__(self, path: Path, identity: str, size: int) -> None:
        self._path = path
        self._head = json.dumps({"identity": identity, "size": size, "block": BLOCK})
        self.size = size
        self.count = -(-size // BLOCK)
        self.done = bytearray(self.count)
        """1 for each block that is here."""
        self._noted = bytearray(self.count)
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Read what an earlier process noted, where it was of the same content. Raises OSError."""
        try:
            lines = self._path.read_text(errors="replace").split("\n")
        except FileNotFoundError:
            lines = []
        fitting = bool(lines) and lines[0] == self._head
        if fitting:
            self._load(lines[1:-1])  # the last line is empty, or was cut off
        mode = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (0 if fitting else os.O_TRUNC)
        self._descriptor = os.open(self._path, mode, 0o600)
        if not fitting:
            self._write(self._head + "\n")
        elif lines[-1]:
            self._write("\n")  # ends a line that was cut off
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def block_bytes(self, block: int) -> int:
        """Bytes of a block; the last one may be shorter."""
        return min(BLOCK, self.size - block * BLOCK)

    @property
    def bytes_done(self) -> int:
        """Bytes that are here."""
        whole = self.done.count(1)
        short = self.count and self.done[-1]
        return whole * BLOCK - (BLOCK - self.block_bytes(self.count - 1) if short else 0)

    def note(self, data: int) -> None:
        """Bring the data to the disk, then note which blocks it holds. Raises OSError."""
        done = bytes(self.done)
        if done == self._noted:
            return
        os.fdatasync(data)
        fresh = [str(block) for block in range(self.count) if done[block] and not self._noted[block]]
        self._write("\n".join(fresh) + "\n")
        os.fdatasync(self._descriptor)
        self._noted[:] = done

    def _load(self, lines: list[str]) -> None:
        for line in lines:
            if line.isdecimal() and len(line) < 10 and int(line) < self.count:  # noqa: PLR2004 digits
                self.done[int(line)] = self._noted[int(line)] = 1

    def _write(self, text: str) -> None:
        raw = memoryview(text.encode())
        while raw:
            raw = raw[os.write(self._descriptor, raw) :]

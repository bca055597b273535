"""A process that has memory of a pretend card and belongs to nobody: `python foreign.py FOLDER PCI BYTES`.

Holds the lock on its account as the pretend backend does (tests/pretend/accounts.c), until it is ended.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def hold(folder: Path, pci: str, size: int) -> None:
    """Hold memory for ever."""
    file = folder / f"{os.getpid()}-foreign"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    os.pwrite(descriptor, f"{pci} {size}\n".encode(), 0)
    signal.pause()


@contextmanager
def foreign_process(
    folder: Path, pci: str, size: int, wrapper: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Run such a process meanwhile; gives it once it holds the memory."""
    command = [*wrapper, sys.executable, __file__, str(folder), pci, str(size)]
    before = set(folder.iterdir())
    with subprocess.Popen(command) as process:
        try:
            end = time.monotonic() + 10
            while not any(file.stat().st_size for file in set(folder.iterdir()) - before):
                assert time.monotonic() < end, "the foreign process holds nothing"
                time.sleep(0.02)
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    hold(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))

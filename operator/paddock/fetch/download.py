"""One file from its source into a partial file: parallel ranges, resumed after a kill, hashed as they arrive."""

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from paddock.fetch.cache import disk_fault
from paddock.fetch.failures import FetchError
from paddock.fetch.journal import BLOCK, Journal
from paddock.fetch.remote import RemoteFile, Transport
from paddock.fetch.settings import Settings
from paddock.fetch.writeback import begin_writing

SPAN: Final = 8
"""Blocks that one request asks for at most."""

_PIECE: Final = 128 * 1024
"""Bytes that a thread holds: few enough to be still in the processor's cache when they are written."""
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_MOST_REFUSALS: Final = 50
"""Failures one after the other, without a byte, after which a fetch gives up even when the server asks to wait."""
_TICK: Final = 1.0
"""Seconds between two notes in the journal."""

Report = Callable[[int, int, str | None], None]
"""Called about once a second with the bytes that are here, those that came in this run, and what is waited for."""


def span(taken: int, missing: int, workers: int) -> int:
    """Give the blocks of the next request.

    Few at first, so that the hash, which goes from the beginning, need not wait for a long one; and few at last, so
    that all workers end at about the same time.
    """
    return max(1, min(SPAN, taken // workers, missing // workers))


class Download:
    """Fetches the blocks that are missing; everything here is shared by its threads, under one condition."""

    def __init__(self, file: RemoteFile, transport: Transport, settings: Settings) -> None:
        self._file, self._transport, self._settings = file, transport, settings
        self._change = threading.Condition()
        self._taken = bytearray()
        self._workers = 1
        self._failure: Exception | None = None
        self._digest = ""
        self._fetched = 0
        self._refusals = 0
        self._last_byte = time.monotonic()
        self._resume_at = 0.0
        self._waiting: str | None = None
        self._journal: Journal
        self._data = -1

    def run(self, place: Path, report: Report) -> str:
        """Fetch into place.data, noting in place.journal; gives sha256:HEX of the whole. Raises FetchError.

        After an error both files stay, for the next try. Lost connections are tried again here, unless the server gives
        whole files only: then the next try starts afresh.
        """
        data = place.with_suffix(".data")
        journal_path = place.with_suffix(".journal")
        if not self._file.resumable or not data.exists():
            journal_path.unlink(missing_ok=True)
        try:
            self._data = os.open(data, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(self._data, self._file.size)
                with Journal(journal_path, self._file.identity, self._file.size) as self._journal:
                    self._taken = bytearray(self._journal.done)
                    self._run(report)
                os.fsync(self._data)
            finally:
                os.close(self._data)
        except OSError as error:
            raise disk_fault(error, place.parent) from None
        return self._digest

    @property
    def fetched(self) -> int:
        """Bytes that came in this run."""
        return self._fetched

    def _run(self, report: Report) -> None:
        workers = self._settings.connections if self._file.ranges else 1
        self._workers = workers = max(1, min(workers, self._journal.count))
        threads = [threading.Thread(target=self._guarded, args=(self._work,), daemon=True) for _ in range(workers)]
        threads.append(threading.Thread(target=self._guarded, args=(self._hash,), daemon=True))
        for thread in threads:
            thread.start()
        try:
            while not self._digest and self._failure is None:
                with self._change:
                    self._change.wait_for(lambda: bool(self._digest) or self._failure is not None, timeout=_TICK)
                if self._file.resumable and self._failure is None:
                    self._journal.note(self._data)
                report(self._journal.bytes_done, self._fetched, self._waiting)
        except BaseException as error:
            self._stop(error if isinstance(error, Exception) else InterruptedError())
            raise
        finally:
            for thread in threads:
                thread.join()
        if self._failure is not None:
            if self._file.resumable and isinstance(self._failure, FetchError):
                self._journal.note(self._data)
            raise self._failure

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        with self._change:
            if self._failure is None:
                self._failure = error
            self._change.notify_all()

    # getting

    def _work(self) -> None:
        buffer = memoryview(bytearray(_PIECE))
        while (span := self._take()) is not None:
            first, last = span
            try:
                self._fetch(first, last, buffer)
            except FetchError as error:
                self._give_back(first, last)
                if not error.transient or error.failure != "Unreachable" or not self._file.ranges:
                    raise
                self._pause(error)

    def _take(self) -> tuple[int, int] | None:
        """Give the next blocks that are missing, first and last + 1; None when there is nothing to do any more."""
        with self._change:
            while self._failure is None:
                first = self._taken.find(0)
                if first >= 0:
                    most = (
                        first + span(self._taken.count(1), self._taken.count(0), self._workers)
                        if self._file.ranges
                        else self._journal.count
                    )
                    end = self._taken.find(1, first, most)
                    last = end if end >= 0 else min(most, self._journal.count)
                    self._taken[first:last] = bytes([1]) * (last - first)
                    return first, last
                if 0 not in self._journal.done:
                    return None
                self._change.wait()  # for what another thread may give back
            return None

    def _give_back(self, first: int, last: int) -> None:
        with self._change:
            self._taken[first:last] = self._journal.done[first:last]
            self._change.notify_all()

    def _fetch(self, first: int, last: int, buffer: memoryview) -> None:
        """Get blocks by one request."""
        position, end = first * BLOCK, min(last * BLOCK, self._file.size)
        block = first
        with self._transport.body(self._file, position, end - position) as body:
            while position < end and (count := body.readinto(buffer)):
                self._write(buffer[:count], position)
                position += count
                ready = block
                while ready < last and position >= min((ready + 1) * BLOCK, self._file.size):
                    ready += 1
                self._arrived(count, block, ready)
                if ready > block:
                    begin_writing(self._data, block * BLOCK, (ready - block) * BLOCK)
                block = ready
                if self._failure is not None:
                    return

    def _write(self, piece: memoryview, position: int) -> None:
        while piece:
            written = os.pwrite(self._data, piece, position)
            piece, position = piece[written:], position + written

    def _arrived(self, count: int, block: int, ready: int) -> None:
        with self._change:
            self._fetched += count
            self._last_byte = time.monotonic()
            self._refusals = 0
            self._waiting = None
            if ready > block:
                self._journal.done[block:ready] = bytes([1]) * (ready - block)
                self._change.notify_all()

    def _pause(self, error: FetchError) -> None:
        """Wait before the next try: longer each time, as long as the server asks; raises when it took too long."""
        with self._change:
            self._refusals += 1
            now = time.monotonic()
            pause = min(_FIRST_PAUSE * 2 ** min(self._refusals - 1, 10), _LONGEST_PAUSE)
            pause *= random.uniform(0.75, 1.25)  # noqa: S311 - spreads tries
            if error.retry_after is not None:
                pause = max(error.retry_after, 0.05)
                self._last_byte = max(self._last_byte, now + pause)
            self._resume_at = max(self._resume_at, now + pause)
            self._waiting = error.message
            if now - self._last_byte > self._settings.patience or self._refusals > _MOST_REFUSALS:
                raise error
            while self._failure is None and (left := self._resume_at - time.monotonic()) > 0:
                self._change.wait(left)

    # hashing

    def _hash(self) -> None:
        """Follow what has arrived without a gap, and hash it from the file: what counts is what was written."""
        total = hashlib.sha256()
        buffer = memoryview(bytearray(_PIECE))
        position = 0
        while position < self._file.size:
            end = self._ready_until(position)
            if end is None:
                return
            while position < end:
                count = os.preadv(self._data, [buffer[: end - position]], position)
                if not count:
                    raise FetchError("Corrupt", f"the partial file of {self._file.name} was cut off by somebody else")
                total.update(buffer[:count])
                position += count
        with self._change:
            self._digest = "sha256:" + total.hexdigest()
            self._change.notify_all()

    def _ready_until(self, position: int) -> int | None:
        """Wait for more bytes; gives up to where there is no gap, None when the fetch has failed."""
        with self._change:
            while self._failure is None:
                gap = self._journal.done.find(0)
                end = self._file.size if gap < 0 else gap * BLOCK
                if end > position:
                    return end
                self._change.wait()
            return None

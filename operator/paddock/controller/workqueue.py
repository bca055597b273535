"""A queue of keys that holds each key once, with delays and exponential back-off.

A key that is being worked on and is added again is worked on once more afterwards, never by two workers at once.
"""

import asyncio
import heapq
import random
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
FIRST_DELAY = 0.05
LONGEST_DELAY = 60.0


class WorkQueue(Generic[Key]):
    """First in, first out; single event loop only."""

    def __init__(self) -> None:
        self._waiting: dict[Key, None] = {}
        self._active: set[Key] = set()
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._due: dict[Key, float] = {}
        self._timers: list[tuple[float, int, Key]] = []
        self._serial = 0
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._active)

    @property
    def waiting(self) -> int:
        """Number of keys that no worker has taken yet."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is worked on; delayed keys do not count."""
        return not self._waiting and not self._active

    def add(self, key: Key) -> None:
        """Have a key looked at soon."""
        self._due.pop(key, None)
        if key in self._active:
            self._again.add(key)
        else:
            self._waiting[key] = None
            self._wake.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Have a key looked at after some seconds, or earlier if it was due or is added earlier."""
        if key in self._waiting:
            return
        when = asyncio.get_running_loop().time() + seconds
        if key in self._due and self._due[key] <= when:
            return
        self._due[key] = when
        self._serial += 1
        heapq.heappush(self._timers, (when, self._serial, key))
        self._wake.set()

    def retry(self, key: Key) -> float:
        """Have a key looked at again after a failure; gives the delay in seconds, with jitter, growing to a minute."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay: float = min(LONGEST_DELAY, FIRST_DELAY * 2.0**failures) * random.uniform(0.8, 1.2)  # noqa: S311 no secret
        self.add_after(key, delay)
        return delay

    def forget(self, key: Key) -> None:
        """Note that a key succeeded: its next failure starts with the shortest delay again."""
        self._failures.pop(key, None)

    async def get(self) -> Key:
        """Wait for the next key; `done` must follow."""
        while True:
            self._promote()
            if self._waiting:
                key = next(iter(self._waiting))
                del self._waiting[key]
                self._active.add(key)
                return key
            self._wake.clear()
            timeout = None
            if self._timers:
                timeout = max(0.0, self._timers[0][0] - asyncio.get_running_loop().time())
            try:
                await asyncio.wait_for(self._wake.wait(), timeout)
            except TimeoutError:
                continue

    def done(self, key: Key) -> None:
        """Work on the key has ended."""
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _promote(self) -> None:
        """Move keys whose time has come."""
        now = asyncio.get_running_loop().time()
        while self._timers and self._timers[0][0] <= now:
            when, _, key = heapq.heappop(self._timers)
            if self._due.get(key) == when:
                self.add(key)

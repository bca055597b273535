"""Where the newest report hangs: the lister pins it there, the server's long polls wait for the next one."""

import asyncio
import hashlib
import json
from dataclasses import dataclass

from paddock.api.report import NodeReport


@dataclass(frozen=True, slots=True)
class Posting:
    """A report as it is sent."""

    report: NodeReport
    body: bytes
    etag: str
    """Hash of the body, in the quotes of the header."""


class Board:
    """Holds one report; belongs to one event loop."""

    def __init__(self) -> None:
        self.posting: Posting | None = None
        self.closed = False
        self._changed = asyncio.Event()

    def post(self, report: NodeReport) -> bool:
        """Replace the report and wake all who wait; False when it says the same as the last one."""
        body = json.dumps(report.to_dict(), sort_keys=True, separators=(",", ":")).encode()
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if self.posting is not None and self.posting.etag == etag:
            return False
        self.posting = Posting(report, body, etag)
        self._wake()
        return True

    def close(self) -> None:
        """Let every waiter go, now and later: the agent is about to stop."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, known: frozenset[str], seconds: float) -> Posting | None:
        """Give the report as soon as it is none of the known ones; the current one, if any, when the time is up."""
        try:
            async with asyncio.timeout(seconds):
                while not self.closed and (self.posting is None or self.posting.etag in known):
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self.posting

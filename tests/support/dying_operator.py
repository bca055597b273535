"""The operator, which ends as by SIGKILL right before its n-th request after the first promise that it writes.

`python dying_operator.py N`. Leases and Events do not count. So each step between promise, eviction or move, and the
pod of the one that waits is the last one of some N.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from paddock.controller import main
from paddock.controller.cluster import Cluster

REAL = Cluster.request
ASIDE = ("/leases", "/events")


class Fuse:
    """Counts requests, and ends the process."""

    def __init__(self, number: int) -> None:
        self.number, self.count = number, 0

    def burn(self, method: str, path: str, body: object) -> None:
        """Note a request that is about to be sent."""
        promises = body.get("status", {}).get("promises") if isinstance(body, dict) else None
        begun = self.count > 0 or (method == "PUT" and bool(promises))
        if not begun or any(word in path for word in ASIDE):
            return
        self.count += 1
        if self.count == self.number:
            sys.stderr.write(f"ends before {method} {path}\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)


def arm(number: int) -> None:
    """Have the process end before its request of this number."""
    fuse = Fuse(number)

    async def request(self: Cluster, method: str, path: str, body: object = None, **more: Any) -> bytes:
        fuse.burn(method, path, body)
        return await REAL(self, method, path, body, **more)

    Cluster.request = request  # type: ignore[method-assign]


if __name__ == "__main__":
    arm(int(sys.argv.pop()))
    main.main()

"""Pauses before a pod of some name is made again: after failed ones, and after the API server refused it."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from paddock.core.replica import Replica
from paddock.core.status import Finding

LONGEST = 300.0
REFUSED = 30.0
"""Seconds after which a pod is tried again that the API server refused."""


@dataclass
class _Pause:
    failures: int = 0
    until: float = 0.0
    finding: Finding | None = None


class Pauses:
    """By namespace/name of the pod; a changed spec has pods of another name, which start at once."""

    def __init__(self) -> None:
        self._all: dict[str, _Pause] = {}

    def left(self, pod: str) -> float:
        """Give the seconds that are left, or 0."""
        pause = self._all.get(pod)
        return max(0.0, pause.until - asyncio.get_running_loop().time()) if pause is not None else 0.0

    def finding(self, pod: str) -> Finding | None:
        """Give why the API server refused the pod, or why its files cannot be fetched, if that is what it is for."""
        pause = self._all.get(pod)
        return pause.finding if pause is not None else None

    def failed(self, pod: str, finding: Finding | None = None) -> None:
        """Note that a pod failed, and what to tell meanwhile; each pause is twice as long as the one before."""
        pause = self._all.setdefault(pod, _Pause())
        pause.until = asyncio.get_running_loop().time() + min(LONGEST, 2.0 ** min(pause.failures, 20))
        pause.failures, pause.finding = pause.failures + 1, finding

    def refused(self, pod: str, finding: Finding) -> None:
        """Note that the API server refused a pod."""
        pause = self._all.setdefault(pod, _Pause())
        pause.until, pause.finding = asyncio.get_running_loop().time() + REFUSED, finding

    def see(self, replicas: Iterable[Replica]) -> None:
        """Note which pods serve: their next pause is short again."""
        for one in replicas:
            if one.ready:
                self._all.pop(one.key, None)

    def forget(self, deployment: str) -> None:
        """Drop what is remembered of a deployment (namespace/name) that is gone."""
        for pod in [pod for pod in self._all if pod.startswith(f"{deployment}-")]:
            del self._all[pod]

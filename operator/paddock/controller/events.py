"""Kubernetes Events, for the few moments that matter: placed, verified, and everything that went wrong.

They are sent in the background and never hold up a decision; the same Event is not sent twice in a row.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from paddock.api.vocabulary import API_VERSION, Reason
from paddock.controller.cluster import JSON, Cluster, ClusterError, namespaced
from paddock.core.deployment import KIND, Deployment

log = logging.getLogger("paddock.events")
LONGEST = 1000
QUEUE = 2000
PATIENCE = 20
"""Tenths of a second that an Event waits for more urgent work."""


class Events:
    """Sends Events about deployments."""

    def __init__(self, cluster: Cluster, reporter: str) -> None:
        self._cluster, self._reporter = cluster, reporter
        self._queue: asyncio.Queue[tuple[str, JSON]] = asyncio.Queue(QUEUE)
        self._last: dict[str, str] = {}

    def normal(self, deployment: Deployment, reason: Reason, message: str) -> None:
        """Tell something good."""
        self._put(deployment, "Normal", reason, message)

    def warning(self, deployment: Deployment, reason: Reason, message: str) -> None:
        """Tell something bad."""
        self._put(deployment, "Warning", reason, message)

    def forget(self, key: str) -> None:
        """Drop what is remembered of a deployment that is gone."""
        self._last.pop(key, None)

    def _put(self, deployment: Deployment, kind: str, reason: Reason, message: str) -> None:
        text = f"{kind} {reason} {message}"
        if self._last.get(deployment.key) == text:
            return
        self._last[deployment.key] = text
        moment = datetime.now(UTC)
        stamp = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        unique = hashlib.sha256(f"{deployment.uid} {text} {moment.isoformat()}".encode()).hexdigest()[:16]
        body: JSON = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{deployment.name}.{unique}", "namespace": deployment.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": deployment.namespace,
                "name": deployment.name,
                "uid": deployment.uid,
            },
            "type": kind,
            "reason": str(reason),
            "message": message[:LONGEST],
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
            "source": {"component": "paddock-operator", "host": self._reporter},
        }
        try:
            self._queue.put_nowait((namespaced("events", deployment.namespace), body))
        except asyncio.QueueFull:
            log.warning("too many events: dropped %s of %s", reason, deployment.key)

    async def run(self, idle: Callable[[], bool]) -> None:
        """Send for ever, while there is nothing more urgent to do."""
        while True:
            path, body = await self._queue.get()
            for _ in range(PATIENCE):
                if idle():
                    break
                await asyncio.sleep(0.1)
            try:
                await self._cluster.post(path, body)
            except ClusterError as error:
                log.debug("event not sent: %s", error)

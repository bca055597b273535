"""Follows every state of every GPU object during a test, and notes each that has more booked than it has."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from typing import TYPE_CHECKING, Any

from support.harness import GPUS

if TYPE_CHECKING:
    from support.harness import Plane

MIB = 1024**2


class Watch:
    """Follows every state of every GPU object, and notes each that has more booked than it has."""

    def __init__(self, plane: Plane) -> None:
        self._server = plane.server
        self.overbooked: list[str] = []
        self.states = 0
        self.most = 0
        """Bytes that were booked at most on all GPUs together."""
        self._booked: dict[str, int] = {}
        self._stop = threading.Event()
        version = plane.client.call("GET", GPUS).body["metadata"]["resourceVersion"]
        self._thread = threading.Thread(target=self._follow, args=(version,), daemon=True)
        self._thread.start()

    def _follow(self, version: str) -> None:
        context = ssl.create_default_context(cafile=str(self._server.certificate))
        context.check_hostname = False
        connection = http.client.HTTPSConnection("127.0.0.1", self._server.port, timeout=60, context=context)
        headers = {"Authorization": f"Bearer {self._server.token}"}
        while not self._stop.is_set():
            connection.request("GET", f"{GPUS}?watch=1&resourceVersion={version}&timeoutSeconds=10", headers=headers)
            with connection.getresponse() as response:
                for line in response:
                    gpu = json.loads(line)["object"]
                    version = gpu["metadata"]["resourceVersion"]
                    self._check(gpu)
        connection.close()

    def _check(self, gpu: dict[str, Any]) -> None:
        status = gpu.get("status", {})
        booked = sum(one["bytes"] for one in status.get("reservations", ()))
        self.states += 1
        self._booked[gpu["metadata"]["name"]] = booked
        self.most = max(self.most, sum(self._booked.values()))
        if booked > int(status.get("memory", {}).get("total", "0Mi").removesuffix("Mi")) * MIB:
            self.overbooked.append(f"{gpu['metadata']['name']}: {booked}")

    def stop(self) -> None:
        """End within ten seconds; what was noted until now counts."""
        self._stop.set()

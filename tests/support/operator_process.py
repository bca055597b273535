"""One real operator process, and what it says of itself."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from support.client import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping


class Operator:
    """One real operator process."""

    def __init__(self, environment: Mapping[str, str], port: int) -> None:
        self.started, self.port = time.monotonic(), port
        self.lines: list[tuple[float, str]] = []
        program = Path(sys.executable).with_name("paddock-operator")
        # As in its image, its modules are compiled beforehand, whatever the environment says of that.
        ours = ("PADDOCK_", "KUBERNETES_", "PYTHONDONTWRITEBYTECODE")
        plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self._process = subprocess.Popen(
            [str(program)], env=plain | dict(environment), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append((time.monotonic(), line.rstrip()))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def said(self, words: str) -> float | None:
        """Give when it logged these words for the first time, in seconds of the monotonic clock."""
        return next((when for when, line in list(self.lines) if words in line), None)

    def wait_until(self, words: str, seconds: float = 60) -> float:
        """Wait until it has logged these words; gives the seconds since its start."""

        def said() -> float | None:
            assert self.running or self.said(words), f"the operator ended: {self.tail()}"
            return self.said(words)

        when = eventually(said, seconds, f"{words!r} in the operator's log: {self.tail()}")
        assert when is not None
        return when - self.started

    def tail(self, count: int = 15) -> str:
        """Give its last lines."""
        return "\n".join(line for _, line in list(self.lines)[-count:])

    def metrics(self) -> dict[str, float]:
        """Read its metrics."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        pairs = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in pairs}

    def calls(self) -> dict[str, float]:
        """Give its requests to the API server by `verb group/resource`."""
        start = 'paddock_api_requests_total{request="'
        return {
            name.removeprefix(start).removesuffix('"}'): value
            for name, value in self.metrics().items()
            if name.startswith(start)
        }

    def writes(self) -> int:
        """Give how many objects it has written, Leases and Events aside."""
        reading = ("get ", "list ", "watch ")
        return int(
            sum(
                count
                for call, count in self.calls().items()
                if not call.startswith(reading) and not call.endswith(("/leases", "/events"))
            )
        )

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """End it with SIGTERM; gives its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self.running:
            self._process.send_signal(number)
        try:
            code = self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait(5)
        self._reader.join(5)
        if self._process.stderr is not None:
            self._process.stderr.close()
        return code

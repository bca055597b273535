"""Measures a real agent process with llama.cpp's own libraries."""

from __future__ import annotations

import http.client
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.settings import Programs, cache_folder
from support.client import eventually
from support.harness import free_port

if TYPE_CHECKING:
    from bench.figures import Figures
    from support.harness import Plane


def measure_agent(site: Plane, figures: Figures) -> None:
    """Start an agent, wait for its first listing, read its own figures."""
    folder, port = site.credentials(), free_port()
    library = Programs(cache_folder()).llama / "bin"
    program = Path(sys.executable).with_name("paddock-agent")
    environment = {
        "PATH": os.environ["PATH"],
        "PADDOCK_CREDENTIALS_FOLDER": str(folder),
        "PADDOCK_LIBRARY_FOLDER": str(library),
        "PADDOCK_LISTEN": f"127.0.0.1:{port}",
    }
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.check_hostname = False
    headers = {"Authorization": f"Bearer {(folder / 'token').read_text().strip()}"}
    with subprocess.Popen([str(program)], env=environment, stderr=subprocess.DEVNULL) as process:

        def measured() -> dict[str, float]:
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
            try:
                connection.request("GET", "/metrics", headers=headers)
                lines = connection.getresponse().read().decode().splitlines()
            except OSError as error:
                raise AssertionError(str(error)) from error
            finally:
                connection.close()
            pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
            found = {name: float(value) for name, value in pairs}
            assert found["paddock_agent_listing_seconds"]
            return found

        try:
            found = eventually(measured, 30, "the agent's first listing")
        finally:
            process.terminate()
    figures.put("agent_listing", found["paddock_agent_listing_seconds"])
    figures.put("agent_rss", found["process_resident_memory_bytes"] / 1e6)

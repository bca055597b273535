"""Measures a real agent process with llama.cpp's own libraries."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import signal
import ssl
import subprocess
import sys
import time
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
    measure_watch(site.folder, figures)
    measure_whole(site, figures)


CARDS, PROCESSES, SECONDS = 16, 64, 20
_PRETEND = Path(__file__).parents[1] / "pretend"
_CARD = (
    "name=NVIDIA H200; uuid=GPU-{n}; pci=0000:{n:02x}:00.0; type=gpu; total=143771; free=143000; backends=cuda;"
    " cc=9.0; bus=6144; clock=3201\n"
)


def measure_watch(folder: Path, figures: Figures) -> None:
    """Let the watching process look at 16 cards with 64 processes, and read what that cost.

    The driver is the pretend one; a real one answers each question by a call into the kernel, which costs more.
    """
    environment, holders = _busy_machine(folder / "watch")
    command = [sys.executable, "-P", "-m", "paddock.agent.watch", "1", "--processes"]
    try:
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.count(b'"pid":') == PROCESSES, line
            began, before = time.monotonic(), _cpu(process.pid)
            time.sleep(SECONDS)
            figures.put("agent_watch_cpu", 100 * (_cpu(process.pid) - before) / (time.monotonic() - began))
            process.kill()
    finally:
        _end(holders)


def measure_whole(site: Plane, figures: Figures) -> None:
    """Let a whole agent do the same, and add up what it and its children cost once its listing is done."""
    environment, holders = _busy_machine(site.folder / "whole")
    folder, port = site.credentials(), free_port()
    environment |= {
        "PADDOCK_CREDENTIALS_FOLDER": str(folder),
        "PADDOCK_LIBRARY_FOLDER": str(Programs(cache_folder()).llama / "bin"),
        "PADDOCK_LISTEN": f"127.0.0.1:{port}",
        "PADDOCK_HOST_PROCESSES": "true",
    }
    program = Path(sys.executable).with_name("paddock-agent")
    try:
        with subprocess.Popen([str(program)], env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                eventually(lambda: _listed_processes(folder, port) == PROCESSES, 30, "the agent lists all processes")
                began, before = time.monotonic(), _cpu_of_tree(process.pid)
                time.sleep(SECONDS)
                figures.put("agent_cpu", 100 * (_cpu_of_tree(process.pid) - before) / (time.monotonic() - began))
            finally:
                process.terminate()
    finally:
        _end(holders)


def _listed_processes(folder: Path, port: int) -> int:
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.check_hostname = False
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
    try:
        connection.request(
            "GET", "/v1/devices", headers={"Authorization": f"Bearer {(folder / 'token').read_text().strip()}"}
        )
        return connection.getresponse().read().count(b'"pid":')
    except OSError:
        return 0
    finally:
        connection.close()


def _cpu_of_tree(pid: int) -> float:
    """Give the processor time of a process, of its children, and of those that have ended."""
    total = _cpu(pid)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return total + (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def _busy_machine(place: Path) -> tuple[dict[str, str], list[int]]:
    """Make a machine of 16 cards with 64 processes; gives the environment that shows it, and their pids."""
    (place / "accounts").mkdir(parents=True, exist_ok=True)
    sources = [_PRETEND / name for name in ("pretend.c", "accounts.c", "fakenvml.c")]
    library = place / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-std=gnu11", "-O2", "-shared", "-fPIC", *sources, "-o", library], check=True)
    cards = place / "cards"
    cards.write_text("driver=580.95.05; cuda=13.0\n" + "".join(_CARD.format(n=n) for n in range(1, CARDS + 1)))
    environment = {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(place),
        "NVIDIA_VISIBLE_DEVICES": "all",
        "PADDOCK_PRETEND_GPUS": str(cards),
        "PADDOCK_PRETEND_LIES": str(place / "lies"),
        "PADDOCK_PRETEND_ACCOUNTS": str(place / "accounts"),
    }
    return environment, [_hold(place / "accounts", n) for n in range(PROCESSES)]


def _end(holders: list[int]) -> None:
    for pid in holders:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _hold(folder: Path, number: int) -> int:
    """Make a process that has 4 GiB of a card; gives its pid."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        descriptor = os.open(folder / f"{number}-bench", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        os.pwrite(descriptor, f"0000:{number % CARDS + 1:02x}:00.0 {4 << 30}\n".encode(), 0)
        os.write(told, b".")
        while True:
            signal.pause()
    os.read(ready, 1)
    os.close(ready)
    os.close(told)
    return pid


def _cpu(pid: int) -> float:
    """Give the processor time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

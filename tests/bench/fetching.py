"""Measures the fetcher beside curl and huggingface-hub on one local server: `python -m bench.fetching [MEGABYTES]`.

The server is a process of its own and sends from the page cache, so that the clients are what is measured. curl
writes and checks nothing; huggingface-hub checks the size; the fetcher also hashes, checks the structure and brings
all to the disk. Two baselines hash and sync like it: curl with openssl afterwards, which reads the file again, and
curl with openssl beside it in a pipe. huggingface-hub is in the group `bench`; without it the others stand alone.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import Figures
from support.fetch_site import COMMIT, add_repository, site
from support.gguf_writer import Model, write_model

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = 5
MEGABYTE = 1e6
DEFAULT_SIZE = 500
REPOSITORY = "bench/model"
FILE = "model.gguf"
SERVER = """
import sys
from pathlib import Path
from bench.fetching import serve
serve(Path(sys.argv[1]))
"""
FETCH = """
import re, sys
from paddock.fetch.main import main
code = main(sys.argv[1:])
print("PEAK", re.search(r"VmHWM:\\s+([0-9]+) kB", open("/proc/self/status").read())[1])
sys.exit(code)
"""
HUB = """
import sys
from huggingface_hub import hf_hub_download
hf_hub_download(sys.argv[1], sys.argv[2], cache_dir=sys.argv[3])
"""


def serve(path: Path) -> None:
    """Serve a file as a hub, say where, and end with the standard input."""
    with site() as one:
        add_repository(one, REPOSITORY, {FILE: path})
        pinned, main = f"/{REPOSITORY}/resolve/{COMMIT}/{FILE}", f"/{REPOSITORY}/resolve/main/{FILE}"
        store = one.redirects[pinned].replace("127.0.0.1", "localhost")  # a hub's files lie on another host
        one.redirects[pinned] = one.redirects[main] = store
        one.headers[main] = one.headers[pinned]
        print(one.address, flush=True)  # noqa: T201 - the parent reads it
        sys.stdin.read()


def model(folder: Path, megabytes: int) -> Path:
    """Write a model of about that size, with bytes that are all different."""
    width = 1024
    path = write_model(folder / FILE, Model(width=width, vocabulary=int(megabytes * MEGABYTE / (4 * width))))
    with path.open("r+b") as stream:
        stream.seek(64 * 1024)
        while (left := path.stat().st_size - stream.tell()) > 0:
            stream.write(os.urandom(min(left, 1 << 20)))
    return path


def clients(address: str, folder: Path) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Give the command and the environment of each client."""
    url = f"{address}/{REPOSITORY}/resolve/main/{FILE}"
    found: dict[str, tuple[list[str], dict[str, str]]] = {
        "fetch": (
            [sys.executable, "-c", FETCH, "get", f"hf://{REPOSITORY}/{FILE}", "--cache", str(folder)],
            {"PADDOCK_FETCH_HUB": address, "PADDOCK_FETCH_PLAIN_HTTP": "true"},
        ),
        "fetch_curl": (["curl", "-sfL", "-o", str(folder / "curl.gguf"), url], {}),
    }
    curl, file = f"curl -sfL -o {folder}/curl.gguf {url}", f"{folder}/curl.gguf"
    checked = f"{curl} && openssl dgst -sha256 {file} && sync {file}"
    found["fetch_checked"] = (["sh", "-c", checked], {})
    piped = f"curl -sfL {url} | tee {file} | openssl dgst -sha256 && sync {file}"
    found["fetch_piped"] = (["sh", "-c", piped], {})
    if importlib.util.find_spec("huggingface_hub") is not None:
        environment = {"HF_ENDPOINT": address, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        found["fetch_hub"] = ([sys.executable, "-c", HUB, REPOSITORY, FILE, str(folder)], environment)
    return found


def timed(command: list[str], environment: dict[str, str]) -> tuple[float, float, str]:
    """Run a client; gives seconds, seconds of processor time, and its output."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=False)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"bench: {command[0]} failed: {done.stdout[-500:]}{done.stderr[-500:]}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def measure_fetching(figures: Figures, megabytes: int = DEFAULT_SIZE, say: Callable[[str], None] = print) -> None:
    """Let every client fetch the same file in turn, several times; medians."""
    with tempfile.TemporaryDirectory(prefix="fetching-") as name:
        folder = Path(name)
        path = model(folder, megabytes)
        size = path.stat().st_size / MEGABYTE
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        speeds: dict[str, list[float]] = {}
        busy: dict[str, list[float]] = {}
        peaks = []
        for _ in range(RUNS):
            for client, (command, environment) in clients(address, folder / "target").items():
                shutil.rmtree(folder / "target", ignore_errors=True)
                (folder / "target").mkdir()
                os.sync()  # each begins with nothing to write for another
                seconds, cpu, output = timed(command, environment)
                speeds.setdefault(client, []).append(size / seconds)
                busy.setdefault(client, []).append(cpu / size * 1000)
                if "PEAK " in output:
                    peaks.append(int(output.rpartition("PEAK ")[2]) * 1024 / MEGABYTE)
        server.communicate("")
    medians = {client: statistics.median(values) for client, values in speeds.items()}
    for client, median in medians.items():
        figures.put(f"{client}_speed", median)
        figures.put(f"{client}_cpu", statistics.median(busy[client]))
        say(f"{client}: {' '.join(f'{value:.0f}' for value in speeds[client])} MB/s")
    plain = [medians[name] for name in ("fetch_curl", "fetch_hub") if name in medians]
    figures.put("fetch_ratio", medians["fetch"] / max(plain))
    figures.put("fetch_checked_ratio", medians["fetch"] / medians["fetch_checked"])
    figures.put("fetch_piped_ratio", medians["fetch"] / medians["fetch_piped"])
    figures.put("fetch_memory", max(peaks))


if __name__ == "__main__":
    measure_fetching(Figures(), int(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_SIZE)

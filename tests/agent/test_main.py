"""The agent as a program: start, work, stop, and what it takes."""

import asyncio
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from paddock import __version__
from paddock.agent.offers import Offers
from paddock.api.report import GgmlType, ListedDevice, NodeReport
from paddock.logs import JsonFormatter
from support.agent_credentials import TOKEN, trust
from support.fake_kubelet import FakeKubelet

PROGRAM = (sys.executable, "-m", "paddock.agent.main")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_version() -> None:
    assert run("--version").stdout == f"paddock-agent {__version__}\n"


def test_once_prints_the_report(ggml: Path) -> None:
    done = run("--once", PADDOCK_LIBRARY_FOLDER=str(ggml))
    assert done.returncode == 0
    assert [device.name for device in NodeReport.model_validate_json(done.stdout).devices] == [
        "CUDA0",
        "BLAS",
        "Vulkan0",
    ]


def test_a_wrong_setting_ends_it_with_2() -> None:
    done = run(PADDOCK_LISTING_INTERVAL="often", PADDOCK_AGENT_COLOUR="green")
    assert done.returncode == 2
    assert "PADDOCK_LISTING_INTERVAL='often'" in done.stderr
    assert "PADDOCK_AGENT_COLOUR is not a setting" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_device_plugin_without_an_agent_beside_it_ends_with_2() -> None:
    done = run("--device-plugin")
    assert (done.returncode, done.stderr) == (2, "paddock-agent: --device-plugin needs PADDOCK_PLUGIN_FOLDER\n")


def test_an_agent_without_a_plugin_does_not_wait_for_grpc() -> None:
    look = "import sys, paddock.agent.main; print('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout == "False\n"


async def test_as_device_plugin_it_offers_what_an_agent_wrote_and_leaves_nothing_behind(tmp_path: Path) -> None:
    shared, folder = tmp_path / "s", tmp_path / "k"
    shared.mkdir()
    folder.mkdir()
    device = ListedDevice(
        name="CUDA0",
        backend="CUDA",
        type=GgmlType.GPU,
        raw_index=0,
        memory_total=1 << 30,
        uuid="GPU-1",
        pci_id="0000:01:00.0",
    )
    Offers(shared).dress([device], [])
    kubelet = FakeKubelet(folder)
    await kubelet.start()
    environment = {"PADDOCK_PLUGIN_FOLDER": str(shared), "PADDOCK_KUBELET_FOLDER": str(folder)}
    process = await asyncio.create_subprocess_exec(*PROGRAM, "--device-plugin", env=os.environ | environment)
    for _ in range(1000):
        if kubelet.allocatable("gpu.paddock.dev/uuid-1") == 4:
            break
        await asyncio.sleep(0.02)
    assert kubelet.allocatable("gpu.paddock.dev/uuid-1") == 4
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 20) == 0
    assert [one.name for one in folder.iterdir()] == ["kubelet.sock"]
    await kubelet.stop()


def test_missing_credentials_end_it_with_1(tmp_path: Path) -> None:
    done = run(PADDOCK_CREDENTIALS_FOLDER=str(tmp_path))
    assert done.returncode == 1
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


def test_the_json_log_is_one_object_a_line() -> None:
    wrong = ValueError("two\nlines")
    record = logging.LogRecord("paddock", logging.ERROR, "", 0, "it %s", ("failed",), (ValueError, wrong, None))
    line = JsonFormatter().format(record)
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["level"], fields["message"]) == ("error", "it failed")
    assert "ValueError" in fields["exception"]


class Running:
    """An agent in its own process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, client: aiohttp.ClientSession) -> None:
        self.process = process
        self.port = port
        self.client = client

    async def get(self, path: str, **headers: str) -> tuple[int, str, bytes]:
        async with self.client.get(
            f"https://127.0.0.1:{self.port}{path}",
            headers={"Authorization": f"Bearer {TOKEN}"} | headers,
            server_hostname="paddock-agent",
        ) as response:
            return response.status, response.headers.get("ETag", ""), await response.read()

    @property
    def resident(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
async def running(
    ggml: Path, cards: Callable[..., None], credentials_folder: Path, tmp_path: Path
) -> AsyncIterator[Running]:
    cards(("01", "one", 6000))
    environment = os.environ | {
        "PADDOCK_LIBRARY_FOLDER": str(ggml),
        "PADDOCK_CREDENTIALS_FOLDER": str(credentials_folder),
        "PADDOCK_LISTEN": "127.0.0.1:0",
        "PADDOCK_MODEL_ROOTS": str(tmp_path),
        "PADDOCK_MEMORY_INTERVAL": "0.2",
    }
    process = await asyncio.create_subprocess_exec(*PROGRAM, env=environment, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        line = (await asyncio.wait_for(process.stderr.readline(), 30)).decode()
        assert "listens on port" in line, line
        connector = aiohttp.TCPConnector(ssl=trust(credentials_folder))
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=20)) as client:
            yield Running(process, int(line.split()[-1]), client)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_it_reports_follows_memory_and_stops_amid_a_long_poll(
    running: Running, cards: Callable[..., None]
) -> None:
    status, etag, body = await running.get("/v1/devices?wait=20")
    assert status == 200
    assert NodeReport.model_validate_json(body).devices[0].uuid == "GPU-one"
    poll = asyncio.create_task(running.get("/v1/devices?wait=20", **{"If-None-Match": etag}))
    cards(("01", "one", 1100))
    status, etag, body = await poll
    assert NodeReport.model_validate_json(body).devices[0].memory_free == 1024 * 1024 * 1024
    poll = asyncio.create_task(running.get("/v1/devices?wait=60", **{"If-None-Match": etag}))
    end = time.monotonic() + 20
    while b"paddock_agent_long_polls 1\n" not in (await running.get("/metrics"))[2]:
        assert time.monotonic() < end, "the poll never came"
    start = time.monotonic()
    running.process.send_signal(signal.SIGTERM)
    assert (await poll)[0] == 304
    assert await asyncio.wait_for(running.process.wait(), 10) == 0
    assert time.monotonic() - start < 4


def write_large_header(path: Path) -> None:
    """Write a GGUF file with a vocabulary of 8 MB and no more."""
    key = b"tokenizer.ggml.tokens"
    token = struct.pack("<Q", 24) + b"t" * 24
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", len(key)) + key
    path.write_bytes(head + struct.pack("<IIQ", 9, 8, 250_000) + token * 250_000)
    path.chmod(0o644)


async def test_it_stays_small(running: Running, tmp_path: Path) -> None:
    write_large_header(tmp_path / "large.gguf")
    await running.get("/v1/devices?wait=20")
    for _ in range(5):
        answer = (await running.get(f"/v1/header?path={tmp_path}/large.gguf"))[2]
        assert b"general.architecture" in answer, answer  # the whole vocabulary was passed to find it missing
        await running.get("/metrics")
    assert running.resident <= 58_000_000

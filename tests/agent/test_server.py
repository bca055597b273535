"""The server over real TLS sockets: token, ETag, long poll, rotation, headers, limits."""

import asyncio
import json
import os
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout, TCPConnector

from paddock.agent import server as server_module
from paddock.agent.board import Board
from paddock.agent.credentials import Credentials, CredentialsError
from paddock.agent.lister import Statistics
from paddock.agent.server import Api, HeaderPool, start_server
from paddock.agent.settings import Settings
from paddock.api.report import (
    Fault,
    GgmlType,
    HeaderAnswer,
    HeaderFault,
    HeaderSummary,
    ListedDevice,
    NodeReport,
    TensorGroup,
)
from support.agent_credentials import TOKEN, make_certificate, trust

GROUP = TensorGroup(bytes=1, count=1)
SUMMARY = HeaderSummary(
    architecture="gemma3",
    file_bytes=253113024,
    parameters=268098176,
    block_count=18,
    embedding_length=640,
    key_length=256,
    value_length=256,
    input_tensors=GROUP,
    layer_tensors=GROUP,
    output_tensors=GROUP,
)


def report(free: int = 1024) -> NodeReport:
    device = ListedDevice(
        name="CUDA0",
        backend="CUDA",
        type=GgmlType.GPU,
        raw_index=0,
        index=0,
        memory_total=2048,
        memory_free=free,
        uuid='GPU-"1"',
        pci_id="0000:01:00.0",
    )
    fault = Fault(code="DriverFailed", message="the driver is ill")
    return NodeReport(devices=[device], faults=[fault], boot_id="boot-1")


class Reader:
    """Stands for the header reader: answers, hangs or fails by the path."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.release = threading.Event()

    def __call__(self, path: str, roots: Sequence[str]) -> HeaderAnswer:
        self.asked.append((path, tuple(roots)))
        if path.endswith("hang.gguf"):
            self.release.wait(30)
        if path.endswith("broken.gguf"):
            raise RuntimeError("a mistake in the reader")
        if path.endswith("missing.gguf"):
            return HeaderAnswer(fault=HeaderFault(code="ModelNotFound", message="no such file"))
        return HeaderAnswer(summary=SUMMARY)


@dataclass
class Agent:
    """A running server and a client that trusts it."""

    board: Board
    api: Api
    credentials: Credentials
    folder: Path
    reader: Reader
    port: int
    client: ClientSession
    statistics: Statistics = field(default_factory=Statistics)

    async def get(self, path: str, token: str | None = TOKEN, method: str = "GET", **more: Any) -> "Answer":
        headers = dict(more.pop("headers", {}))
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        url = f"https://127.0.0.1:{self.port}{path}"
        async with self.client.request(
            method, url, headers=headers, server_hostname="paddock-agent", **more
        ) as response:
            return Answer(response.status, response.headers, await response.read())


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@pytest.fixture
async def agent(credentials_folder: Path) -> AsyncIterator[Agent]:
    board, statistics, reader = Board(), Statistics(), Reader()
    credentials = Credentials(credentials_folder)
    settings = Settings(listen="127.0.0.1:0")
    pool = HeaderPool(reader, ["/models"], 0.5)
    api = Api(board, statistics, credentials, pool)
    runner, port = await start_server(api, settings, credentials)
    connector = TCPConnector(ssl=trust(credentials_folder))
    async with ClientSession(connector=connector, timeout=ClientTimeout(total=20)) as client:
        yield Agent(board, api, credentials, credentials_folder, reader, port, client, statistics)
        reader.release.set()
        board.close()
    await runner.cleanup()


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        await asyncio.sleep(0.01)


class TestToken:
    @pytest.mark.parametrize("path", ["/v1/devices", "/v1/header?path=/models/a.gguf", "/metrics", "/nothing"])
    async def test_without_or_with_a_wrong_token_nothing_is_told(self, agent: Agent, path: str) -> None:
        agent.board.post(report())
        for token in (None, "", TOKEN[:-1], TOKEN + "x", "ä" * 20):
            answer = await agent.get(path, token)
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert set(answer.json) == {"error"}
        assert agent.reader.asked == []

    async def test_another_scheme_is_refused(self, agent: Agent) -> None:
        answer = await agent.get("/metrics", None, headers={"Authorization": f"Basic {TOKEN}"})
        assert answer.status == 401

    async def test_health_needs_none(self, agent: Agent) -> None:
        answer = await agent.get("/healthz", None)
        assert (answer.status, answer.json) == (200, {"status": "ok"})

    async def test_rotation_needs_no_restart(self, agent: Agent) -> None:
        agent.board.post(report())
        fresh = "another-token-0123456789"
        (agent.folder / "next").write_text(fresh)
        (agent.folder / "next").replace(agent.folder / "token")
        assert (await agent.get("/v1/devices")).status == 401
        assert (await agent.get("/v1/devices", fresh)).status == 200

    async def test_a_token_file_that_vanishes_or_is_too_short_changes_nothing(self, agent: Agent) -> None:
        agent.board.post(report())
        (agent.folder / "token").write_text("")
        assert (await agent.get("/v1/devices", "")).status == 401
        assert (await agent.get("/v1/devices")).status == 200
        (agent.folder / "token").unlink()
        assert (await agent.get("/v1/devices")).status == 200


class TestDevices:
    async def test_the_report(self, agent: Agent) -> None:
        agent.board.post(report())
        answer = await agent.get("/v1/devices")
        assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
        assert NodeReport.model_validate(answer.json) == report()

    async def test_a_known_etag_gets_304_and_an_old_one_the_report(self, agent: Agent) -> None:
        agent.board.post(report())
        etag = (await agent.get("/v1/devices")).headers["ETag"]
        for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
            answer = await agent.get("/v1/devices", headers={"If-None-Match": known})
            assert (answer.status, answer.body, answer.headers["ETag"]) == (304, b"", etag)
        agent.board.post(report(free=512))
        answer = await agent.get("/v1/devices", headers={"If-None-Match": etag})
        assert answer.status == 200
        assert answer.json["devices"][0]["memoryFree"] == 512
        assert answer.headers["ETag"] != etag

    async def test_the_same_report_has_the_same_etag(self, agent: Agent) -> None:
        assert agent.board.post(report())
        assert not agent.board.post(report())

    async def test_a_long_poll_ends_with_the_change(self, agent: Agent) -> None:
        agent.board.post(report())
        etag = (await agent.get("/v1/devices")).headers["ETag"]
        start = time.monotonic()
        polls = [
            asyncio.create_task(agent.get("/v1/devices?wait=15", headers={"If-None-Match": etag})) for _ in range(3)
        ]
        await until(lambda: agent.api.long_polls == 3)
        agent.board.post(report(free=256))
        answers = await asyncio.gather(*polls)
        assert time.monotonic() - start < 5
        assert [answer.json["devices"][0]["memoryFree"] for answer in answers] == [256, 256, 256]
        assert agent.api.long_polls == 0

    async def test_a_long_poll_without_a_change_ends_with_304(self, agent: Agent) -> None:
        agent.board.post(report())
        etag = (await agent.get("/v1/devices")).headers["ETag"]
        start = time.monotonic()
        answer = await agent.get("/v1/devices?wait=0.3", headers={"If-None-Match": etag})
        assert answer.status == 304
        assert time.monotonic() - start >= 0.3

    async def test_a_client_that_leaves_frees_its_poll(self, agent: Agent) -> None:
        agent.board.post(report())
        etag = (await agent.get("/v1/devices")).headers["ETag"]
        poll = asyncio.create_task(agent.get("/v1/devices?wait=60", headers={"If-None-Match": etag}))
        await until(lambda: agent.api.long_polls == 1)
        poll.cancel()
        await until(lambda: agent.api.long_polls == 0)

    async def test_before_the_first_listing(self, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server_module, "FIRST_LISTING_WAIT", 0.1)
        answer = await agent.get("/v1/devices")
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        poll = asyncio.create_task(agent.get("/v1/devices?wait=15"))
        await until(lambda: agent.api.long_polls == 1)
        agent.board.post(report())
        assert (await poll).status == 200

    async def test_a_stopping_agent_lets_polls_go(self, agent: Agent) -> None:
        agent.board.post(report())
        etag = (await agent.get("/v1/devices")).headers["ETag"]
        poll = asyncio.create_task(agent.get("/v1/devices?wait=60", headers={"If-None-Match": etag}))
        await until(lambda: agent.api.long_polls == 1)
        agent.board.close()
        assert (await poll).status == 304

    async def test_too_many_polls_are_refused(self, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server_module, "MOST_POLLS", 1)
        agent.board.post(report())
        etag = (await agent.get("/v1/devices")).headers["ETag"]
        poll = asyncio.create_task(agent.get("/v1/devices?wait=60", headers={"If-None-Match": etag}))
        await until(lambda: agent.api.long_polls == 1)
        assert (await agent.get("/v1/devices?wait=60")).status == 503
        agent.board.post(report(free=1))
        assert (await poll).status == 200

    @pytest.mark.parametrize("wait", ["-1", "soon", "nan", ""])
    async def test_a_wait_that_is_no_time(self, agent: Agent, wait: str) -> None:
        agent.board.post(report())
        assert (await agent.get(f"/v1/devices?wait={wait}")).status == 400

    async def test_an_endless_wait_is_cut(self) -> None:
        assert server_module._read_wait("inf") == 60
        assert server_module._read_wait("1e9") == 60


class TestHeader:
    async def test_a_summary(self, agent: Agent) -> None:
        answer = await agent.get("/v1/header?path=/models/a%20b.gguf")
        assert answer.status == 200
        assert HeaderAnswer.model_validate(answer.json) == HeaderAnswer(summary=SUMMARY)
        assert agent.reader.asked == [("/models/a b.gguf", ("/models",))]

    async def test_a_fault_is_an_answer(self, agent: Agent) -> None:
        answer = await agent.get("/v1/header?path=/models/missing.gguf")
        assert (answer.status, answer.json["fault"]["code"]) == (200, "ModelNotFound")

    @pytest.mark.parametrize("query", ["", "?path=", "?path=a.gguf", "?path=/a%00b", "?path=/" + "a" * 4096])
    async def test_a_path_that_is_none(self, agent: Agent, query: str) -> None:
        answer = await agent.get(f"/v1/header{query}")
        assert answer.status == 400
        assert "absolute path" in answer.json["error"]
        assert agent.reader.asked == []

    async def test_a_mistake_in_the_reader_is_a_fault(self, agent: Agent) -> None:
        answer = await agent.get("/v1/header?path=/models/broken.gguf")
        assert (answer.status, answer.json["fault"]["code"]) == (200, "InspectionFailed")

    async def test_a_hanging_file_system_blocks_nobody_else(self, agent: Agent) -> None:
        start = time.monotonic()
        answer = await agent.get("/v1/header?path=/models/hang.gguf")
        assert "longer than 0.5 s" in answer.json["fault"]["message"]
        assert (await agent.get("/healthz", None)).status == 200
        assert "summary" in (await agent.get("/v1/header?path=/models/a.gguf")).json
        assert time.monotonic() - start < 5

    async def test_hanging_reads_take_their_places_until_they_end(self, agent: Agent) -> None:
        for _ in range(server_module.MOST_HEADER_READS):
            await agent.get("/v1/header?path=/models/hang.gguf")
        assert "fault" in (await agent.get("/v1/header?path=/models/a.gguf")).json
        assert len(agent.reader.asked) == server_module.MOST_HEADER_READS
        agent.reader.release.set()
        await until(lambda: not agent.api._pool._free.locked())
        assert "summary" in (await agent.get("/v1/header?path=/models/a.gguf")).json

    async def test_the_queue_is_bounded(self, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server_module, "MOST_HEADER_QUEUE", 0)
        answer = await agent.get("/v1/header?path=/models/a.gguf")
        assert "too many" in answer.json["fault"]["message"]


class TestMetrics:
    async def test_what_they_tell(self, agent: Agent) -> None:
        agent.board.post(report())
        agent.statistics.listings["ok"] += 2
        agent.statistics.seconds = 0.25
        answer = await agent.get("/metrics")
        lines = answer.body.decode().splitlines()
        labels = 'backend="CUDA",device="CUDA0",pci_id="0000:01:00.0",position="0",uuid="GPU-\\"1\\""'
        for line in (
            'paddock_agent_devices{backend="CUDA"} 1',
            'paddock_agent_fault{code="DriverFailed"} 1',
            'paddock_agent_fault{code="ListingCrashed"} 0',
            'paddock_agent_listings_total{result="ok"} 2',
            "paddock_agent_listing_seconds 0.25",
            f"paddock_agent_memory_total_bytes{{{labels}}} 2048",
            f"paddock_agent_memory_free_bytes{{{labels}}} 1024",
            "paddock_agent_long_polls 0",
        ):
            assert line in lines
        (memory,) = [line for line in lines if line.startswith("process_resident_memory_bytes ")]
        assert 10e6 < float(memory.split()[1]) < 1e9
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")

    async def test_before_the_first_listing(self, agent: Agent) -> None:
        answer = await agent.get("/metrics")
        assert answer.status == 200
        assert b"paddock_agent_devices" not in answer.body

    async def test_they_can_be_opened(self, agent: Agent) -> None:
        api = Api(agent.board, agent.statistics, agent.credentials, agent.api._pool, metrics_token=False)
        runner, port = await start_server(api, Settings(listen="127.0.0.1:0"), agent.credentials)
        agent.port = port
        assert (await agent.get("/metrics", None)).status == 200
        assert (await agent.get("/v1/devices", None)).status == 401
        await runner.cleanup()


class TestManners:
    async def test_unknown_paths_and_methods_are_answered_in_json(self, agent: Agent) -> None:
        for path, method, status in (
            ("/nothing", "GET", 404),
            ("/v1/devices/", "GET", 404),
            ("/v1/devices", "POST", 405),
            ("/v1/devices", "DELETE", 405),
        ):
            answer = await agent.get(path, method=method)
            assert (answer.status, set(answer.json)) == (status, {"error"})

    async def test_bodies_are_refused(self, agent: Agent) -> None:
        answer = await agent.get("/v1/devices", data=b"x" * 100)
        assert (answer.status, set(answer.json)) == (413, {"error"})

    async def test_no_answer_tells_the_servers_version(self, agent: Agent) -> None:
        for answer in (await agent.get("/healthz"), await agent.get("/nothing"), await agent.get("/metrics", None)):
            assert answer.headers.get("Server", "paddock-agent") == "paddock-agent"

    @pytest.mark.parametrize(
        "head",
        [
            b"NONSENSE\r\n\r\n",
            b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20000 + b"\r\n\r\n",
        ],
    )
    async def test_broken_and_oversized_heads(self, agent: Agent, head: bytes) -> None:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", agent.port, ssl=trust(agent.folder), server_hostname="paddock-agent"
        )
        writer.write(head)
        answer = await asyncio.wait_for(reader.read(4096), 5)
        writer.close()
        assert answer.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
        assert b"aiohttp/" not in answer
        assert b"Python" not in answer

    async def test_plain_http_and_old_tls_are_refused(self, agent: Agent) -> None:
        old = trust(agent.folder)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", agent.port, ssl=old, server_hostname="paddock-agent")
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not (await asyncio.wait_for(reader.read(100), 5)).startswith(b"HTTP")
        writer.close()


class TestCertificate:
    async def serial(self, agent: Agent) -> bytes:
        insecure = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", agent.port, ssl=insecure)
        shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return shown

    async def test_a_new_one_is_used_for_new_connections(self, agent: Agent) -> None:
        before = await self.serial(agent)
        assert not agent.credentials.reload_certificate()
        make_certificate(agent.folder)
        following = asyncio.create_task(agent.credentials.follow_certificate(0.05))
        end = time.monotonic() + 10
        while await self.serial(agent) == before:
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
        following.cancel()

    async def test_half_a_pair_is_not_used(self, agent: Agent, tmp_path: Path) -> None:
        before = await self.serial(agent)
        make_certificate(tmp_path)
        (tmp_path / "tls.crt").replace(agent.folder / "tls.crt")
        assert not agent.credentials.reload_certificate()
        assert await self.serial(agent) == before
        (tmp_path / "tls.key").replace(agent.folder / "tls.key")
        assert agent.credentials.reload_certificate()
        assert await self.serial(agent) != before

    @pytest.mark.parametrize("name", ["tls.crt", "tls.key", "token"])
    @pytest.mark.parametrize("change", [os.unlink, lambda path: path.write_text("short")])
    def test_bad_files_at_start_are_named(
        self, credentials_folder: Path, name: str, change: Callable[[Path], object]
    ) -> None:
        change(credentials_folder / name)
        with pytest.raises(CredentialsError, match=str(credentials_folder)):
            Credentials(credentials_folder)

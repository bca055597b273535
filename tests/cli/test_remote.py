"""Model files on the web: few and small requests, and a clear word for every server that does not play along."""

import contextlib
import json
import ssl
import time
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from cli.fake import Shell
from paddock.cli.model import read_model
from paddock.cli.problem import Problem
from paddock.cli.remote import Remote
from support import gguf_writer as writer
from support.agent_credentials import make_certificate
from support.range_server import Site, serving

MODEL = writer.Model(extra={"tokenizer.ggml.tokens": [f"token{index}" for index in range(300)]})
HEAD = writer.header(MODEL.metadata(), MODEL.tensors())
WHOLE = HEAD + bytes(writer.data_bytes(MODEL.tensors()))


@cache
def large_vocabulary() -> bytes:
    """Give a model with 262,144 tokens and half a million merges, as the largest published vocabularies have."""
    tokens = [f"token{index}" for index in range(262_144)]
    extra: dict[str, writer.Value] = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": writer.Typed(9, _numbers(6, 262_144)),
        "tokenizer.ggml.token_type": writer.Typed(9, _numbers(5, 262_144)),
        "tokenizer.ggml.merges": [f"{index:05} abc" for index in range(514_000)],
    }
    model = writer.Model(extra=extra)
    return writer.header(model.metadata(), model.tensors()) + bytes(writer.data_bytes(model.tensors()))


def _numbers(kind: int, count: int) -> bytes:
    return kind.to_bytes(4, "little") + count.to_bytes(8, "little") + bytes(4 * count)


def test_a_model_on_the_web_is_the_same_as_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(WHOLE)
    with serving({"/a%20b/m%20n.gguf": WHOLE}) as site:
        found = read_model(f"{site.address}/a%20b/m%20n.gguf?download=true")
        digest = found.digest()
    assert found.summary == read_model(str(path)).summary
    assert digest == read_model(str(path)).digest()


def test_only_the_header_is_asked_for_and_in_few_requests() -> None:
    with serving({"/m.gguf": large_vocabulary()}) as site:
        remote = read_model(f"{site.address}/m.gguf")
    assert len(site.asked) <= 3
    assert remote.summary.vocabulary == MODEL.vocabulary
    assert site.asked[0] == ("/m.gguf", "bytes=0-1048575")


def test_a_small_header_takes_one_request_of_a_mebibyte() -> None:
    with serving({"/m.gguf": WHOLE + bytes(8 * 1024 * 1024)}) as site:
        read_model(f"{site.address}/m.gguf")
    assert len(site.asked) == 1
    assert site.sent <= 1024 * 1024


def test_a_split_model_is_read_beside_its_first_file(tmp_path: Path) -> None:
    paths = writer.write_split(tmp_path, "big", 3)
    files = {f"/x/{path.name}": path.read_bytes() for path in paths}
    with serving(files) as site:
        found = read_model(f"{site.address}/x/{paths[0].name}?download=true")
    assert found.summary == read_model(str(paths[0])).summary
    assert [path for path, _ in site.asked] == [f"/x/{path.name}?download=true" for path in paths]


def test_a_missing_part_is_told(tmp_path: Path) -> None:
    paths = writer.write_split(tmp_path, "big", 2)
    with serving({f"/{paths[0].name}": paths[0].read_bytes()}) as site, pytest.raises(Problem) as raised:
        read_model(f"{site.address}/{paths[0].name}")
    assert "big-00002-of-00002.gguf: there is no such file (status 404)" in raised.value.message


def redirect_to(target: Callable[[Site], str], site: list[Site]) -> Callable[[BaseHTTPRequestHandler], bool]:
    def behave(handler: BaseHTTPRequestHandler) -> bool:
        if not handler.path.startswith("/old"):
            return False
        handler.send_response(302)
        handler.send_header("Location", target(site[0]))
        handler.end_headers()
        return True

    return behave


def test_redirects_are_followed_once_for_all_requests() -> None:
    sites: list[Site] = []
    data = large_vocabulary()
    behaviour = redirect_to(lambda site: f"{site.address}/new.gguf?signed=1", sites)
    with serving({"/new.gguf": data}, behaviour) as site:
        sites.append(site)
        read_model(f"{site.address}/old.gguf")
    assert [path for path, _ in site.asked].count("/old.gguf") == 1


@pytest.mark.parametrize(
    ("target", "message"),
    [("/old.gguf", "lead nowhere"), ("ftp://127.0.0.1/x", "not followed"), ("file:///etc/passwd", "lead nowhere")],
)
def test_redirects_that_lead_nowhere(target: str, message: str) -> None:
    sites: list[Site] = []
    with serving({}, redirect_to(lambda _: target, sites)) as site:
        sites.append(site)
        with pytest.raises(Problem, match=message):
            read_model(f"{site.address}/old.gguf")
    assert len(site.asked) <= 6


def plainly(status: int, headers: dict[str, str], body: bytes) -> Callable[[BaseHTTPRequestHandler], bool]:
    def behave(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        with contextlib.suppress(ConnectionError):
            handler.wfile.write(body)
        return True

    return behave


BAD: list[tuple[str, int, dict[str, str], bytes, str]] = [
    ("login", 401, {}, b"", "wants a login"),
    ("refused", 403, {}, b"", "refuses access"),
    ("missing", 404, {}, b"", "there is no such file (status 404)"),
    ("too many", 429, {}, b"", "fewer requests"),
    ("broken", 500, {}, b"", "(status 500)"),
    ("page", 200, {"Content-Length": "5", "Content-Type": "text/html; charset=utf-8"}, b"<html", "is a web page"),
    ("no size", 200, {}, WHOLE, "does not tell how large"),
    ("no range told", 206, {"Content-Length": "9"}, bytes(9), "without saying which range"),
    ("other range", 206, {"Content-Range": "bytes 5-13/100", "Content-Length": "9"}, bytes(9), "or with another"),
    ("unknown size", 206, {"Content-Range": "bytes 0-8/*", "Content-Length": "9"}, bytes(9), "without saying"),
    ("huge number", 206, {"Content-Range": f"bytes 0-8/{'9' * 400}"}, bytes(9), "without saying"),
    ("early end", 206, {"Content-Range": "bytes 0-999999/9999999"}, bytes(9), "too early"),
    ("compressed", 206, {"Content-Range": "bytes 0-8/9", "Content-Encoding": "gzip"}, bytes(9), "compresses"),
    ("other file", 206, {"Content-Range": "bytes 0-8/9"}, b"PK\x03\x0412345", "it is no GGUF file"),
    ("empty", 416, {}, b"", "0 bytes, too few"),
]


@pytest.mark.parametrize(("status", "headers", "body", "message"), [c[1:] for c in BAD], ids=[c[0] for c in BAD])
def test_what_servers_get_wrong(status: int, headers: dict[str, str], body: bytes, message: str) -> None:
    with serving({}, plainly(status, headers, body)) as site, pytest.raises(Problem) as raised:
        read_model(f"{site.address}/m.gguf")
    assert message in raised.value.message


def test_a_page_of_a_file_hints_at_the_file() -> None:
    headers = {"Content-Length": "5", "Content-Type": "text/html"}
    with serving({}, plainly(200, headers, b"<html")) as site, pytest.raises(Problem, match="/resolve/, not /blob/"):
        read_model(f"{site.address}/org/repo/blob/main/m.gguf")


def test_a_server_without_ranges_does_for_a_small_header_and_only_that() -> None:
    body = WHOLE + bytes(4 * 1024 * 1024)
    with serving({}, plainly(200, {"Content-Length": str(len(body))}, body)) as site:
        assert read_model(f"{site.address}/m.gguf").summary.block_count == MODEL.layers
    body = large_vocabulary()
    with (
        serving({}, plainly(200, {"Content-Length": str(len(body))}, body)) as site,
        pytest.raises(Problem, match="no range requests"),
    ):
        read_model(f"{site.address}/m.gguf")


def test_a_file_that_changes_meanwhile_is_told() -> None:
    sizes = iter((9_000_000, 9_000_001))

    def behave(handler: BaseHTTPRequestHandler) -> bool:
        start, end = handler.headers["Range"].removeprefix("bytes=").split("-")
        length = int(end) - int(start) + 1
        return plainly(206, {"Content-Range": f"bytes {start}-{end}/{next(sizes)}"}, bytes(length))(handler)

    with serving({}, behave) as site:
        remote = Remote(f"{site.address}/m.gguf")
        with pytest.raises(Problem, match="has changed"):
            remote.read(2_000_000, 1000)


def test_more_than_was_asked_for_is_not_taken() -> None:
    headers = {"Content-Range": "bytes 0-1048575/4194304"}
    with serving({}, plainly(206, headers, bytes(4 * 1024 * 1024))) as site:
        assert len(Remote(f"{site.address}/m.gguf").read(0, 2**20)) == 2**20


def test_a_silent_server_is_given_up() -> None:
    def behave(_: BaseHTTPRequestHandler) -> bool:
        time.sleep(1.5)
        return True

    began = time.monotonic()
    with serving({}, behave) as site, pytest.raises(Problem, match=r"silent|without response"):
        Remote(f"{site.address}/m.gguf", seconds=0.3)
    assert time.monotonic() - began < 10


def test_a_server_that_dribbles_is_given_up() -> None:
    def behave(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(206)
        handler.send_header("Content-Range", "bytes 0-1048575/1048576")
        handler.end_headers()
        for _ in range(5):
            try:
                handler.wfile.write(bytes(262_144))
            except ConnectionError:
                break
        return True

    with serving({}, behave) as site, pytest.raises(Problem, match="too slow"):
        Remote(f"{site.address}/m.gguf", whole_seconds=0.0)


def test_a_closed_port_and_an_unknown_scheme(capsys: pytest.CaptureFixture[str], shell: Shell) -> None:
    with serving({}) as site:
        address = site.address
    assert shell.run("estimate", f"{address}/m.gguf")[0] == 1
    assert "cannot be read: Connection refused" in capsys.readouterr().err
    assert shell.run("estimate", "s3://bucket/m.gguf")[0] == 2
    assert "no address of a file on the web" in capsys.readouterr().err


def test_the_header_is_fetched_once_more_for_a_measurement() -> None:
    with serving({"/m.gguf": large_vocabulary()}) as site:
        model = read_model(f"{site.address}/m.gguf")
        before = len(site.asked)
        digest = model.digest()
        with model.on_disk() as path:
            copy = read_model(str(path))
            assert (copy.summary, copy.digest()) == (model.summary, digest)
    assert len(site.asked) == before + 1


def test_a_certificate_that_nobody_vouches_for_is_told(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    with serving({"/m.gguf": WHOLE}, tls=context) as site, pytest.raises(Problem, match="certificate is not trusted"):
        read_model(f"{site.address}/m.gguf")


def test_the_command_reads_from_the_web(shell: Shell) -> None:
    with serving({"/m.gguf": WHOLE}) as site:
        status, text = shell.run("estimate", f"{site.address}/m.gguf", "-o", "json", "--no-measure")
    assert status == 0
    assert json.loads(text)["model"]["name"] == "Test llama"

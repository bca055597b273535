"""The program as a whole against an API server that speaks HTTP: paths, rights, headers, and what fails on the way."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import typing_extensions

from cli.fake import GROUP, completion, fleet, pod, serving
from paddock.cli.main import run

PODS = "/api/v1/namespaces/team/pods"


class Server(ThreadingHTTPServer):
    """Answers from a table, and keeps what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    def says(self, path: str, value: object, status: int = 200) -> None:
        self.answers[path] = (status, value if isinstance(value, bytes) else json.dumps(value).encode())


class Handler(BaseHTTPRequestHandler):
    server: Server

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((self.command, self.path, dict(self.headers.items()), body))
        status, data = self.server.answers.get(urlsplit(self.path).path, (404, b"404 page not found"))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = _answer  # noqa: N815 names of the base class

    @typing_extensions.override
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture
def kubeconfig(server: Server, tmp_path: Path) -> str:
    return write(tmp_path, f"http://127.0.0.1:{server.server_address[1]}")


def write(folder: Path, url: str) -> str:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "a-token"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return str(path)


def status_of(reason: str, message: str) -> dict[str, str]:
    return {"kind": "Status", "reason": reason, "message": message}


def test_lists_are_read_with_the_users_token(
    server: Server, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.says(f"{GROUP}/gpus", {"items": fleet(), "metadata": {}})
    assert run(["devices", "-o", "json", "--kubeconfig", kubeconfig]) == 0
    assert len(json.loads(capsys.readouterr().out)["items"]) == 4
    headers = {key.lower(): value for key, value in server.seen[0][2].items()}
    assert headers["authorization"] == "Bearer a-token"


def test_the_environments_kubeconfig_and_its_namespace(server: Server, kubeconfig: str) -> None:
    server.says(f"{GROUP}/namespaces/team/modeldeployments", {"items": [serving(namespace="team")]})
    found = subprocess.run(
        [sys.executable, "-m", "paddock.cli.main", "get"],
        env={"PATH": os.environ["PATH"], "KUBECONFIG": kubeconfig},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert "gemma" in found.stdout


def test_chat_goes_through_the_proxy_with_the_key_in_a_header_of_its_own(
    server: Server, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.says(f"{GROUP}/namespaces/team/modeldeployments/gemma", serving(namespace="team"))
    path = "/api/v1/namespaces/team/services/gemma:http/proxy/v1/chat/completions"
    server.says(path, completion("Yes."))
    assert run(["chat", "gemma", "Well?", "--api-key", "k", "--kubeconfig", kubeconfig]) == 0
    assert capsys.readouterr().out == "Yes.\n"
    method, asked, headers, body = server.seen[-1]
    lower = {key.lower(): value for key, value in headers.items()}
    assert (method, asked) == ("POST", path)
    assert (lower["x-api-key"], lower["authorization"]) == ("k", "Bearer a-token")
    assert json.loads(body)["messages"][0]["content"] == "Well?"


def test_restart_is_a_merge_patch(server: Server, kubeconfig: str) -> None:
    server.says(f"{GROUP}/namespaces/team/modeldeployments/gemma", serving(namespace="team"))
    assert run(["restart", "gemma", "--kubeconfig", kubeconfig]) == 0
    method, _, headers, body = server.seen[-1]
    assert (method, headers["Content-Type"]) == ("PATCH", "application/merge-patch+json")
    assert list(json.loads(body)["metadata"]["annotations"]) == ["paddock.dev/restarted-at"]


@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_logs(server: Server, kubeconfig: str, capsys: pytest.CaptureFixture[str], follow: list[str]) -> None:
    server.says(PODS, {"items": [pod("gemma", namespace="team")]})
    server.says(f"{PODS}/gemma-1a2b3c4d-0/log", b"one\ntwo\n")
    assert run(["logs", "gemma", "--tail", "7", "--kubeconfig", kubeconfig, *follow]) == 0
    assert capsys.readouterr().out == "one\ntwo\n"
    query = parse_qs(urlsplit(server.seen[-1][1]).query)
    assert (query["container"], query["tailLines"], "follow" in query) == (["server"], ["7"], bool(follow))
    asked = parse_qs(urlsplit(server.seen[0][1]).query)["labelSelector"]
    assert asked == ["paddock.dev/model-deployment=gemma,app.kubernetes.io/component=model-server"]


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (403, status_of("Forbidden", 'gpus.paddock.dev is forbidden: User "eve" cannot list'), "not allowed: gpus"),
        (401, status_of("Unauthorized", "Unauthorized"), "log in again"),
        (404, b"404 page not found\n", "install the chart"),
        (503, b"<html>apiserver not ready", "the API server refused: <html>apiserver not ready"),
        (200, b"<html>a login page", "what answers is no API server"),
    ],
)
def test_refusals(
    server: Server,
    kubeconfig: str,
    capsys: pytest.CaptureFixture[str],
    status: int,
    answer: object,
    said: str,
) -> None:
    server.says(f"{GROUP}/gpus", answer, status)
    assert run(["devices", "--kubeconfig", kubeconfig]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert said in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_missing_deployment_names_those_that_exist(
    server: Server, kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = status_of("NotFound", 'modeldeployments.paddock.dev "gema" not found')
    server.says(f"{GROUP}/namespaces/team/modeldeployments/gema", missing, 404)
    server.says(f"{GROUP}/namespaces/team/modeldeployments", {"items": [serving(namespace="team")]})
    assert run(["explain", "gema", "--kubeconfig", kubeconfig]) == 1
    expected = "error: no ModelDeployment 'gema' in namespace team; it has: gemma\n"
    assert capsys.readouterr().err == expected


def test_a_server_that_is_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert run(["devices", "--kubeconfig", write(tmp_path, url)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: the API server does not answer: {url}")
    assert error.count("\n") == 1

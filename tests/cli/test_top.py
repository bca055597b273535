"""`paddock top`: the table of GPUs with what the servers tell of their work."""

import asyncio
import json

import pytest

from cli.fake import MIB, FakeApi, Shell, serving
from paddock.cli.output import Output
from paddock.cli.problem import ApiError
from paddock.cli.target import Session
from paddock.cli.top import top

METRICS = "/api/v1/namespaces/default/pods/gemma-1a2b3c4d-0:8080/proxy/metrics"


def told(answered: int, working: int = 1, waiting: int = 0) -> str:
    return (
        f"llamacpp:tokens_predicted_total {answered}\n"
        f"llamacpp:requests_processing {working}\n"
        f"llamacpp:requests_deferred {waiting}\n"
    )


@pytest.fixture
def busy(api: FakeApi) -> FakeApi:
    """Give a proven deployment whose server answers."""
    one = serving()
    one["status"]["placements"][0]["proof"] = {"evidence": "Driver", "observedBytes": 700 * MIB}
    api.deployments = [one]
    api.gpus[3]["status"]["memory"]["foreign"] = "2048Mi"
    api.gpus[3]["status"]["foreignUse"] = [{"command": "python", "memory": "2048Mi"}]
    api.metrics[METRICS] = [told(100), told(150, 2, 3)]
    return api


def test_once_gives_one_table_with_a_rate(shell: Shell, busy: FakeApi) -> None:
    status, text = shell.run("top", "--once", "--interval", "0.5")
    assert status == 0
    assert len(busy.asked) == 2
    row = next(line for line in text.splitlines() if "RTX PRO 6000" in line)
    cells = row.split("   ")
    rate = float(next(one for one in cells if one.strip().replace(".", "", 1).isdigit() and "." in one))
    assert 20 < rate <= 110
    assert "2+3" in row
    assert row.endswith("default/gemma 700 MiB, python 2 GiB")
    assert "\x1b" not in text
    assert text.splitlines()[-1].startswith("4 GPUs, 1 server, ")


def test_plain_values(shell: Shell, busy: FakeApi) -> None:
    busy.gpus[1]["status"]["memory"] = {"total": "6144Mi", "free": "4096Mi", "reserved": "0Mi"}
    found = json.loads(shell.run("top", "--once", "--interval", "0.5", "-o", "json")[1])
    by_name = {one["gpu"]: one for one in found["gpus"]}
    assert by_name["gpu-6000c9f1"]["used"] == (2048 + 700) * MIB
    assert by_name["gpu-1060a0c4"]["used"] == 2048 * MIB
    (server,) = found["servers"]
    assert server["deployment"] == "default/gemma"
    assert server["tokensPerSecond"] > 0
    assert (server["requests"], server["waiting"]) == (2, 3)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ApiError(403, "Forbidden", "no"), "you may not ask servers"),
        (ApiError(401, "", "no"), "a key that you may not read"),
        (ApiError(503, "", "no endpoints"), "no endpoints"),
    ],
)
def test_a_server_that_cannot_be_asked_hides_nothing_else(
    shell: Shell, busy: FakeApi, error: ApiError, said: str
) -> None:
    busy.metrics[METRICS] = [error]
    status, text = shell.run("top", "--once", "--interval", "0.5")
    assert status == 0
    assert said in text.splitlines()[-1]
    assert "default/gemma 700 MiB" in text


def test_the_key_of_a_server_is_sent(shell: Shell, busy: FakeApi) -> None:
    busy.deployments[0]["spec"]["serving"] = {"apiKeySecretRef": {"name": "key", "key": "token"}}
    busy.secrets["key"] = {"data": {"token": "c2VjcmV0"}}
    assert shell.run("top", "--once", "--interval", "0.5")[0] == 0
    assert busy.asked[-1][2] == {"X-Api-Key": "secret"}


async def test_it_goes_on_until_it_is_interrupted(busy: FakeApi, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: asyncio.Queue[object] = asyncio.Queue()
    monkeypatch.setattr("paddock.cli.top._page", lambda *given, **_: pages.put_nowait(given[1]))
    session = Session(busy, "default", None, None)  # type: ignore[arg-type]
    task = asyncio.create_task(top(session, 0.01, Output.TABLE, once=False))
    async with asyncio.timeout(10):
        for _ in range(3):
            await pages.get()
    task.cancel()
    await task
    assert shell.run("top", "--interval", "0.1")[0] == 2

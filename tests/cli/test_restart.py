from typing import Any

import pytest

from cli.fake import GROUP, FakeApi, Shell, serving
from paddock.cli import restart


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "POLL_SECONDS", 0.001)


def test_the_annotation_is_all_that_changes(shell: Shell, api: FakeApi) -> None:
    assert shell.run("restart", "gemma") == (0, "gemma restarts, one server at a time.\n")
    annotations = {"paddock.dev/restarted-at": "2026-03-01T12:00:00.000000Z"}
    expected = (f"{GROUP}/namespaces/default/modeldeployments/gemma", {"metadata": {"annotations": annotations}})
    assert api.patches == [expected]


def test_wait_lasts_until_only_new_servers_are_ready(
    shell: Shell, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    read = api.get

    async def get(path: str) -> dict[str, Any]:
        seen.append(path)
        status = api.deployments[0]["status"]
        if len(seen) == 3:
            status["placements"][0]["podName"] = "gemma-99999999-0"
            status["readyReplicas"] = 0
        if len(seen) == 5:
            status["readyReplicas"] = 1
        return await read(path)

    monkeypatch.setattr(api, "get", get)
    status, text = shell.run("restart", "gemma", "--wait")
    assert (status, text.splitlines()[-1]) == (0, "gemma is back: 1/1 ready.")
    assert len(seen) == 5


def test_a_wait_ends(shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(restart, "POLL_SECONDS", 5)
    assert shell.run("restart", "gemma", "--wait", "--timeout", "1")[0] == 1
    assert "gemma is not back after 1 s; see paddock explain gemma" in capsys.readouterr().err


def test_nothing_to_restart(shell: Shell, api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.deployments = [serving(suspend=True)]
    assert shell.run("restart", "gemma")[0] == 1
    assert "no servers to restart" in capsys.readouterr().err
    assert not api.patches

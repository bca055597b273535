"""`paddock cache`: short pods on the nodes whose cache a namespace uses."""

import json

import pytest

from cli.fake import FakeApi, Shell

KEY = "aa11"
MODEL = {"event": "model", "key": KEY, "source": "hf://org/repo:Q8_0", "bytes": 3 * 1024**3, "used": 1772366100.0}


def claim(node: str) -> dict[str, object]:
    meta = {"name": f"claim-{node}", "namespace": "default", "annotations": {"paddock.dev/node": node}}
    return {"metadata": {**meta, "labels": {"app.kubernetes.io/managed-by": "paddock", "paddock.dev/model-root": "x"}}}


@pytest.fixture
def api() -> FakeApi:
    made = FakeApi()
    made.claims = [claim("node1"), claim("node2")]
    made.says = {"claim-node1": json.dumps(MODEL | {"inUse": True}) + "\nnoise\n", "claim-node2": ""}
    return made


def test_list_shows_every_cache_and_leaves_no_pod(api: FakeApi) -> None:
    status, text = Shell(api).run("cache", "list")
    assert status == 0
    header, row = text.splitlines()
    assert header.split() == ["NODE", "KEY", "SIZE", "USED", "IN", "USE", "SOURCE"]
    assert row.split() == ["node1", KEY, "3", "GiB", "5m", "yes", "hf://org/repo:Q8_0"]
    assert [one["spec"]["containers"][0]["command"][3:5] for one in api.created] == [["cache", "list"]] * 2
    assert sorted(api.deleted) == sorted(one["metadata"]["name"] for one in api.created)
    for pod in api.created:
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["automountServiceAccountToken"] is False


def test_one_node_can_be_meant(api: FakeApi) -> None:
    status, text = Shell(api).run("cache", "list", "--node", "node1", "-o", "json")
    assert status == 0
    assert json.loads(text) == [MODEL | {"inUse": True, "node": "node1"}]
    assert len(api.created) == 1


def test_a_node_without_a_claim_is_refused(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert Shell(api).run("cache", "list", "--node", "node3")[0] == 1
    assert "does not use the cache of node3" in capsys.readouterr().err
    api.claims = []
    assert Shell(api).run("cache", "list")[0] == 1
    assert "uses no node's cache" in capsys.readouterr().err


def test_verify_fails_when_a_file_is_damaged(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {"event": "verified", "key": KEY, "ok": False, "message": "x.gguf has the digest sha256:b, not sha256:a"}
    api.says = {"claim-node1": json.dumps(wrong), "claim-node2": json.dumps(wrong | {"ok": True, "message": None})}
    status, text = Shell(api).run("cache", "verify", "--key", KEY)
    assert status == 1
    assert f"node1: {KEY} x.gguf has the digest sha256:b, not sha256:a" in text
    assert f"node2: {KEY} is whole" in text
    assert "not what it should be" in capsys.readouterr().err
    assert api.created[0]["spec"]["containers"][0]["command"][3:6] == ["cache", "verify", f"--key={KEY}"]


def test_clear_tells_what_went(api: FakeApi) -> None:
    lines = [{"event": "removed", "key": KEY, "source": "hf://x", "bytes": 1024**3}, {"event": "cleared", "bytes": 0}]
    api.says = {"claim-node1": "\n".join(map(json.dumps, lines)), "claim-node2": ""}
    status, text = Shell(api).run("cache", "clear")
    assert status == 0
    assert text.splitlines()[0] == f"node1: {KEY} removed, 1 GiB of hf://x"


def test_a_pod_that_fails_is_told_by_node(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    failed = {"event": "failed", "failure": "OutOfSpace", "message": "the cache cannot be written to", "retry": False}
    api.says = {"claim-node1": json.dumps(failed), "claim-node2": ""}
    assert Shell(api).run("cache", "list")[0] == 1
    assert "node1: the cache cannot be written to" in capsys.readouterr().err
    assert len(api.deleted) == 2


def test_prefetch_is_the_operators_work(api: FakeApi) -> None:
    api.deployments[0]["spec"]["model"] = {"source": "hf://org/repo:Q8_0", "prefetch": {"nodeSelector": {"old": "1"}}}
    status, _ = Shell(api).run("cache", "prefetch", "gemma", "--select", "models=yes")
    assert status == 0
    ((path, body),) = api.patches
    assert path.endswith("/modeldeployments/gemma")
    assert body["spec"]["model"] == {"prefetch": {"nodeSelector": {"models": "yes", "old": None}}}
    assert api.created == []


def test_prefetch_needs_a_source_that_is_fetched(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert Shell(api).run("cache", "prefetch", "gemma")[0] == 1
    assert "gemma is not fetched" in capsys.readouterr().err
    assert Shell(api).run("cache", "prefetch")[0] == 2

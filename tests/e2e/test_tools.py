"""`paddock doctor` and `paddock top` on the real cluster."""

import json
import threading

import pytest

from e2e import kit
from support.cluster import RTX_4080, eventually, kubectl

pytestmark = pytest.mark.e2e


def test_the_doctor_finds_a_sound_cluster_sound_and_an_image_that_cannot_be_pulled(namespace: str) -> None:
    well = json.loads(kit.run("paddock", "doctor", "-o", "json").stdout)
    wrong = [one for one in well["findings"] if one["state"] == "wrong"]
    assert wrong == []
    told = {one["check"]: one for one in well["findings"]}
    assert told["rights"]["message"] == "the operator has all its rights"
    assert told["clock"]["state"] == "ok"
    assert "nvidia" in told["runtime class"]["message"]
    assert not any("not checked" in one["message"] for one in well["findings"])

    pod = kit.client_pod("no-such-image", "node1", "pass")
    pod["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "paddock", "app.kubernetes.io/component": "test"}
    pod["spec"]["containers"][0]["image"] = "127.0.0.1:1/no/such:image"
    kit.put(namespace, pod)
    try:

        def found() -> str | None:
            done = kit.run("paddock", "doctor", "--node", "node1", check=False)
            lines = [line for line in done.stdout.splitlines() if "cannot be pulled" in line]
            return lines[0] if done.returncode == 1 and lines else None

        line = eventually("the image is told", found, 60)
        assert line.startswith("wrong    images")
        assert f"node1: 127.0.0.1:1/no/such:image cannot be pulled for {namespace}/no-such-image" in line
        assert "-> check the name" in line
    finally:
        kubectl("delete", "pod", "no-such-image", "-n", namespace, "--grace-period=0", "--force")


def test_top_shows_memory_and_tokens_of_a_server_at_work(namespace: str) -> None:
    kit.put(namespace, kit.deployment("busy", {"uuid": RTX_4080}))
    kit.wait_available(namespace, "busy")
    address, ended = kit.address_of(namespace, "busy"), threading.Event()

    def talk() -> None:
        while not ended.is_set():
            kit.chat(address)

    talker = threading.Thread(target=talk)
    talker.start()
    try:

        def seen() -> dict[str, object] | None:
            told = json.loads(kit.run("paddock", "top", "--once", "--interval", "1.5", "-o", "json").stdout)
            mine = [one for one in told["servers"] if one["deployment"] == f"{namespace}/busy"]
            return told if mine and (mine[0]["tokensPerSecond"] or 0) > 0 and mine[0]["observed"] else None

        told = eventually("its tokens are counted", seen, 40)
        assert isinstance(told["gpus"], list)
        card = next(one for one in told["gpus"] if one["gpu"] == kit.GPU_4080)
        assert card["used"] >= 448 * kit.MIB, "a context at least"
        text = kit.run("paddock", "top", "--once", "--interval", "1").stdout
        row = next(line for line in text.splitlines() if "RTX 4080" in line)
        assert f"{namespace}/busy" in row
        assert "not all could be asked" not in text
    finally:
        ended.set()
        talker.join()

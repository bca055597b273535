"""A context that the spec leaves open: the largest that the chosen card has room for, and the server really has it."""

import re

import pytest

from e2e import kit
from support.cluster import GTX_1060, eventually, kubectl

pytestmark = pytest.mark.e2e
LONG = "file:///models/e2e/long.gguf"
TRAINED = 262_144
BATCH = {"batch": 8192, "ubatch": 8192}


def arguments(namespace: str, name: str) -> list[str]:
    (pod,) = kit.pods(namespace, name)
    return list(pod["spec"]["containers"][0]["args"])


def context_of(namespace: str, name: str) -> int:
    one = kit.mdep(namespace, name)
    length = int(one["status"]["context"]["length"])
    assert [placed["contextLength"] for placed in one["status"]["placements"]] == [length]
    given = arguments(namespace, name)
    assert given[given.index("-c") + 1] == str(length)
    return length


def test_auto_takes_what_the_card_has_left_and_a_remade_pod_keeps_it(free_cards: str) -> None:
    namespace, card = free_cards, {"uuid": GTX_1060}
    kit.write_tiny(kit.models("node1") / "long.gguf", TRAINED)
    kit.put(namespace, kit.deployment("beside", card, serving=kit.THIRD))
    kit.wait_condition(namespace, "beside", "Placed", "True")
    auto = kit.deployment("auto", card, source=LONG, serving={"contextLength": "Auto", **BATCH})
    kit.put(namespace, auto)
    kit.wait_available(namespace, "beside", "auto", seconds=120)
    chosen = context_of(namespace, "auto")
    assert 4096 < chosen < TRAINED
    kit.nothing_double_booked()
    (pod,) = kit.pods(namespace, "auto")
    log = kubectl("logs", pod["metadata"]["name"], "-n", namespace, "-c", "server", "--limit-bytes=262144")
    assert re.search(rf"n_ctx +[=:] {chosen}\b", log), log[:4000]

    kubectl("delete", "mdep", "beside", "-n", namespace)
    kubectl("delete", "pod", pod["metadata"]["name"], "-n", namespace, "--wait=false")
    old = pod["metadata"]["uid"]
    eventually("a new pod", lambda: [x for x in kit.pods(namespace, "auto") if x["metadata"]["uid"] != old], 90)
    kit.wait_available(namespace, "auto", seconds=120)
    assert context_of(namespace, "auto") == chosen  # although all of the card is free now

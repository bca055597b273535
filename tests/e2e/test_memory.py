"""What is reserved on a card never exceeds it; who has to wait is told why, costs nothing, and starts by itself."""

import re
import time

import pytest

from e2e import api, kit
from support.cluster import GTX_1060, eventually, kubectl

pytestmark = pytest.mark.e2e
QUIET_SECONDS = 10.0


def versions(namespace: str, name: str) -> dict[str, str]:
    """Give the resourceVersion of a deployment and of every GPU."""
    found = {gpu: one["metadata"]["resourceVersion"] for gpu, one in kit.gpus().items()}
    return {**found, name: kit.mdep(namespace, name)["metadata"]["resourceVersion"]}


def test_the_third_model_waits_until_one_of_two_is_deleted(free_cards: str) -> None:
    namespace = free_cards
    card = {"uuid": GTX_1060}
    kit.put(namespace, *(kit.deployment(name, card, serving=kit.THIRD) for name in ("first", "second")))
    for name in ("first", "second"):
        kit.wait_condition(namespace, name, "Placed", "True")
    kit.put(namespace, kit.deployment("third", card, serving=kit.THIRD))
    told = kit.wait_condition(namespace, "third", "Placed", "False", "WaitingForDevice")["message"]
    for part in ("0 of 1 named devices fit: 1 NoRoom", f"for {namespace}/first", " short"):
        assert part in told
    assert re.search(r"needs 2\.(5|75) GiB", told), "what was seen of others on the card counts, too"
    assert kit.pods(namespace, "third") == []
    assert len(kit.reservations(namespace, kit.GPU_1060)) == 2
    kit.wait_available(namespace, "first", "second", seconds=120)
    kit.nothing_double_booked()
    check_quiet(namespace)

    kubectl("delete", "mdep", "first", "-n", namespace, "--wait=false")
    device = kit.device_of(kit.wait_available(namespace, "third")["third"])
    assert device["gpu"] == kit.GPU_1060
    held = kit.reservations(namespace, kit.GPU_1060)
    assert {one["deployment"] for one in held.values()} == {f"{namespace}/second", f"{namespace}/third"}
    kit.nothing_double_booked()


def check_quiet(namespace: str) -> None:
    """Assert that waiting writes nothing: neither the one that waits nor any GPU changes."""
    settled = time.monotonic() + 5  # what the two that have just become Ready still change
    before, since = versions(namespace, "third"), time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        time.sleep(0.5)
        now = versions(namespace, "third")
        if now != before:
            assert time.monotonic() < settled, f"{before} became {now}"
            before, since = now, time.monotonic()


def test_replicas_of_one_deployment_prefer_cards_of_their_own(free_cards: str) -> None:
    namespace = free_cards
    kit.put(namespace, kit.deployment("three", replicas=3))
    one = kit.wait_available(namespace, "three")["three"]
    used = {device["gpu"] for placed in one["status"]["placements"] for device in placed["devices"]}
    assert used == {kit.GPU_1060, kit.GPU_4080, kit.GPU_6000}
    assert one["status"]["readyReplicas"] == 3
    selector = kit.mdep(namespace, "three")["status"]["selector"]
    assert len(api.listed("pods", namespace, selector)) == 3
    kubectl("scale", "mdep", "three", "-n", namespace, "--replicas=1")
    eventually("one server left", lambda: len(kit.pods(namespace)) == 1 == len(kit.reservations(namespace)), 90)
    kit.wait_available(namespace, "three")

"""Priority, moves, preferences, budgets and the queue on the real cluster; and that a plan says what then happens."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import api, kit
from support.cluster import GTX_1060, apply, eventually, kubectl

pytestmark = pytest.mark.e2e
NODE1 = {"nodeSelector": {"kubernetes.io/hostname": "node1"}, "allowIntegrated": "Never"}


@pytest.fixture
def rule(free_cards: str) -> Iterator[Callable[..., None]]:
    """Give what makes or changes the PlacementPolicy of the test's namespace."""

    def say(**spec: Any) -> None:
        whole = {"namespaces": [free_cards], **spec}
        meta = {"name": free_cards}
        apply({"apiVersion": "paddock.dev/v1alpha1", "kind": "PlacementPolicy", "metadata": meta, "spec": whole})

    yield say
    kubectl("delete", "placementpolicy", free_cards, "--ignore-not-found")


def where(namespace: str, name: str) -> str:
    return str(kit.device_of(kit.mdep(namespace, name))["gpu"])


def place_of(namespace: str, name: str) -> int | None:
    found: int | None = kit.mdep(namespace, name).get("status", {}).get("queue", {}).get("position")
    return found


def events(namespace: str, name: str) -> set[str]:
    """Give the reasons of the Events about a deployment."""
    text = kubectl("get", "events", "-n", namespace, "-o", "json", "--field-selector", f"involvedObject.name={name}")
    return {one["reason"] for one in json.loads(text)["items"]}


def test_priority_evicts_and_the_queue_keeps_its_order(rule: Callable[..., None], free_cards: str) -> None:
    namespace, card = free_cards, {"uuid": GTX_1060}
    rule(disruption={"eviction": True, "minInterval": "0s"})
    kit.put(namespace, kit.deployment("low", card, serving=kit.MOST))
    kit.wait_available(namespace, "low")
    kit.put(namespace, kit.deployment("high", card, serving=kit.MOST, priority=5))
    told = kit.wait_condition(namespace, "low", "Placed", "False", "Displaced")["message"]
    assert f"left {kit.GPU_1060} for {namespace}/high" in told
    last = kit.mdep(namespace, "low")["status"]["lastDisruption"]["message"]
    assert "priority 0, idle" in last, "the server was asked, and has no request"
    kit.put(namespace, kit.deployment("middle", card, serving=kit.THIRD, priority=3))
    kit.wait_available(namespace, "high")
    kit.nothing_double_booked()
    assert {one["deployment"] for one in kit.reservations(namespace).values()} == {f"{namespace}/high"}
    places = {"middle": 1, "low": 2}
    eventually("places in the queue", lambda: {name: place_of(namespace, name) for name in places} == places, 20)
    assert "MakingRoom" in events(namespace, "high")
    assert "Displaced" in events(namespace, "low")
    kubectl("delete", "mdep", "high", "-n", namespace, "--wait=false")
    kit.wait_condition(namespace, "middle", "Placed", "True")
    eventually("place of the last", lambda: place_of(namespace, "low") == 1, 20)
    kit.nothing_double_booked()


def test_one_moves_so_that_a_large_one_fits_and_serves_all_the_time(rule: Callable[..., None], free_cards: str) -> None:
    """The small one prefers the large card, and falls back to the other."""
    namespace = free_cards
    rule(disruption={"moves": True, "minInterval": "0s"})
    liked = [{"weight": 10, "selector": {"names": ["*RTX 4080*"]}}]
    kit.put(namespace, kit.deployment("small", serving=kit.MOST, placement={**NODE1, "preferences": liked}))
    kit.wait_available(namespace, "small")
    assert where(namespace, "small") == kit.GPU_4080
    kit.put(namespace, kit.deployment("large", serving=kit.LARGE, placement=NODE1))
    ready = []

    def served() -> bool:
        ready.append(kit.mdep(namespace, "small")["status"]["readyReplicas"])
        return kit.condition(kit.mdep(namespace, "large"), "Available")["status"] == "True"

    eventually("the large one serves", served, 60)
    assert min(ready) == 1
    assert (where(namespace, "small"), where(namespace, "large")) == (kit.GPU_1060, kit.GPU_4080)
    assert kit.chat(kit.address_of(namespace, "small"))[0] == 200
    last = kit.mdep(namespace, "small")["status"]["lastDisruption"]
    assert (last["kind"], last["by"]) == ("Moved", f"{namespace}/large")
    kit.nothing_double_booked()


def test_budgets_of_a_card_and_of_a_namespace(rule: Callable[..., None], free_cards: str) -> None:
    namespace, card = free_cards, {"uuid": GTX_1060}
    kubectl("patch", "gpu", kit.GPU_1060, "--type=merge", "-p", '{"spec": {"budget": "3Gi"}}')
    try:
        kit.put(namespace, *(kit.deployment(name, card, serving=kit.THIRD) for name in ("first", "second")))
        kit.wait_all(namespace, ["first", "second"], "one waits", lambda one: kit.condition(one, "Placed")["status"])
        held = kit.reservations(namespace)
        assert len(held) == 1
        (waits,) = {"first", "second"} - {one["deployment"].partition("/")[2] for one in held.values()}
        told = kit.wait_condition(namespace, waits, "Placed", "False", "WaitingForDevice")["message"]
        assert "MiB left of 3 GiB" in told
        rule(maxGpuMemory="4Gi")
    finally:
        kubectl("patch", "gpu", kit.GPU_1060, "--type=merge", "-p", '{"spec": {"budget": "Auto"}}')
    told = kit.wait_condition(namespace, waits, "Placed", "False", message="that it allows over all GPUs")["message"]
    assert f"PlacementPolicy {namespace} has " in told
    assert "left of 4 GiB" in told
    rule(maxGpuMemory="6Gi")
    kit.wait_condition(namespace, waits, "Placed", "True")
    kit.nothing_double_booked()


def test_a_plan_says_what_then_happens(free_cards: str, tmp_path: Path) -> None:
    namespace = free_cards
    wish = {**NODE1, "policy": "BestFit"}
    wanted = [kit.deployment(f"m{number}", serving=kit.MOST, placement=wish) for number in range(4)]
    file = tmp_path / "wanted.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": wanted}))
    done = kit.run("paddock", "plan", "-f", str(file), "-n", namespace, "--need", "5.25Gi", "-o", "json", check=False)
    plan = {one["name"]: one["gpu"] for one in json.loads(done.stdout)}
    assert plan["m3"] is None, "it does not fit"
    for one in wanted:
        kit.put(namespace, one)
        kit.wait_all(namespace, [one["metadata"]["name"]], "decided", decided)
    happened = {}
    for name in plan:
        placed = kit.mdep(namespace, name)["status"].get("placements", [])
        happened[name] = placed[0]["devices"][0]["gpu"] if placed else None
    assert happened == plan


def decided(one: api.Object) -> bool:
    return bool(kit.condition(one, "Placed")["status"] in ("True", "False"))

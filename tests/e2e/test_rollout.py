"""Changes of a spec reach what runs: without a gap where the card has room for both, else by release and create."""

import json
import time
from collections.abc import Callable

import pytest

from e2e import api, kit
from support.cluster import GTX_1060, RTX_4080, eventually, kubectl

pytestmark = pytest.mark.e2e


def patch(namespace: str, name: str, spec: api.Object) -> None:
    """Change a spec."""
    kit.run("kubectl", "patch", "mdep", name, "-n", namespace, "--type=merge", "-p", json.dumps({"spec": spec}))


def new_pod(namespace: str, name: str, old: str) -> api.Object | None:
    """Give the pod that is not the old one."""
    return next((pod for pod in kit.pods(namespace, name) if pod["metadata"]["name"] != old), None)


def without_gap(namespace: str, name: str, done: Callable[[], bool], seconds: float = 90) -> None:
    """Ask the Service for a completion again and again until `done`: each one must be answered."""
    address = kit.address_of(namespace, name)
    end = time.monotonic() + seconds
    answers = 0
    while not done():
        assert time.monotonic() < end, f"not done within {seconds:.0f} s"
        status, answer = kit.chat(address)
        assert status == 200, answer
        answers += 1
    assert answers > 1


def test_a_change_surges_where_both_fit_and_else_releases_first(free_cards: str) -> None:
    namespace = free_cards
    kit.put(
        namespace,
        kit.deployment("surge", {"uuid": RTX_4080}),
        kit.deployment("release", {"uuid": GTX_1060}, serving=kit.MOST),
    )
    found = kit.wait_available(namespace, "surge", "release")
    old = {name: kit.device_of(one)["podName"] for name, one in found.items()}
    patch(namespace, "release", {"serving": {"contextLength": 261888}})
    patch(namespace, "surge", {"serving": {"contextLength": 1024}})
    without_gap(namespace, "surge", lambda: surged(namespace, old["surge"]))
    check_released(namespace, old["release"])
    found = kit.wait_available(namespace, "surge", "release")
    assert kit.device_of(found["surge"])["gpu"] == kit.GPU_4080
    assert kit.device_of(found["release"])["gpu"] == kit.GPU_1060
    eventually("one pod each", lambda: len(kit.pods(namespace)) == 2 == len(kit.reservations(namespace)), 90)
    kit.nothing_double_booked()


def surged(namespace: str, old: str) -> bool:
    """Tell whether the successor serves; until then the old pod must be there and Ready."""
    there = {pod["metadata"]["name"]: pod for pod in kit.pods(namespace, "surge")}
    if any(kit.pod_ready(pod) for name, pod in there.items() if name != old):
        return True
    assert old in there
    assert "deletionTimestamp" not in there[old]["metadata"]
    assert kit.pod_ready(there[old])
    return False


def check_released(namespace: str, old: str) -> None:
    """Assert that the successor was made after the old pod's reservation was given back."""
    successor = eventually("a successor on the full card", lambda: new_pod(namespace, "release", old), 90)
    assert old not in {pod["metadata"]["name"] for pod in kit.pods(namespace, "release")}
    assert set(kit.reservations(namespace, kit.GPU_1060)) == {successor["metadata"]["name"]}


def test_suspend_scale_and_delete(namespace: str) -> None:
    kit.put(namespace, kit.deployment("one", {"uuid": RTX_4080}), kit.deployment("two", {"uuid": RTX_4080}))
    kit.wait_available(namespace, "one", "two")
    assert len(kit.addresses(namespace, "one")) == 1
    patch(namespace, "one", {"suspend": True})
    kubectl("scale", "mdep", "two", "-n", namespace, "--replicas=3")
    suspended = kit.wait_condition(namespace, "one", "Available", "False", "Suspended")
    assert suspended["message"] == "spec.suspend is true"
    eventually("the suspended server is gone", lambda: not kit.pods(namespace, "one"), 60)
    two = kit.wait_available(namespace, "two")["two"]
    assert [one["replica"] for one in two["status"]["placements"]] == [0, 1, 2]
    eventually("reservations of three servers", lambda: len(kit.reservations(namespace)) == 3)
    assert not kit.addresses(namespace, "one")

    patch(namespace, "one", {"suspend": False})
    kubectl("scale", "mdep", "two", "-n", namespace, "--replicas=0")
    kit.wait_available(namespace, "one", "two")
    eventually("none of the scaled servers is left", lambda: not kit.pods(namespace, "two"), 60)
    assert kit.mdep(namespace, "two")["status"]["replicas"] == 0

    kubectl("delete", "mdep", "one", "two", "-n", namespace, "--wait=false")
    gone = lambda: not kit.pods(namespace) and not kit.reservations(namespace)  # noqa: E731 a condition to wait for
    eventually("pods and reservations of the deleted are gone", gone, 60)
    eventually("Services are gone", lambda: not api.listed("services", namespace), 30)

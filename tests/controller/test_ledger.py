"""The fleet that follows single changes is always the one that all GPU objects together give."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from paddock.api.gpu import Reservation
from paddock.controller.cluster import Cluster, ClusterError
from paddock.controller.ledger import ConflictError, Ledger
from paddock.controller.settings import Settings
from paddock.core.fleet import Fleet, Node

JSON = dict[str, Any]
GIB = 1024**3
SETTINGS = Settings.from_environment({"PADDOCK_NAMESPACE": "p", "PADDOCK_POD_NAME": "o"})
GPUS, PODS, NODES = ["a", "b", "c"], ["x/one-0", "x/two-0", "y/one-0"], ["node1", "node2"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["applied", "booked", "assumed", "released", "gone", "observed", "resident", "node", "refused"]
        ),
        st.sampled_from(GPUS),
        st.sampled_from(PODS),
        st.sampled_from(NODES),
    ),
    min_size=3,
    max_size=25,
)


class Store:
    """In place of the API server: keeps GPU objects, and refuses a write when it was told to."""

    def __init__(self) -> None:
        self.version = 0
        self.uids: dict[str, str] = {}
        self.objects: dict[str, JSON] = {}
        self.refuse = False

    def write(self, name: str, status: JSON | None) -> JSON:
        self.version += 1
        uid = self.uids.setdefault(name, f"uid-{self.version}")
        body: JSON = {"metadata": {"name": name, "uid": uid, "resourceVersion": str(self.version)}}
        self.objects[name] = body if status is None else {**body, "status": status}
        return self.objects[name]

    async def put(self, path: str, body: JSON) -> JSON:
        refuse, self.refuse = self.refuse, False
        if refuse:
            raise ClusterError(500, "InternalError", "told so")
        return self.write(path.split("/")[-2], body["status"])

    async def post(self, _: str, body: JSON) -> JSON:
        return self.write(body["metadata"]["name"], None)


def status(node: str, pods: list[str]) -> JSON:
    return {
        "node": node,
        "name": "CUDA0",
        "type": "Discrete",
        "backends": ["CUDA"],
        "memory": {"total": "16Gi", "free": "12Gi"},
        "reservations": [booking(pod).to_dict() for pod in pods],
    }


def booking(pod: str) -> Reservation:
    return Reservation(pod=pod, deployment=pod.rpartition("-")[0], uid="u", bytes=GIB, since="2026-01-01T00:00:00Z")


class Play:
    """A ledger, and what happens to it."""

    def __init__(self) -> None:
        self.store, self.nodes = Store(), {"node1": Node("node1")}
        self.ledger = Ledger(cast("Cluster", self.store), SETTINGS, lambda: None, lambda _: None)

    async def step(self, what: str, gpu: str, pod: str, node: str) -> None:
        ledger, known = self.ledger, gpu in self.ledger.stored()
        match what:
            case "applied":
                ledger.apply(self.store.write(gpu, status(node, [])))
            case "booked":
                ledger.apply(self.store.write(gpu, status(node, [pod])))
            case "assumed" if known:
                ledger.assume(gpu, booking(pod))
                with contextlib.suppress(ConflictError, ClusterError):
                    await ledger.commit(gpu, pod)
            case "released":
                with contextlib.suppress(ClusterError):
                    await ledger.release(pod, keep=gpu)
            case "gone":
                ledger.forget(gpu, self.store.uids.pop(gpu, ""))
            case "observed" if known:
                seen = ledger.stored()[gpu].model_copy(update={"description": node})
                with contextlib.suppress(ClusterError):
                    await ledger.observe(gpu, seen)
            case "resident":
                ledger.set_resident(pod, resident=node == "node1")
            case "node":
                self.nodes[node] = Node(node, ready=gpu == "a")
            case "refused":
                self.store.refuse = True
            case _:
                pass  # Only what is known can be booked or observed.

    def anew(self) -> Fleet:
        """Make the fleet from all entries."""
        entries = [entry for _, entry in sorted(self.ledger._entries.items())]
        found = [device for entry in entries if (device := self.ledger._device(entry)) is not None]
        return Fleet(dict(self.nodes), tuple(found), SETTINGS.reserve_bytes, SETTINGS.host_budget)


@given(STEPS)
def test_the_fleet_is_what_all_gpu_objects_give_after_every_change(steps: list[tuple[str, str, str, str]]) -> None:
    async def play() -> None:
        one = Play()
        for step in steps:
            await one.step(*step)
            fleet = one.ledger.fleet(one.nodes)
            assert fleet == one.anew(), step
            assert fleet is one.ledger.fleet(one.nodes), "without a change it is the same"
            for entry in one.ledger._entries.values():
                assert all(entry.name in one.ledger._places[booked.pod] for booked in entry.reservations)
            assert {gpu: at for at, gpu in enumerate(each.gpu for each in fleet.devices)} == fleet.index.where

    asyncio.run(play())


@given(STEPS, st.sampled_from(PODS))
def test_a_pod_that_is_released_has_no_reservation_anywhere(steps: list[tuple[str, str, str, str]], pod: str) -> None:
    async def play() -> None:
        one = Play()
        for step in steps:
            await one.step(*step)
        one.store.refuse = False
        await one.ledger.release(pod)
        assert pod not in {booked.pod for _, booked in one.ledger.reservations()}

    asyncio.run(play())


def test_a_snapshot_stays_as_it_was_when_a_node_changes() -> None:
    one = Play()
    one.ledger.apply(one.store.write("a", status("node1", [])))
    before = one.ledger.fleet(one.nodes)
    one.nodes["node1"] = Node("node1", ready=False)
    assert before.nodes["node1"].ready
    assert not one.ledger.fleet(one.nodes).nodes["node1"].ready

"""What happens between reading and writing: played step by step, without an API server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast
from unittest.mock import Mock

from paddock.api.gpu import Reservation
from paddock.controller.cluster import Cluster, ClusterError
from paddock.controller.controller import Controller
from paddock.controller.health import Health
from paddock.controller.ledger import ConflictError, Ledger
from paddock.controller.parts import Parts
from paddock.controller.reconcile import Reconciler
from paddock.controller.settings import Settings
from paddock.controller.store import World
from paddock.core.inventory import in_words

JSON = dict[str, Any]
GIB = 1024**3
SETTINGS = Settings.from_environment({"PADDOCK_NAMESPACE": "p", "PADDOCK_POD_NAME": "o"})


def deployment(generation: int, version: int) -> JSON:
    return {
        "apiVersion": "paddock.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {
            "namespace": "x",
            "name": "gemma",
            "uid": "u",
            "generation": generation,
            "resourceVersion": str(version),
        },
        "spec": {"model": {"source": "file:///models/gemma.gguf"}, "suspend": generation % 2 == 1},
    }


class Answers:
    """In place of the API server: gives prepared answers."""

    def __init__(self, **answers: list[JSON]) -> None:
        self._answers = answers
        self.sent: list[tuple[str, str, Any]] = []

    def __getattr__(self, method: str) -> Any:
        async def answer(path: str, body: object = None, *_: object) -> JSON:
            self.sent.append((method, path, body))
            return self._answers[method].pop(0)

        return answer


def reconciler(answers: Answers, world: World) -> tuple[Reconciler, list[tuple[str, float]]]:
    looks: list[tuple[str, float]] = []
    cluster = cast("Cluster", answers)
    ledger = Ledger(cluster, SETTINGS, lambda: None, lambda _: None)
    health = Health(cluster, ledger, world, SETTINGS, lambda _key, _after: None, lambda _: None)
    no_holders = Mock(holders=Mock(replace=lambda steps: steps))
    parts = Parts(ledger, Mock(), Mock(), Mock(), health, Mock(), no_holders, lambda: None)
    made = Reconciler(cluster, SETTINGS, world, parts, lambda key, after: looks.append((key, after)), lambda _: False)
    return made, looks


async def test_a_spec_that_changes_just_before_the_status_is_written_is_looked_at_again() -> None:
    world = World()
    world.deployments.apply("ADDED", deployment(1, 10))
    changed = deployment(2, 12)  # the user's change had version 11
    made, looks = reconciler(Answers(patch=[changed]), world)
    known = world.deployments.get("x/gemma")
    assert known is not None
    await made._report(known, None, None)
    assert looks == [("x/gemma", 0.0)]
    assert not world.deployments.apply("MODIFIED", deployment(2, 11)), "the change's own event comes too late to help"


async def test_a_status_that_meets_no_change_is_the_end_of_it() -> None:
    world = World()
    world.deployments.apply("ADDED", deployment(1, 10))
    made, looks = reconciler(Answers(patch=[deployment(1, 11)]), world)
    known = world.deployments.get("x/gemma")
    assert known is not None
    await made._report(known, None, None)
    assert looks == []


THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z"


def gpu(version: int, *pods: str, since: str = THEN) -> JSON:
    reservations = [
        {"pod": pod, "deployment": pod.rpartition("-")[0], "uid": "u", "bytes": GIB, "since": since} for pod in pods
    ]
    return {
        "metadata": {"name": "node1-a", "uid": "one", "resourceVersion": str(version)},
        "status": {
            "node": "node1",
            "index": 0,
            "name": "CUDA0",
            "description": "card",
            "backends": ["CUDA"],
            "rawIndex": 0,
            "type": "Discrete",
            "memory": {"total": "16384Mi", "free": "16384Mi", "reserved": f"{1024 * len(pods)}Mi"},
            "reservations": reservations,
            "deployments": sorted({one["deployment"] for one in reservations}),
            "usedBy": in_words(sorted({one["deployment"] for one in reservations})),
            "conditions": [],
        },
    }


async def test_a_reservation_that_a_user_takes_while_we_write_is_told_as_lost() -> None:
    """Our own write meets the user's: what is lost is seen in the answer, and the watch has nothing new to say."""
    lost: list[frozenset[str]] = []

    class Conflict(Answers):
        async def put(self, path: str, body: object) -> JSON:
            self.sent.append(("put", path, body))
            if len(self.sent) == 1:
                raise ClusterError(409, "Conflict", "the object has been modified")
            return gpu(13)

    cluster = Conflict(get=[gpu(12)])
    ledger = Ledger(cast("Cluster", cluster), SETTINGS, lambda: None, lost.append)
    ledger.apply(gpu(10, "x/gemma-0"))
    await ledger.release("x/other-0")
    status = ledger.stored()["node1-a"].model_copy(update={"description": "another name"})
    await ledger.observe("node1-a", status)
    assert lost == [frozenset({"x/gemma-0"})]
    ledger.apply(gpu(12))
    assert len(lost) == 1


async def test_a_reservation_that_was_made_anew_is_not_taken_off_for_the_old_ones_sake() -> None:
    """While the old one is taken off, another operator books the same pod again: the lost race must not undo that."""

    class Conflict(Answers):
        async def put(self, path: str, body: Any) -> JSON:
            self.sent.append(("put", path, body))
            raise ClusterError(409, "Conflict", "the object has been modified")

    cluster = Conflict(get=[gpu(12, "x/gemma-0", since=NOW)])
    ledger = Ledger(cast("Cluster", cluster), SETTINGS, lambda: None, lambda _: None)
    ledger.apply(gpu(10, "x/gemma-0"))
    await ledger.release("x/gemma-0", since=THEN)
    assert [one.since for _, one in ledger.reservations()] == [NOW]
    assert len(cluster.sent) == 2, "one write that failed, one look"
    assert ledger.booked("x/gemma-0", "node1-a")


async def test_a_reservation_that_is_given_up_while_it_is_written_does_not_stay() -> None:
    class Slow(Answers):
        async def put(self, path: str, body: Any) -> JSON:
            self.sent.append(("put", path, body))
            if len(self.sent) == 1:
                releasing.append(asyncio.create_task(ledger.release("x/gemma-0")))
                await asyncio.sleep(0)
                ledger.apply(gpu(11))  # news of somebody else's write, from before ours
            return {**gpu(11 + len(self.sent)), "status": body["status"]}

    releasing: list[asyncio.Task[None]] = []
    cluster = Slow()
    ledger = Ledger(cast("Cluster", cluster), SETTINGS, lambda: None, lambda _: None)
    ledger.apply(gpu(10))
    ledger.assume("node1-a", Reservation(pod="x/gemma-0", deployment="x/gemma", uid="u", bytes=GIB, since=NOW))
    with contextlib.suppress(ConflictError):
        await ledger.commit("node1-a", "x/gemma-0")
    await releasing[0]
    assert ledger.reservations() == []
    assert cluster.sent[-1][2]["status"]["reservations"] == []


async def test_a_pod_that_is_made_while_the_sweep_asks_for_it_keeps_its_reservation() -> None:
    class Late(Answers):
        async def is_gone(self, path: str, name: str, uid: str | None = None) -> bool:
            self.sent.append(("list", path, (name, uid)))
            made.world.making.add("x/gemma-0")
            return True

    cluster = Late()
    made = Controller(cast("Cluster", cluster), SETTINGS)
    made.ledger.apply(gpu(10, "x/gemma-0"))
    await made._sweeps.orphans(0.0)
    assert [method for method, *_ in cluster.sent] == ["list"]
    assert [one.pod for _, one in made.ledger.reservations()] == ["x/gemma-0"]


async def test_a_pod_of_another_operator_on_a_device_that_is_not_known_yet_is_no_error() -> None:
    cluster = Answers()
    ledger = Ledger(cast("Cluster", cluster), SETTINGS, lambda: None, lambda _: None)
    booking = Reservation(pod="x/gemma-0", deployment="x/gemma", uid="u", bytes=GIB, since=NOW)
    await ledger.rebook("node1-a", booking)
    assert ledger.reservations() == cluster.sent == []
    ledger.apply(gpu(10))
    assert not ledger.booked("x/gemma-0", "node1-a"), "once it is known its pods are looked at, and booked"

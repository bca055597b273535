"""What happens between reading and writing: played step by step, without an API server."""

from __future__ import annotations

from typing import Any, cast

from paddock.controller.cluster import Cluster, ClusterError
from paddock.controller.ledger import Ledger
from paddock.controller.parts import Parts
from paddock.controller.reconcile import Reconciler
from paddock.controller.settings import Settings
from paddock.controller.store import World

JSON = dict[str, Any]
GIB = 1024**3


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
    ledger = Ledger(cluster, 0, lambda: None, lambda _: None)
    parts = Parts(ledger, cast("Any", None), cast("Any", None), cast("Any", None))
    settings = Settings.from_environment({"PADDOCK_NAMESPACE": "p", "PADDOCK_POD_NAME": "o"})
    made = Reconciler(cluster, settings, world, parts, lambda key, after: looks.append((key, after)), lambda _: False)
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


def gpu(version: int, *pods: str) -> JSON:
    reservations = [
        {"pod": pod, "deployment": pod.rpartition("-")[0], "uid": "u", "bytes": GIB, "since": "2026-01-01T00:00:00Z"}
        for pod in pods
    ]
    return {
        "metadata": {"name": "node1-a", "resourceVersion": str(version)},
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
    ledger = Ledger(cast("Cluster", cluster), 0, lambda: None, lost.append)
    ledger.apply(gpu(10, "x/gemma-0"))
    await ledger.release("x/other-0")
    status = ledger.stored()["node1-a"].model_copy(update={"description": "another name"})
    await ledger.observe("node1-a", status)
    assert lost == [frozenset({"x/gemma-0"})]
    ledger.apply(gpu(12))
    assert len(lost) == 1

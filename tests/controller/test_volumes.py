"""Claims of model roots: whoever needs one has it, whatever is swept away, removed by hand or left from before."""

from __future__ import annotations

import asyncio
from itertools import chain, cycle, product
from typing import TYPE_CHECKING, Any, cast

import pytest

from paddock.controller import volumes as module
from paddock.controller.cluster import Cluster, ClusterError
from paddock.controller.volumes import VOLUMES, Volumes
from paddock.core.objects import root_claim, root_id, root_volume
from paddock.core.source import ModelRoot
from support.client import eventually
from support.pretend_kubelet import STRATEGIC

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from support.site import Site

JSON = dict[str, Any]
ROOT, NODE, NAMESPACE = ModelRoot(path="/models", host_path="/var/models"), "node1", "one"
CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
CLAIM = f"{CLAIMS}/{root_claim(ROOT, NODE, NAMESPACE)['metadata']['name']}"
VOLUME = f"{VOLUMES}/{root_volume(ROOT, NODE, NAMESPACE)['metadata']['name']}"
WANTED = NAMESPACE, root_id(ROOT)


class Turns:
    """In place of the API server: each request waits until it is its turn, before it is done and before it is told."""

    def __init__(self) -> None:
        self.objects: dict[str, JSON] = {}
        self.waiting: dict[str, asyncio.Future[None]] = {}
        """By the name of the task that waits."""
        self.number = 0

    async def turn(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.waiting[task.get_name()] = one = asyncio.get_running_loop().create_future()
        await one

    def put(self, path: str, body: JSON) -> JSON:
        self.number += 1
        self.objects[path] = {**body, "metadata": {**body["metadata"], "uid": f"uid-{self.number}"}}
        return self.objects[path]

    async def get(self, path: str) -> JSON:
        await self.turn()
        answer = self.objects.get(path)
        await self.turn()
        if answer is None:
            raise ClusterError(404, "NotFound", path)
        return answer

    async def list(self, path: str, _: JSON) -> list[JSON]:
        await self.turn()
        answer = [one for key, one in self.objects.items() if key.startswith(f"{path}/")]
        await self.turn()
        return answer

    async def post(self, path: str, body: JSON) -> JSON:
        await self.turn()
        key = f"{path}/{body['metadata']['name']}"
        there = key in self.objects
        answer = self.put(key, body) if not there else body
        await self.turn()
        if there:
            raise ClusterError(409, "AlreadyExists", key)
        return answer

    async def delete(self, path: str, uid: str | None = None) -> None:
        await self.turn()
        there = self.objects.get(path)
        if there is not None and uid in (None, there["metadata"]["uid"]):
            del self.objects[path]
        await self.turn()

    async def play(self, order: list[str], **work: Coroutine[Any, Any, None]) -> None:
        """Do all work; `order` names who has the next turns, unless only others wait. Afterwards they take turns."""
        tasks = [asyncio.create_task(one, name=name) for name, one in work.items()]
        names = chain(order, cycle(work))
        while not all(one.done() for one in tasks):
            for _ in range(5):
                await asyncio.sleep(0)
            if self.waiting:
                name = next(names)
                self.waiting.pop(name if name in self.waiting else next(iter(self.waiting))).set_result(None)
        for one in tasks:
            one.result()


def left_behind(store: Turns, kind: str) -> None:
    """Have a claim or volume of an earlier time."""
    claim, volume = root_claim(ROOT, NODE, NAMESPACE), root_volume(ROOT, NODE, NAMESPACE)
    if kind in ("bound", "claim alone"):
        status = {"phase": "Bound" if kind == "bound" else "Pending"}
        claim = store.put(CLAIM, {**claim, "status": status})
    if kind != "claim alone":
        owner = {"bound": claim["metadata"].get("uid"), "other's volume": "an earlier one"}.get(kind)
        reference = {**volume["spec"]["claimRef"], **({"uid": owner} if owner else {})}
        store.put(VOLUME, {**volume, "spec": {**volume["spec"], "claimRef": reference}})


MOST_TURNS = 10
"""No fewer than any of the two takes."""


@pytest.mark.parametrize("kind", ["", "bound", "claim alone", "volume alone", "other's volume"])
@pytest.mark.parametrize(("first", "second"), [("sweep", "deploy"), ("deploy", "sweep")])
def test_whoever_needs_a_claim_has_it_though_it_is_swept_away_meanwhile(kind: str, first: str, second: str) -> None:
    async def run(order: list[str]) -> None:
        store, used = Turns(), set[tuple[str, str]]()
        if kind:
            left_behind(store, kind)
        volumes = Volumes(cast("Cluster", store), {})

        async def deploy() -> None:
            await store.turn()
            used.add(WANTED)
            await volumes.ensure(ROOT, NODE, NAMESPACE)

        await store.play(order, sweep=volumes.sweep(lambda: used), deploy=deploy())
        claim, volume = store.objects.get(CLAIM), store.objects.get(VOLUME)
        assert claim is not None, "the claim is there"
        assert volume is not None, "and its volume"
        assert volume["spec"]["claimRef"].get("uid") in (None, claim["metadata"]["uid"]), "which binds it"

    for before, then in product(range(MOST_TURNS), range(MOST_TURNS)):
        asyncio.run(run([first] * before + [second] * then + [first] * MOST_TURNS))


def test_what_nobody_needs_goes_with_its_volume() -> None:
    async def run() -> None:
        store = Turns()
        left_behind(store, "bound")
        volumes = Volumes(cast("Cluster", store), {})
        await store.play([], sweep=volumes.sweep(set))
        assert not store.objects

    asyncio.run(run())


def test_a_claim_that_does_not_go_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMOVED_AFTER", (0.0, 0.0))

    async def run() -> None:
        store = Turns()
        left_behind(store, "bound")
        store.objects[CLAIM]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        volumes = Volumes(cast("Cluster", store), {})
        with pytest.raises(ClusterError, match="is being deleted") as raised:
            await store.play([], ensure=volumes.ensure(ROOT, NODE, NAMESPACE))
        assert raised.value.refused, "so that the deployment tells it"

    asyncio.run(run())


def test_a_volume_that_somebody_removed_is_made_again_for_the_pod_that_waits(site: Site) -> None:
    site.operator(resync_seconds=1)
    site.node()
    site.kubelet.paused = True
    site.apply("gemma")
    pod = eventually(lambda: next(iter(site.pods()), None), 20, "the pod is made")
    assert pod is not None
    claim = site.path(pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "persistentvolumeclaims")

    def is_in(phase: str) -> bool:
        return bool(site.client.do("GET", claim)["status"].get("phase") == phase)

    eventually(lambda: is_in("Bound"), 20, "the claim is bound")
    volume = f"{VOLUMES}/{site.client.do('GET', claim)['spec']['volumeName']}"
    before = site.client.do("GET", volume)["metadata"]["uid"]
    site.client.delete(volume)
    # Kubernetes keeps a volume that a claim has until somebody insists.
    insist = [{"op": "remove", "path": "/metadata/finalizers"}]
    site.client.call("PATCH", volume, insist, "application/json-patch+json")
    eventually(lambda: is_in("Lost"), 20, "Kubernetes has noticed")
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no volume"}
    path = f"{site.path(pod['metadata']['name'], 'pods')}/status"
    site.client.do("PATCH", path, {"status": {"conditions": [condition]}}, STRATEGIC)
    eventually(lambda: is_in("Bound"), 20, "it has a volume again")
    assert site.client.do("GET", volume)["metadata"]["uid"] != before
    site.kubelet.paused = False
    site.plane.background.loop.call_soon_threadsafe(site.kubelet.look, f"{site.namespace}/{pod['metadata']['name']}")
    site.wait_for("Available", "True", "Serving")

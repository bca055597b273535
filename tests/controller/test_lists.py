"""A list may be older than the events that come while it is read: it brings nothing back, and takes nothing away."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.controller.cluster import POLICIES, RUNTIME_CLASSES, Cluster, ClusterError, configuration
from paddock.controller.controller import Controller
from paddock.controller.settings import Settings
from paddock.controller.store import Latest
from paddock.controller.sweeps import ORPHAN_AGE
from support.harness import API, GPUS, NAMESPACE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from support.client import JSON
    from support.site import Site

OURS = "apiVersion", "paddock.dev/v1alpha1"


@dataclass(frozen=True)
class Kind:
    """One kind that is read by list and watched."""

    path: str
    body: JSON
    event: Callable[[Controller], Callable[[str | None, Mapping[str, Any]], None]]
    known: Callable[[Controller], set[str]]
    labels: dict[str, str] = field(default_factory=dict)


KINDS = {
    "nodes": Kind(
        "/api/v1/nodes",
        {"apiVersion": "v1", "kind": "Node"},
        lambda one: one.node_event,
        lambda one: set(one.world.nodes),
    ),
    "gpus": Kind(
        GPUS,
        {"apiVersion": OURS[1], "kind": "GPU"},
        lambda one: one.gpu_event,
        lambda one: {name for name, _ in one.ledger.seed(())},
    ),
    "runtime classes": Kind(
        RUNTIME_CLASSES,
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "runc"},
        lambda one: one.runtime_class_event,
        lambda one: one.world.runtime_classes - {"nvidia"},
    ),
    "policies": Kind(
        POLICIES,
        {"apiVersion": OURS[1], "kind": "PlacementPolicy", "spec": {"namespaces": ["nowhere"]}},
        lambda one: one.policies.apply,
        lambda one: set(one.world.rules),
    ),
    "agents": Kind(
        f"/api/v1/namespaces/{NAMESPACE}/pods",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "spec": {"nodeName": "nowhere", "containers": [{"name": "agent", "image": "x"}]},
        },
        lambda one: one.pod_event,
        lambda one: {pod.partition("/")[2] for pod in one.agents.pods()},
        {"app.kubernetes.io/component": "node-agent"},
    ),
    "deployments": Kind(
        f"{API}/namespaces/{NAMESPACE}/modeldeployments",
        {"apiVersion": OURS[1], "kind": "ModelDeployment", "spec": {"suspend": True, "model": {"source": "file:///m"}}},
        lambda one: one.deployment_event,
        lambda one: {key.partition("/")[2] for key in one.world.deployments.keys()},  # noqa: SIM118 no mapping
    ),
}


class Slow(Cluster):
    """Lists of one kind are answered, and then something happens before anybody has the answer."""

    meanwhile: tuple[str, Callable[[], None]] = ("", lambda: None)
    cut = ""
    """Requests that end so are never answered."""

    async def request(self, method: str, path: str, body: object = None, **more: Any) -> bytes:
        if self.cut and f"{method} {path}".endswith(self.cut):
            raise ClusterError(0, "Unreachable", "the connection was cut")
        return await super().request(method, path, body, **more)

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> JSON:
        answer = await super().get(path, params)
        kind, happens = self.meanwhile
        if path == kind and "fieldSelector" not in (params or {}):
            self.meanwhile = ("", lambda: None)
            happens()
        return answer


class Story:
    """Objects of one kind that come and go, as the API server has them and as an operator is told."""

    def __init__(self, site: Site, kind: str) -> None:
        self.kind, self.client, self._agents = KINDS[kind], site.client, kind == "agents"
        self.listed = self.kind.path
        if kind == "deployments":
            self.listed = f"{API}/modeldeployments"

    def make(self, name: str) -> JSON:
        path, meta = self.kind.path, {"name": name, "labels": self.kind.labels}
        made = self.client.do("POST", path, {**self.kind.body, "metadata": meta})
        if self._agents:
            status = {"phase": "Running", "podIP": "127.0.0.9", "podIPs": [{"ip": "127.0.0.9"}]}
            made = self.client.do("PATCH", f"{path}/{name}/status", {"status": status})
        return made

    def remove(self, name: str) -> None:
        self.client.delete(f"{self.kind.path}/{name}", gracePeriodSeconds=0)

    async def play(self, cluster: Slow, controller: Controller) -> None:
        tell, known = self.kind.event(controller), self.kind.known
        there = {name: self.make(name) for name in ("stays", "goes", "again")}
        for body in there.values():
            tell("ADDED", body)
        assert known(controller) == set(there)

        def happens() -> None:
            self.remove("goes")
            tell("DELETED", there["goes"])
            tell("ADDED", self.make("comes"))
            self.remove("again")
            tell("ADDED", self.make("again"))
            tell("DELETED", there["again"])  # kopf may hand it on after the start of another of that name

        cluster.meanwhile = (self.listed, happens)
        await controller._list_all()
        assert cluster.meanwhile[0] == "", "nothing happened"
        assert known(controller) == {"stays", "comes", "again"}
        self.remove("stays")
        await controller._list_all()
        assert known(controller) == {"comes", "again"}, "what events did not tell, lists do"


@contextlib.asynccontextmanager
async def started(site: Site) -> AsyncIterator[tuple[Slow, Controller]]:
    """Give a controller that is told only what the test tells it."""
    cluster = Slow(await configuration(str(site.plane.kubeconfig)))
    controller = Controller(cluster, Settings.from_environment(site.plane.environment(listen="")))
    try:
        await controller.start()
        yield cluster, controller
    finally:
        await controller.stop()
        await cluster.close()


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_changes_while_a_list_is_read_is_as_the_events_say(site: Site, kind: str) -> None:
    story = Story(site, kind)
    site.plane.stop_operators()

    async def play() -> None:
        async with started(site) as (cluster, controller):
            await story.play(cluster, controller)

    try:
        asyncio.run(play())
    finally:
        for name in ("stays", "goes", "comes", "again"):
            with contextlib.suppress(AssertionError):
                story.remove(name)


BOOKED = {"pod": "x/one-0", "deployment": "x/one", "uid": "u", "bytes": 1, "since": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("news", ["of the GPU alone", "that the node is gone, after a booking"])
def test_a_gpu_is_not_removed_for_what_is_not_known_yet(site: Site, news: str) -> None:
    """Another operator has made it: for a node that this one has not heard of, or it has booked something on it."""
    nodes, gpus = Story(site, "nodes"), Story(site, "gpus")
    site.plane.stop_operators()

    async def play() -> None:
        async with started(site) as (_, controller):
            node, made = nodes.make("far"), gpus.make("far-card")
            memory = {"total": "1Gi", "free": "1Gi", "reserved": "0Mi"}
            status = {"node": "far", "index": 0, "rawIndex": 0, "name": "CUDA0", "description": "card"}
            status |= {"type": "Discrete", "backends": ["CUDA"], "memory": memory, "conditions": []}
            path = f"{GPUS}/far-card/status"
            body = site.client.do("PATCH", path, {"status": status})
            if news == "of the GPU alone":
                controller.gpu_event("ADDED", body)
            else:
                controller.node_event("ADDED", node)
                site.client.do("PATCH", path, {"status": {"reservations": [BOOKED]}})
                controller.gpu_event("MODIFIED", body)
                controller.node_event("DELETED", node)
            with contextlib.suppress(ClusterError):
                await controller._take_node("far")
            there = site.client.get(f"{GPUS}/far-card")
            assert there is not None
            assert there["metadata"]["uid"] == made["metadata"]["uid"]

    try:
        asyncio.run(play())
    finally:
        gpus.remove("far-card")
        nodes.remove("far")


def test_memory_of_a_deployment_that_is_gone_is_free_at_once_though_nobody_knew_of_its_pod(site: Site) -> None:
    site.operator()
    site.node()
    site.plane.stop_operators()

    async def until(what: Callable[[], bool]) -> None:
        async with asyncio.timeout(ORPHAN_AGE / 3):
            while not what():  # noqa: ASYNC110 nothing tells of it
                await asyncio.sleep(0.02)

    async def play() -> None:
        async with started(site) as (cluster, controller):
            cluster.cut = f"POST /api/v1/namespaces/{site.namespace}/pods"
            made = site.apply()
            controller.deployment_event("ADDED", made)
            await until(lambda: bool(site.reservations()))
            site.client.delete(site.path("gemma"))
            controller.deployment_event("DELETED", made)
            await until(lambda: not site.reservations())

    asyncio.run(play())
    assert not site.all_pods()


STEPS = st.lists(st.tuples(st.sampled_from(["ends", "changes", "list"]), st.sampled_from("ab")), max_size=12)


@given(STEPS, st.randoms(use_true_random=False))
def test_whatever_comes_late_the_last_state_is_known_in_the_end(steps: list[tuple[str, str]], chance: Any) -> None:
    """Events of one object come in their order, those of two of one name in any, and lists at any time after."""
    alive: dict[str, dict[str, str]] = {}
    streams: dict[str, list[tuple[str | None, str, dict[str, str]]]] = {}
    for version, (what, name) in enumerate(steps, 1):
        before = alive.get(name)
        if what == "list" and alive:
            # What is in a list was told before, or is told after it.
            streams[f"list-{version}"] = [(None, key, dict(meta)) for key, meta in alive.items()]
        elif what == "ends" and before is not None:
            streams[before["uid"]].append(("DELETED", name, {**before, "resourceVersion": str(version)}))
            del alive[name]
        elif what == "changes":
            uid = before["uid"] if before is not None else f"uid-{version}"
            alive[name] = {"uid": uid, "resourceVersion": str(version)}
            streams.setdefault(uid, []).append(("MODIFIED", name, alive[name]))
    latest = Latest()
    while streams:
        key = chance.choice(sorted(streams))
        type_, name, meta = streams[key].pop(0)
        latest.take(type_, name, meta)
        if not streams[key]:
            del streams[key]
    assert dict(latest.missing(())) == {name: meta["uid"] for name, meta in alive.items()}

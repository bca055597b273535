"""What lists tell that events did not: all kinds are read, and handed on as events are."""

import asyncio
from typing import TYPE_CHECKING

from paddock.api.vocabulary import API_VERSION, Label
from paddock.controller.cluster import GPUS, JSON, RUNTIME_CLASSES, namespaced
from paddock.controller.lists import Lists
from paddock.core.holding import COMPONENT

if TYPE_CHECKING:
    from paddock.controller.controller import Controller
GROUP_PATH = f"/apis/{API_VERSION}"


class Listing:
    """Reads for one controller. What a list lacks is asked for by its name: it may be younger than the list."""

    def __init__(self, controller: "Controller", lists: Lists) -> None:
        self._to, self._lists = controller, lists

    async def fleet(self) -> None:
        """Read nodes, GPUs, RuntimeClasses, and where agents and holders are."""
        agents = {"labelSelector": f"{Label.COMPONENT} in ({Label.NODE_AGENT},{COMPONENT})"}
        nodes, classes, gpus, agent_pods, _ = await asyncio.gather(
            self._to.cluster.list("/api/v1/nodes"),
            self._to.cluster.list(RUNTIME_CLASSES),
            self._to.cluster.list(GPUS),
            self._to.cluster.list(namespaced("pods", self._to.settings.namespace), agents),
            self._to.policies.read(),
        )
        await self._take_fleet(nodes, gpus)
        await self._take_classes(classes)
        holders = [one for one in agent_pods if one["metadata"]["labels"][Label.COMPONENT] == COMPONENT]
        await self._take_holders(holders)
        await self._take_agents([one for one in agent_pods if one not in holders])

    async def _take_classes(self, classes: list[JSON]) -> None:
        for one in classes:
            self._to.runtime_class_event(None, one)
        for name, uid in self._to.world.latest_classes.missing({one["metadata"]["name"] for one in classes}):
            if await self._to.cluster.is_gone(RUNTIME_CLASSES, name, uid):
                self._to.runtime_class_event("DELETED", {"metadata": {"name": name, "uid": uid}})

    async def _take_holders(self, pods: list[JSON]) -> None:
        holders, namespace = self._to.lent.holders, self._to.settings.namespace
        for pod in pods:
            holders.apply(None, pod)
        for name, uid in holders.missing({pod["metadata"]["name"] for pod in pods}):
            if await self._to.cluster.is_gone(namespaced("pods", namespace), name, uid):
                holders.apply("DELETED", {"metadata": {"namespace": namespace, "name": name, "uid": uid}})

    async def _take_agents(self, pods: list[JSON]) -> None:
        for pod in pods:
            self._to.agents.apply(None, pod)
        namespace = self._to.settings.namespace
        for pod_, uid in self._to.agents.missing({f"{namespace}/{pod['metadata']['name']}" for pod in pods}):
            name = pod_.partition("/")[2]
            if await self._to.cluster.is_gone(namespaced("pods", namespace), name, uid):
                self._to.agents.apply("DELETED", {"metadata": {"namespace": namespace, "name": name, "uid": uid}})

    async def _take_fleet(self, nodes: list[JSON], gpus: list[JSON]) -> None:
        for node in nodes:
            self._to.node_event(None, node)
        for name, uid in self._to.world.latest_nodes.missing({node["metadata"]["name"] for node in nodes}):
            if await self._to.cluster.is_gone("/api/v1/nodes", name, uid):
                self._to.node_event("DELETED", {"metadata": {"name": name, "uid": uid}})
        for name, uid in self._to.ledger.seed(gpus):
            if await self._to.cluster.is_gone(GPUS, name, uid):
                self._to.ledger.forget(name, uid)

    async def pods(self) -> None:
        """Read servers' pods."""
        there = set()
        async for page in self._lists.pages("pods", "/api/v1", {"labelSelector": f"{Label.COMPONENT}={Label.SERVER}"}):
            for pod in page:
                there.add(pod["metadata"]["uid"])
                self._to.pod_event(None, pod)
        for replica in self._to.world.replicas.values():
            path = namespaced("pods", replica.namespace)
            if replica.uid not in there and await self._to.cluster.is_gone(path, replica.name, replica.uid):
                self._to.pod_gone(replica)

    async def deployments(self) -> None:
        """Read ModelDeployments, each page handed on as it comes."""
        there = set()
        async for page in self._lists.pages("modeldeployments", GROUP_PATH):
            for one in page:
                there.add(one["metadata"]["uid"])
                self._to.deployment_event(None, one)
        for known in self._to.world.deployments.values():
            path = namespaced("modeldeployments", known.namespace, None, GROUP_PATH)
            if known.uid not in there and await self._to.cluster.is_gone(path, known.name, known.uid):
                meta = {"namespace": known.namespace, "name": known.name, "uid": known.uid}
                self._to.deployment_event("DELETED", {"metadata": meta})

"""The Service of each deployment: made once, never taken from somebody else."""

from collections.abc import Callable, Collection, Iterable

from paddock.api.vocabulary import Label, Reason
from paddock.controller.cluster import JSON, Cluster, ClusterError, namespaced
from paddock.core.deployment import KIND, Deployment
from paddock.core.objects import service
from paddock.core.status import Finding

PAUSE = 30.0
"""Seconds until a name that is taken is looked at again."""
OURS = {"labelSelector": f"{Label.MANAGED_BY}=paddock,{Label.DEPLOYMENT}"}
"""What lists the Services that operators made."""


class Services:
    """Makes Services; remembers those that are known to be right."""

    def __init__(self, cluster: Cluster, look_again: Callable[[str, float], None]) -> None:
        self._cluster, self._look_again = cluster, look_again
        self._known: dict[str, str] = {}
        self._taken: set[str] = set()
        self._lost: set[str] = set()

    def forget(self, key: str) -> None:
        """Drop what is remembered of a deployment that is gone."""
        self._known.pop(key, None)
        self._taken.discard(key)
        self._lost.discard(key)

    def made(self, deployments: Iterable[Deployment]) -> list[str]:
        """Give the deployments whose Service was made, as far as their status tells."""
        return [one.key for one in deployments if not self._never_made(one)]

    def miss(self, present: Collection[str], made: Iterable[str]) -> list[str]:
        """Give those whose Service was made before all were listed and is not among them: somebody deleted it."""
        lost = [key for key in made if key not in present]
        for key in lost:
            self._known.pop(key, None)
        self._lost = set(lost)
        return lost

    def was_taken(self, key: str) -> bool:
        """Tell whether the name was somebody else's the last time: then it is asked before anything is booked."""
        return key in self._taken

    def is_due(self, deployment: Deployment) -> bool:
        """Tell whether the status shows that the Service was not made yet; a restart must not try all anew."""
        return deployment.key in self._lost or self._never_made(deployment)

    @staticmethod
    def _never_made(deployment: Deployment) -> bool:
        reasons = {one.get("reason") for one in deployment.status.get("conditions") or ()}
        return not deployment.status.get("endpoint") or Reason.SERVICE_NAME_TAKEN in reasons

    async def problem(self, deployment: Deployment) -> Finding | None:
        """Tell whether the name is somebody else's, as far as the API server's memory goes."""
        if self._known.get(deployment.key) == deployment.uid:
            return None
        return await self._look(deployment, {"resourceVersion": "0"})

    async def ensure(self, deployment: Deployment) -> Finding | None:
        """Make the Service; a Finding when the name is taken."""
        if self._known.get(deployment.key) == deployment.uid:
            return None
        try:
            await self._cluster.post(namespaced("services", deployment.namespace), service(deployment))
        except ClusterError as error:
            if not error.already_exists:
                raise
            return await self._look(deployment)
        self._has(deployment)
        return None

    def _has(self, deployment: Deployment) -> None:
        self._known[deployment.key] = deployment.uid
        self._taken.discard(deployment.key)
        self._lost.discard(deployment.key)

    async def _look(self, deployment: Deployment, parameters: dict[str, str] | None = None) -> Finding | None:
        path = namespaced("services", deployment.namespace, deployment.name)
        try:
            there = await self._cluster.get(path, parameters)
        except ClusterError as error:
            if error.not_found:
                self._taken.discard(deployment.key)
                return None
            raise
        owners = there["metadata"].get("ownerReferences") or ()
        if any(one.get("uid") == deployment.uid for one in owners) or (not owners and _left_behind(there, deployment)):
            self._has(deployment)
            return None
        self._taken.add(deployment.key)
        # That of a deployment which had the name before goes by itself.
        before = any(one.get("kind") == KIND and one.get("name") == deployment.name for one in owners)
        self._look_again(deployment.key, 1.0 if before else PAUSE)
        message = f"Service {deployment.name} exists in namespace {deployment.namespace} and is not this deployment's"
        return Finding("False", Reason.SERVICE_NAME_TAKEN, message)


def _left_behind(there: JSON, deployment: Deployment) -> bool:
    """Tell whether a Service is that of a deployment of this name which was deleted without its dependents.

    It leads to the same pods, so it serves this one, too.
    """
    labels, selector = there["metadata"].get("labels") or {}, there["spec"].get("selector")
    return labels.get(Label.MANAGED_BY) == "paddock" and selector == deployment.selector

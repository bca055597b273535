"""Give namespaces a way to the model roots of nodes: a static volume and claim for each root, node and namespace.

A namespace that enforces restricted Pod Security refuses hostPath but takes claims; so server pods get a claim.
"""

import logging
from collections.abc import Mapping

from paddock.api.vocabulary import Label
from paddock.controller.cluster import Cluster, ClusterError, namespaced
from paddock.core.fleet import Node
from paddock.core.objects import root_claim, root_id, root_volume
from paddock.core.source import ModelRoot

log = logging.getLogger("paddock.volumes")
VOLUMES = "/api/v1/persistentvolumes"


class Volumes:
    """Makes and removes the claims."""

    def __init__(self, cluster: Cluster, nodes: Mapping[str, Node]) -> None:
        self._cluster, self._nodes = cluster, nodes
        self._there: set[str] = set()

    async def ensure(self, root: ModelRoot, node: str, namespace: str) -> None:
        """Make sure that the claim exists."""
        claim = root_claim(root, node, namespace)
        key = f"{namespace}/{claim['metadata']['name']}"
        if key in self._there:
            return
        known = self._nodes.get(node)
        hostname = known.labels.get("kubernetes.io/hostname") if known is not None else None
        volume = root_volume(root, node, namespace, hostname)
        try:
            await self._cluster.get(namespaced("persistentvolumeclaims", namespace, claim["metadata"]["name"]))
        except ClusterError as error:
            if not error.not_found:
                raise
            # A volume that served an earlier claim is Released and binds no other: it is made anew.
            await self._cluster.delete(f"{VOLUMES}/{volume['metadata']['name']}")
            await self._create(VOLUMES, volume)
            await self._create(namespaced("persistentvolumeclaims", namespace), claim)
        self._there.add(key)

    async def _create(self, path: str, body: dict[str, object]) -> None:
        try:
            await self._cluster.post(path, body)
        except ClusterError as error:
            if not error.already_exists:
                raise

    def forget(self) -> None:
        """Look anew the next time: somebody may have removed a claim."""
        self._there.clear()

    async def sweep(self, used: set[tuple[str, str]]) -> None:
        """Remove claims and volumes that no deployment needs; `used` holds pairs of namespace and root id."""
        labels = f"{Label.MANAGED_BY}=paddock,{Label.MODEL_ROOT}"
        for volume in await self._cluster.list(VOLUMES, {"labelSelector": labels}):
            claim = volume["spec"].get("claimRef") or {}
            namespace, root = claim.get("namespace", ""), volume["metadata"]["labels"][Label.MODEL_ROOT]
            if (namespace, root) in used:
                continue
            log.info("removing claim %s/%s, which no deployment needs", namespace, claim.get("name"))
            await self._cluster.delete(namespaced("persistentvolumeclaims", namespace, claim.get("name", "")))
            await self._cluster.delete(f"{VOLUMES}/{volume['metadata']['name']}")
            self._there.discard(f"{namespace}/{claim.get('name')}")


__all__ = ["Volumes", "root_id"]

"""Give namespaces a way to the model roots of nodes: a static volume and claim for each root, node and namespace.

A namespace that enforces restricted Pod Security refuses hostPath but takes claims; so server pods get a claim.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping

from paddock.api.vocabulary import Label
from paddock.controller.cluster import JSON, Cluster, ClusterError, namespaced
from paddock.controller.settings import Settings
from paddock.core.companions import wanted_of
from paddock.core.deployment import Deployment
from paddock.core.fetching import cache_root
from paddock.core.fleet import Node
from paddock.core.objects import root_claim, root_id, root_volume
from paddock.core.source import FileSource, ModelRoot, RemoteSource, parse_any

log = logging.getLogger("paddock.volumes")
VOLUMES = "/api/v1/persistentvolumes"


def used_roots(deployments: Iterable[Deployment], settings: Settings) -> set[tuple[str, str]]:
    """Give which model roots and caches deployments need, as pairs of namespace and root id."""
    used: set[tuple[str, str]] = set()
    for one in deployments:
        if one.spec is None:
            continue
        beside = wanted_of(one.spec.model, settings.model_roots)
        more = [each.source for each in beside] if not isinstance(beside, str) else []
        for source in (parse_any(one.spec.model.source, settings.model_roots), *more):
            if isinstance(source, FileSource):
                used.add((one.namespace, root_id(source.root)))
            elif isinstance(source, RemoteSource) and one.spec.model.cache is None:
                used.add((one.namespace, root_id(cache_root(settings.cache_folder))))
    return used


class Volumes:
    """Makes and removes the claims."""

    def __init__(self, cluster: Cluster, nodes: Mapping[str, Node]) -> None:
        self._cluster, self._nodes = cluster, nodes
        self._there: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}

    async def ensure(self, root: ModelRoot, node: str, namespace: str) -> None:
        """Make sure that the claim exists."""
        claim = root_claim(root, node, namespace)
        key = f"{namespace}/{claim['metadata']['name']}"
        if key in self._there:
            return
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._there:
                await self._make(root, node, namespace)
                self._there.add(key)

    async def _make(self, root: ModelRoot, node: str, namespace: str) -> None:
        claim = root_claim(root, node, namespace)
        path = namespaced("persistentvolumeclaims", namespace)
        try:
            await self._cluster.get(f"{path}/{claim['metadata']['name']}")
        except ClusterError as error:
            if not error.not_found:
                raise
        else:
            return
        known = self._nodes.get(node)
        hostname = known.labels.get("kubernetes.io/hostname") if known is not None else None
        volume = root_volume(root, node, namespace, hostname)
        if not await self._create(VOLUMES, volume):
            await self._renew(f"{path}/{claim['metadata']['name']}", volume)
        await self._create(path, claim)

    async def _renew(self, claim: str, volume: JSON) -> None:
        """Make a volume anew that belonged to an earlier claim: it binds no other. One that still waits is good."""
        path = f"{VOLUMES}/{volume['metadata']['name']}"
        there = await self._cluster.get(path)
        if not (there["spec"].get("claimRef") or {}).get("uid"):
            return
        try:
            await self._cluster.get(claim)
        except ClusterError as error:
            if not error.not_found:
                raise
            # Kubernetes may keep it for a moment; then this fails, and is tried again.
            await self._cluster.delete(path, there["metadata"]["uid"])
            await self._cluster.post(VOLUMES, volume)

    async def _create(self, path: str, body: JSON) -> bool:
        """Create an object; False when there is one of that name."""
        try:
            await self._cluster.post(path, body)
        except ClusterError as error:
            if not error.already_exists:
                raise
            return False
        return True

    def forget(self, namespace: str | None = None) -> None:
        """Look anew the next time, everywhere or in one namespace: somebody may have removed a claim."""
        self._there = {key for key in self._there if namespace is not None and not key.startswith(f"{namespace}/")}

    async def _is_mounted(self, namespace: str, claim: str) -> bool:
        """Tell whether a server has a claim, for example of an older spec whose successor cannot be served."""
        servers = {"labelSelector": f"{Label.COMPONENT}={Label.SERVER}"}
        return any(
            (volume.get("persistentVolumeClaim") or {}).get("claimName") == claim
            for pod in await self._cluster.list(namespaced("pods", namespace), servers)
            for volume in pod["spec"].get("volumes") or ()
        )

    async def sweep(self, used: set[tuple[str, str]]) -> None:
        """Remove claims and volumes that nobody needs; `used` holds pairs of namespace and root id of deployments."""
        labels = f"{Label.MANAGED_BY}=paddock,{Label.MODEL_ROOT}"
        for volume in await self._cluster.list(VOLUMES, {"labelSelector": labels}):
            claim = volume["spec"].get("claimRef") or {}
            namespace, root = claim.get("namespace", ""), volume["metadata"]["labels"][Label.MODEL_ROOT]
            if (namespace, root) in used or await self._is_mounted(namespace, claim.get("name", "")):
                continue
            log.info("removing claim %s/%s, which no deployment needs", namespace, claim.get("name"))
            await self._cluster.delete(namespaced("persistentvolumeclaims", namespace, claim.get("name", "")))
            await self._cluster.delete(f"{VOLUMES}/{volume['metadata']['name']}")
            self._there.discard(f"{namespace}/{claim.get('name')}")

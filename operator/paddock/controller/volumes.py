"""Give namespaces a way to the model roots of nodes: a static volume and claim for each root, node and namespace.

A namespace that enforces restricted Pod Security refuses hostPath but takes claims; so server pods get a claim.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

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
REMOVED_AFTER = 0.1, 0.3, 0.6, 1.0
"""Seconds between looks at a claim that is being removed: most go within one."""
UNPROCESSABLE = 422


def roots_of(deployment: Deployment, settings: Settings) -> list[ModelRoot]:
    """Give the model roots and the cache of which a deployment needs claims."""
    if deployment.spec is None:
        return []
    model = deployment.spec.model
    beside = wanted_of(model, settings.model_roots)
    more = [each.source for each in beside] if not isinstance(beside, str) else []
    roots: list[ModelRoot] = []
    for source in (parse_any(model.source, settings.model_roots), *more):
        if isinstance(source, FileSource):
            roots.append(source.root)
        elif isinstance(source, RemoteSource) and model.cache is None:
            roots.append(cache_root(settings.cache_folder))
    return list(dict.fromkeys(roots))


def used_roots(deployments: Iterable[Deployment], settings: Settings) -> set[tuple[str, str]]:
    """Give which model roots and caches deployments need, as pairs of namespace and root id."""
    return {(one.namespace, root_id(root)) for one in deployments for root in roots_of(one, settings)}


class Volumes:
    """Makes and removes the claims."""

    def __init__(self, cluster: Cluster, nodes: Mapping[str, Node]) -> None:
        self._cluster, self._nodes = cluster, nodes
        self._there: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        """By namespace/claim: whoever makes or removes one takes the steps of that without the other between them."""

    async def ensure(self, root: ModelRoot, node: str, namespace: str) -> None:
        """Make sure that the claim exists and has a volume. Raises ClusterError; refused while it is being removed."""
        claim = root_claim(root, node, namespace)
        key = f"{namespace}/{claim['metadata']['name']}"
        if key in self._there:
            return
        async with self._lock(key):
            if key not in self._there:
                await self._make(claim, root, node)
                self._there.add(key)

    def _lock(self, key: str) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def _make(self, claim: JSON, root: ModelRoot, node: str) -> None:
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        path = namespaced("persistentvolumeclaims", namespace)
        there = await self._settled(f"{path}/{name}")
        if there is not None and (there.get("status") or {}).get("phase") == "Bound":
            return
        known = self._nodes.get(node)
        hostname = known.labels.get("kubernetes.io/hostname") if known is not None else None
        volume = root_volume(root, node, namespace, hostname)
        if there is not None:  # One whose volume was lost takes no other that does not name that very claim.
            volume["spec"]["claimRef"]["uid"] = there["metadata"]["uid"]
        if not await self._create(VOLUMES, volume):
            await self._renew(volume)
        if there is None:
            await self._create(path, claim)

    async def _settled(self, path: str) -> JSON | None:
        """Give the claim, None when there is none; one that is being removed gets a moment to go."""
        for wait in (*REMOVED_AFTER, None):
            try:
                there = await self._cluster.get(path)
            except ClusterError as error:
                if not error.not_found:
                    raise
                return None
            if "deletionTimestamp" not in there["metadata"]:
                return there
            if wait is not None:
                await asyncio.sleep(wait)
        name = path.rpartition("/")[2]
        message = f"claim {name} is being deleted; Kubernetes removes it when no pod of the namespace uses it any more"
        raise ClusterError(UNPROCESSABLE, "Terminating", message)

    async def _renew(self, volume: JSON) -> None:
        """Make a volume anew that belonged to an earlier claim: it binds no other. One that still waits is good."""
        claim = volume["spec"]["claimRef"].get("uid")
        path = f"{VOLUMES}/{volume['metadata']['name']}"
        there = await self._cluster.get(path)
        if (there["spec"].get("claimRef") or {}).get("uid") not in (None, "", claim):
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

    async def sweep(self, used: Callable[[], set[tuple[str, str]]]) -> None:
        """Remove claims and volumes that nobody needs; `used` gives the present pairs of namespace and root id."""
        labels = f"{Label.MANAGED_BY}=paddock,{Label.MODEL_ROOT}"
        for volume in await self._cluster.list(VOLUMES, {"labelSelector": labels}):
            claim = volume["spec"].get("claimRef") or {}
            namespace, name = claim.get("namespace", ""), claim.get("name", "")
            wanted = namespace, volume["metadata"]["labels"][Label.MODEL_ROOT]
            if wanted in used() or await self._is_mounted(namespace, name):
                continue
            async with self._lock(f"{namespace}/{name}"):
                if wanted in used():
                    continue
                # From here on whoever needs the claim waits for the lock, and makes it anew.
                self._there.discard(f"{namespace}/{name}")
                log.info("removing claim %s/%s, which no deployment needs", namespace, name)
                await self._cluster.delete(namespaced("persistentvolumeclaims", namespace, name))
                await self._cluster.delete(f"{VOLUMES}/{volume['metadata']['name']}", volume["metadata"]["uid"])

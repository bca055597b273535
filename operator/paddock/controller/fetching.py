"""Files that are fetched: cache and containers of server pods, progress, what the status says of them, and prefetch.

Weights never pass through here: pods bring them to the nodes, and their logs say how far they are.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pydantic import ValidationError

from paddock.api.fetched import Origin
from paddock.api.source import Companion, ModelSpec, ModelStatus, Progress
from paddock.api.vocabulary import Annotation, Reason
from paddock.controller import beside
from paddock.controller.beside import alone
from paddock.controller.cluster import JSON, Cluster, ClusterError, namespaced
from paddock.controller.decisions import Accepted
from paddock.controller.found import Found
from paddock.controller.parts import Parts
from paddock.controller.settings import Settings
from paddock.controller.store import World
from paddock.core.companions import wanted_of
from paddock.core.deployment import Deployment
from paddock.core.failures import FETCH, TOLD, fetch_of, progress_in, shown
from paddock.core.fetching import (
    Order,
    cache_root,
    cached_file,
    is_there,
    prefetch_name,
    prefetch_pod,
    told,
    with_fetch,
)
from paddock.core.mounting import Shelved, volume_of, with_companions
from paddock.core.objects import mounted_of, root_claim_name
from paddock.core.plan import Plan
from paddock.core.pod import Mounted
from paddock.core.quantize import file_type_name
from paddock.core.replica import Record, Replica
from paddock.core.source import FileSource, RemoteSource, Source, parse_any

log = logging.getLogger("paddock.fetching")
STEP = 10.0
"""Seconds between two looks at how far a deployment's pods are, and so between two writes of that."""
MOST_NODES = 10
"""Nodes that a status names."""
MOST_PREFETCHES = 4
"""Nodes that fetch ahead of need for one deployment at the same time."""
MISTRUST = 600.0
"""Seconds for which pods look for their files themselves after one did not find what its node was said to have."""
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 900.0
"""Seconds after a fetch ahead of need has failed on a node until it is tried again there."""


class Fetching:
    """What the reconciler asks about files that are fetched."""

    def __init__(
        self, cluster: Cluster, settings: Settings, world: World, parts: Parts, look_again: Callable[[str, float], None]
    ) -> None:
        self._cluster, self._settings, self._world, self._look_again = cluster, settings, world, look_again
        self._models, self._remote = parts.models, parts.models.remote
        self._volumes, self._events = parts.volumes, parts.events
        self._looked: dict[str, float] = {}
        """When the logs of a deployment's pods were read."""
        self._progress: dict[str, Progress] = {}
        """By uid of the pod."""
        self._known: dict[str, ModelStatus] = {}
        """What is to be written to a deployment's status and may not be there yet."""
        self._missed: dict[str, float] = {}
        """When files of a deployment were last not found where they were said to be."""
        self._failed: dict[str, tuple[int, float]] = {}
        """By namespace/name of a pod that fetches ahead of need: failures, and until when it is not made again."""

    def forget(self, key: str) -> None:
        """Drop what is remembered of a deployment that is gone."""
        self._looked.pop(key, None)
        self._known.pop(key, None)
        self._missed.pop(key, None)
        namespace = f"{key.partition('/')[0]}/"
        now = asyncio.get_running_loop().time()
        for pod in [pod for pod, (_, until) in self._failed.items() if pod.startswith(namespace) and until < now]:
            del self._failed[pod]

    def doubt(self, one: Replica) -> None:
        """Have the source looked at anew when a pod did not find what it was told to fetch."""
        if one.fetch_failed and one.waiting in (Reason.CORRUPT, Reason.MODEL_NOT_FOUND):
            key = f"{one.namespace}/{one.deployment}"
            self._missed[key] = asyncio.get_running_loop().time()
            deployment = self._world.deployments.get(key)
            model = deployment.spec.model if deployment is not None and deployment.spec is not None else None
            wanted = wanted_of(model, self._settings.model_roots) if model is not None else ()
            companions = wanted if isinstance(wanted, tuple) else ()
            for source in (model, *(each.spec for each in companions)):
                if source is not None:
                    self._remote.doubt(key, source.source)

    # -- pods of servers --------------------------------------------------------------------------------------------

    def mounted(self, accepted: Accepted, record: Record) -> Mounted:
        """Give how a server mounts its model's files; the size is of all that it loads."""
        found = accepted.found
        assert found.summary is not None  # noqa: S101 accepted
        more = sum(one.summary.file_bytes for one in found.beside)
        mounted = self._file(accepted, accepted.source, found.origin, record.node, found.summary.file_bytes)
        return replace(mounted, file_bytes=mounted.file_bytes + more)

    def _file(
        self, accepted: Accepted, source: Source | RemoteSource, origin: Origin | None, node: str | None, size: int
    ) -> Mounted:
        if isinstance(source, Source):
            return mounted_of(source, node, size)
        assert origin is not None  # noqa: S101 found for every source that is fetched
        return cached_file(self._claim(accepted, node), origin)

    def _claim(self, accepted: Accepted, node: str | None) -> str:
        if accepted.cache_claim is not None:
            return accepted.cache_claim
        assert node is not None  # noqa: S101 without a claim the nodes with a cache are told to placement
        return root_claim_name(cache_root(self._settings.cache_folder), node)

    async def equip(self, pod: JSON, deployment: Deployment, accepted: Accepted, record: Record) -> JSON:
        """Give a server's pod its volumes, and the containers that fetch its files."""
        found, node = accepted.found, record.node
        sources = [accepted.source, *(one.wanted.source for one in found.beside)]
        roots = [one.root for one in sources if isinstance(one, FileSource)]
        if accepted.cache_claim is None and any(isinstance(one, RemoteSource) for one in sources):
            roots.append(cache_root(self._settings.cache_folder))
        for root in dict.fromkeys(roots) if node is not None else ():
            await self._volumes.ensure(root, node or "", deployment.namespace)
        if found.beside:
            shelved = [
                Shelved(one, self._file(accepted, one.wanted.source, one.origin, node, one.summary.file_bytes))
                for one in found.beside
            ]
            pod = with_companions(pod, shelved, record.name_in_pod or None)
        orders = orders_of(deployment, found)
        if not orders:
            return pod
        volume = volume_of(pod, self._claim(accepted, node))
        there = accepted.cache_claim is None and self._is_there(deployment, orders, node)
        return with_fetch(pod, deployment, orders, self._settings.fetcher, volume, there=there)

    def _is_there(self, deployment: Deployment, orders: Sequence[Order], node: str | None) -> bool:
        """Tell whether a node has all files, as far as its agent says; nobody is believed who was wrong just now."""
        missed = self._missed.get(deployment.key)
        if node is None or (missed is not None and asyncio.get_running_loop().time() < missed + MISTRUST):
            return False
        return is_there(orders, self._remote.keys(node))

    # -- progress and status ----------------------------------------------------------------------------------------

    async def with_progress(self, deployment: Deployment, steps: Plan) -> Plan:
        """Put on replicas whose files are fetched how far they are; their logs are read every ten seconds."""
        fetching = [one for one in steps.current if one.waiting is Reason.FETCHING]
        for one in set(steps.current) - set(fetching):
            self._progress.pop(one.uid, None)
            if one.waiting in TOLD:
                self._events.warning(deployment, one.waiting, f"{one.name}: {one.waiting_message}")
        if not fetching:
            self._looked.pop(deployment.key, None)
            return steps
        now = asyncio.get_running_loop().time()
        left = self._looked.get(deployment.key, now - STEP) + STEP - now
        if deployment.key not in self._looked:
            self._events.normal(deployment, Reason.FETCHING, f"{fetching[0].name}: {fetching[0].waiting_message}")
        if left <= 0:
            self._looked[deployment.key], left = now, STEP
            self._progress |= {one.uid: told for one in fetching if (told := await self._read(one)) is not None}
        self._look_again(deployment.key, left)
        return replace(steps, current=tuple(self._with_words(one) for one in steps.current))

    async def _read(self, one: Replica) -> Progress | None:
        try:
            text = await self._cluster.log(one.namespace, one.name, FETCH, tail_lines=2)
        except ClusterError as error:
            log.debug("no progress of %s: %s", one.key, error)
            return None
        found = progress_in(text)
        return shown(found) if found is not None else None

    def _with_words(self, one: Replica) -> Replica:
        known = self._progress.get(one.uid)
        if known is None:
            return one
        return replace(one, waiting_message=f"{one.waiting_message}: {known.text}")

    def note(self, deployment: Deployment, found: Found) -> None:
        """Keep what was found about the files until the status is written."""
        if deployment.spec is not None and found.summary is not None:
            self._known[deployment.key] = status_of(told(deployment.spec.model.source), found)

    def status(self, deployment: Deployment, steps: Plan) -> ModelStatus | None:
        """Give what the status says of the files; None when nothing is known."""
        known = self._known.get(deployment.key) or _stored(deployment)
        if known is None or deployment.spec is None or known.source != told(deployment.spec.model.source):
            self._known.pop(deployment.key, None)
            return None
        keys = [key for key in (known.key, *(one.key for one in known.companions)) if key is not None]
        nodes = self._holders(keys)[:MOST_NODES]
        behind = [self._progress[one.uid] for one in steps.current if one.uid in self._progress]
        progress = min(behind, key=lambda one: one.percent, default=None)
        return known.model_copy(update={"nodes": nodes, "progress": progress})

    # -- ahead of need ----------------------------------------------------------------------------------------------

    async def prefetch(self, deployment: Deployment) -> None:
        """Have the nodes fetch that spec.model.prefetch names, a few at a time."""
        spec = deployment.spec
        if spec is None or spec.model.prefetch is None or not self._settings.cache_folder:
            return
        orders = self._orders(deployment) or await self._look_up(deployment)
        if not orders:
            return
        lacking = self._lacking([one.origin.key for one in orders], spec.model.prefetch.node_selector)
        names = {node: prefetch_name(deployment.namespace, orders, node) for node in lacking}
        paused = [left for name in names.values() if (left := self._left(f"{deployment.namespace}/{name}")) > 0]
        if paused:
            self._look_again(deployment.key, min(paused))
        due = [node for node, name in names.items() if not self._left(f"{deployment.namespace}/{name}")]
        for node in due[:MOST_PREFETCHES]:
            if not await self._under_way(deployment, names[node]):
                await self._volumes.ensure(cache_root(self._settings.cache_folder), node, deployment.namespace)
                claim = root_claim_name(cache_root(self._settings.cache_folder), node)
                await self._make(deployment, prefetch_pod(deployment, orders, node, claim, self._settings.fetcher))

    def _orders(self, deployment: Deployment) -> list[Order]:
        """Give what is to be fetched for a deployment, as far as its status says; empty where that is not enough."""
        spec = deployment.spec
        wanted = wanted_of(spec.model, self._settings.model_roots) if spec is not None else ""
        if spec is None or isinstance(wanted, str):
            return []
        asked: list[tuple[Deployment, ModelSpec | Companion, str]] = [(deployment, spec.model, "")]
        asked += [(alone(deployment, one), one.spec, one.title) for one in wanted if not isinstance(one.source, Source)]
        origins = [(self._remote.origin_of(one), words, name) for one, words, name in asked]
        if any(origin is None for origin, _, _ in origins):
            return []
        return [Order(origin, words, name) for origin, words, name in origins if origin is not None]

    def _left(self, pod: str) -> float:
        """Give the seconds until a pod that fetches ahead of need may be made again, or 0."""
        return max(0.0, self._failed.get(pod, (0, 0.0))[1] - asyncio.get_running_loop().time())

    def _holders(self, keys: Sequence[str]) -> list[str]:
        """Give the nodes whose cache has all of these contents."""
        found = [self._remote.holders(key) for key in keys]
        return [node for node in found[0] if all(node in one for one in found)] if found else []

    def _lacking(self, keys: Sequence[str], labels: Mapping[str, str]) -> list[str]:
        """Give the nodes with these labels that have a cache, but not all of these contents in it."""
        having = set(self._holders(keys))
        return [
            name
            for name, node in sorted(self._world.nodes.items())
            if node.ready
            and name not in having
            and self._remote.has_cache(name)
            and all(node.labels.get(label) == value for label, value in labels.items())
        ]

    async def _look_up(self, deployment: Deployment) -> list[Order]:
        """Find out what a source is of which no replica is wanted."""
        if deployment.spec is None:
            return []
        source = parse_any(deployment.spec.model.source, self._settings.model_roots)
        if isinstance(source, str | Source):
            return []
        found = await self._models.find(deployment, source, self._world.nodes)
        if found.retry_after is not None:
            self._look_again(deployment.key, found.retry_after)
        if found.origin is None:
            if found.reason is not Reason.READING_HEADER:
                self._events.warning(deployment, found.reason, f"fetching ahead of need: {found.message}")
            return []
        self.note(deployment, found)
        return orders_of(deployment, found)

    async def _under_way(self, deployment: Deployment, name: str) -> bool:
        """Look at the pod of a node; tells whether there is one. One that has ended is removed."""
        key, now = f"{deployment.namespace}/{name}", asyncio.get_running_loop().time()
        path = namespaced("pods", deployment.namespace, name)
        try:
            pod = await self._cluster.get(path)
        except ClusterError as error:
            if not error.not_found:
                raise
            return False
        status = pod.get("status") or {}
        if status.get("phase") not in ("Succeeded", "Failed"):
            return True
        if status["phase"] == "Succeeded":
            # The agent tells of the files soon; until then another pod would find them there.
            self._failed[key] = (0, now + FIRST_PAUSE)
        else:
            failures = self._failed.get(key, (0, 0.0))[0] + 1
            self._failed[key] = (failures, now + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 10)))
            why = fetch_of({"initContainerStatuses": status.get("containerStatuses")})
            node = (pod["metadata"].get("annotations") or {}).get(Annotation.FETCHES, "").partition(" ")[2]
            reason = why.reason if why is not None else Reason.FETCH_FAILED
            words = why.message if why is not None else status.get("message", "it failed")
            self._events.warning(deployment, reason, f"fetching ahead of need to {node}: {words}")
        await self._cluster.delete(path, pod["metadata"].get("uid"))
        self._look_again(deployment.key, self._failed[key][1] - now)
        return True

    async def _make(self, deployment: Deployment, pod: JSON) -> None:
        try:
            await self._cluster.post(namespaced("pods", deployment.namespace), pod)
        except ClusterError as error:
            if error.already_exists:
                return
            if not error.refused:
                raise
            self._events.warning(deployment, Reason.POD_REFUSED, f"fetching ahead of need: {error.message}")
            self._look_again(deployment.key, LONGEST_PAUSE)


def orders_of(deployment: Deployment, found: Found) -> list[Order]:
    """Give what is fetched for a deployment of which all is known."""
    assert deployment.spec is not None  # noqa: S101 found
    orders = [Order(found.origin, deployment.spec.model)] if found.origin is not None else []
    return orders + [
        Order(one.origin, one.wanted.spec, one.wanted.title) for one in found.beside if one.origin is not None
    ]


def status_of(source: str, found: Found) -> ModelStatus:
    """Put what was found into the words of the status."""
    summary, origin = found.summary, found.origin
    assert summary is not None  # noqa: S101 accepted
    named = origin.quantization if origin is not None else None
    return ModelStatus(
        source=source,
        pinned=origin.pinned if origin is not None else None,
        key=origin.key if origin is not None else None,
        path=origin.path if origin is not None else None,
        architecture=summary.architecture,
        parameters=summary.parameters,
        quantization=named or file_type_name(summary.file_type),
        context_length=summary.context_train,
        files=summary.files,
        size_bytes=origin.bytes if origin is not None else summary.file_bytes,
        digest=next((one.digest or one.etag for one in origin.files), None) if origin is not None else None,
        license=summary.license or (origin.license if origin is not None else None),
        companions=[beside.status_of(one) for one in found.beside],
    )


def _stored(deployment: Deployment) -> ModelStatus | None:
    try:
        return ModelStatus.model_validate(deployment.status["model"]) if deployment.status.get("model") else None
    except ValidationError:
        return None

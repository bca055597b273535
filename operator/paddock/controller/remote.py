"""Find out what a model far away is: a short pod in the deployment's namespace reads the header, with its own Secret.

What was found is kept by the identity of the content, so that a second look needs no network: with the files in a
node's cache, the agent there reads the header, and what the source was is in the deployment's status.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from pydantic import ValidationError

from paddock.api.answer import SourceAnswer
from paddock.api.fetched import Failed, Origin, SourceFile
from paddock.api.report import HeaderFault, HeaderSummary
from paddock.api.source import ModelStatus
from paddock.api.vocabulary import Reason
from paddock.controller.agents import AgentError, Agents
from paddock.controller.cluster import JSON, Cluster, ClusterError, namespaced
from paddock.controller.found import Found
from paddock.controller.reader import answer_of, being_read, started
from paddock.controller.settings import Settings
from paddock.controller.store import Deployments
from paddock.core.deployment import Deployment
from paddock.core.failures import REASONS
from paddock.core.fetching import CACHE_MOUNT, address, header_name, header_pod, sound, told
from paddock.core.source import names_one_version, parse_remote

log = logging.getLogger("paddock.remote")
KEPT_GOOD = 120.0
"""Seconds for which what a source has is believed for a deployment whose status does not say it yet."""
MOST_KEPT = 512
"""Headers that are remembered."""
KEPT_LONG = 86400.0
"""The same of a source that names one version: a commit or a digest."""
FIRST_PAUSE, LONGEST_PAUSE = 15.0, 600.0
"""Seconds after the first failure of a kind until the header is read again; doubled each time, up to the longest."""


@dataclass
class _Kept:
    answer: SourceAnswer
    since: float
    until: float
    failures: int = 0
    pod: str = ""
    """UID of the pod that gave it."""


VolumeNodes = Callable[[str, str], Awaitable[frozenset[str] | None]]


class Remote:
    """Reads headers from afar, and remembers what they say."""

    def __init__(self, cluster: Cluster, agents: Agents, settings: Settings, volume_nodes: VolumeNodes) -> None:
        self._cluster, self._agents, self._settings = cluster, agents, settings
        self._volume_nodes = volume_nodes
        self._kept: dict[str, _Kept] = {}
        self._summaries: dict[str, HeaderSummary] = {}
        self._doubted: set[tuple[str, str]] = set()
        """Deployments and sources."""
        self.deployments = Deployments()
        """All of them; set by the controller."""

    async def find(self, deployment: Deployment, nodes: Iterable[str]) -> Found:
        """Look at the source; `nodes` are those on which the model could be served."""
        spec = deployment.spec
        assert spec is not None  # noqa: S101 callers hold an accepted deployment
        place = await self._place(deployment, nodes)
        if place.message:
            return place
        doubt = (deployment.key, spec.model.source)
        doubted = doubt in self._doubted
        origin = None if doubted else stored_origin(deployment) or self._of_others(deployment)
        if origin is not None:
            summary = self._summaries.get(origin.key) or await self._cached(origin)
            if summary is not None:
                return self._found(place, summary, origin)
        text = address(spec.model.source, origin) if origin is not None else spec.model.source
        found = await self._read(deployment, text, place, KEPT_GOOD if doubted else KEPT_LONG)
        if found.summary is not None:
            self._doubted.discard(doubt)
        return found

    def _of_others(self, deployment: Deployment) -> Origin | None:
        """Give what another deployment of the namespace has from the same source with the same Secret.

        Only of a source that names one version: any other is asked what it has now.
        """
        assert deployment.spec is not None  # noqa: S101 callers hold an accepted deployment
        model = deployment.spec.model
        source = parse_remote(model.source)
        if isinstance(source, str) or not names_one_version(source):
            return None
        for one in self.deployments.values():
            other = one.spec.model if one.spec is not None and one.namespace == deployment.namespace else None
            same = other is not None and (other.source, other.secret_ref) == (model.source, model.secret_ref)
            if same and (one.key, model.source) not in self._doubted and (origin := stored_origin(one)) is not None:
                return origin
        return None

    def doubt(self, key: str, source: str) -> None:
        """Believe no more what is known of one of a deployment's sources: it may have other content now."""
        self._doubted.add((key, source))

    def origin_of(self, deployment: Deployment) -> Origin | None:
        """Give which content a deployment's source has, as far as its status says."""
        return stored_origin(deployment)

    def keys(self, node: str) -> frozenset[str]:
        """Give the contents that a node's cache has, as far as its agent says."""
        return self._keys(node) or frozenset()

    def has_cache(self, node: str) -> bool:
        """Tell whether a node has a cache."""
        return self._keys(node) is not None

    async def _place(self, deployment: Deployment, nodes: Iterable[str]) -> Found:
        """Give where the files may be kept; with a message, why nowhere."""
        spec = deployment.spec
        assert spec is not None  # noqa: S101 as above
        if spec.model.cache is not None:
            claim = spec.model.cache.claim
            try:
                await self._cluster.get(namespaced("persistentvolumeclaims", deployment.namespace, claim))
            except ClusterError as error:
                if not error.not_found:
                    raise
                message = f"there is no PersistentVolumeClaim {claim} in namespace {deployment.namespace}"
                return Found(reason=Reason.CLAIM_NOT_FOUND, message=message, retry_after=15)
            return Found(volume_nodes=await self._volume_nodes(deployment.namespace, claim))
        wanted = set(nodes)
        there = frozenset(one for one in self._agents.nodes() if one in wanted and self._keys(one) is not None)
        if not there:
            message = "no node agent that has a cache answers on the nodes where this could run"
            return Found(reason=Reason.NO_NODE_AGENT, message=message)
        return Found(file_nodes=there)

    def _keys(self, node: str) -> frozenset[str] | None:
        """Give what the cache of a node holds; None without a cache."""
        report = self._agents.report(node)
        return None if report is None or report.cache is None else frozenset(one.key for one in report.cache)

    def holders(self, key: str) -> list[str]:
        """Give the nodes whose cache has this content."""
        return [node for node in self._agents.nodes() if key in (self._keys(node) or ())]

    def _found(self, place: Found, summary: HeaderSummary, origin: Origin) -> Found:
        near = frozenset(self.holders(origin.key)) if place.file_nodes is not None else frozenset[str]()
        return replace(place, summary=summary, reason=Reason.VALID, origin=origin, near_nodes=near)

    async def _cached(self, origin: Origin) -> HeaderSummary | None:
        """Have an agent read the header of files that its cache has."""
        for node in self.holders(origin.key):
            try:
                answer = await self._agents.header(node, f"{CACHE_MOUNT}/{origin.path}")
            except AgentError as error:
                log.info("header of %s on %s: %s", origin.key, node, error)
                continue
            if answer.summary is not None:
                self._remember(origin.key, answer.summary)
                return answer.summary
        return None

    def _remember(self, key: str, summary: HeaderSummary) -> None:
        self._summaries[key] = summary
        while len(self._summaries) > MOST_KEPT:
            del self._summaries[next(iter(self._summaries))]

    # -- the pod that reads -----------------------------------------------------------------------------------------

    async def _read(self, deployment: Deployment, text: str, place: Found, believed: float) -> Found:
        """Have a pod read the header, unless one has in the last `believed` seconds."""
        spec = deployment.spec
        assert spec is not None  # noqa: S101 as above
        secret = spec.model.secret_ref.name if spec.model.secret_ref is not None else None
        name = header_name(deployment.namespace, text, secret)
        key, now = f"{deployment.namespace}/{name}", asyncio.get_running_loop().time()
        kept = self._kept.get(key)
        if kept is not None and now < min(kept.until, kept.since + believed):
            return self._told(place, kept)
        pod = await started(
            self._cluster, deployment.namespace, name, lambda: header_pod(deployment, text, self._settings.fetcher)
        )
        if isinstance(pod, Found):
            return pod
        kept = await self._taken(key, pod, text)
        if kept is not None:
            return self._told(place, kept)
        return being_read(pod)

    async def _taken(self, key: str, pod: JSON, text: str) -> _Kept | None:
        """Take the answer of a pod that has ended, and remove it."""
        meta, status = pod["metadata"], pod.get("status") or {}
        if "deletionTimestamp" in meta or status.get("phase") not in ("Succeeded", "Failed"):
            return None
        answer = await self._answer(meta["namespace"], meta["name"], status)
        before, now = self._kept.get(key), asyncio.get_running_loop().time()
        if before is not None and before.pod == meta["uid"]:
            return before  # Somebody else has taken it meanwhile, and removed the pod with its log.
        failures = 0 if answer.summary is not None else (before.failures + 1 if before is not None else 1)
        pause = good_for(text) if not failures else min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 10))
        kept = self._kept[key] = _Kept(answer, now, now + pause, failures, meta["uid"])
        if answer.summary is not None and answer.origin is not None:
            self._remember(answer.origin.key, answer.summary)
        for old in [one for one, each in self._kept.items() if each.until + LONGEST_PAUSE < now]:
            del self._kept[old]
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        await self._cluster.delete(namespaced("pods", meta["namespace"], meta["name"]), meta.get("uid"))
        return kept

    async def _answer(self, namespace: str, name: str, status: JSON) -> SourceAnswer:
        line, words = await answer_of(self._cluster, namespace, name, status)
        if line is not None:
            with contextlib.suppress(ValidationError):
                answer = SourceAnswer.model_validate_json(line)
                if answer.origin is None or sound(answer.origin):
                    return answer
        return SourceAnswer(fault=HeaderFault(code="InspectionFailed", message=words[:1000]))

    def _told(self, place: Found, kept: _Kept) -> Found:
        answer, wait = kept.answer, max(1.0, kept.until - asyncio.get_running_loop().time())
        if answer.summary is not None and answer.origin is not None:
            return self._found(place, answer.summary, answer.origin)
        reason, message = _why(answer.failure, answer.fault)
        return Found(reason=reason, message=message, retry_after=wait)


def good_for(text: str) -> float:
    """Give the seconds for which what a source has is believed."""
    source = parse_remote(text)
    return KEPT_LONG if not isinstance(source, str) and names_one_version(source) else KEPT_GOOD


def _why(failure: Failed | None, fault: HeaderFault | None) -> tuple[Reason, str]:
    if failure is not None:
        return REASONS[failure.failure], failure.message
    if fault is not None:
        return Reason(fault.code), fault.message
    return Reason.INSPECTION_FAILED, "the pod that reads the header gave half an answer"


def stored_origin(deployment: Deployment) -> Origin | None:
    """Give which content the source had when the deployment's status was written; None when that is not known."""
    source = told(deployment.spec.model.source) if deployment.spec is not None else ""
    try:
        known = ModelStatus.model_validate(deployment.status.get("model"))
    except ValidationError:
        return None
    if known.source != source or known.pinned is None or known.key is None or known.path is None:
        return None
    origin = Origin(
        source=source,
        pinned=known.pinned,
        key=known.key,
        path=known.path,
        files=[SourceFile(name=known.path.rpartition("/")[2], bytes=known.size_bytes, digest=known.digest)],
        bytes=known.size_bytes,
        license=known.license,
        quantization=known.quantization,
    )
    return origin if sound(origin) else None

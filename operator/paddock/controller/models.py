"""Find out what a model file is, before anything is placed: header summaries from agents and from inspector pods.

Answers are kept for a while, so that a thousand deployments of one file ask once. Weights never pass through here.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from paddock.api.report import HeaderAnswer
from paddock.api.vocabulary import Reason
from paddock.controller.agents import AgentError, Agents
from paddock.controller.beside import look_at_all
from paddock.controller.cluster import JSON, Cluster, ClusterError, namespaced
from paddock.controller.found import Found
from paddock.controller.reader import answer_of, being_read, started
from paddock.controller.remote import Remote
from paddock.controller.settings import Settings
from paddock.core.companions import wanted_of
from paddock.core.deployment import Deployment
from paddock.core.fleet import Node
from paddock.core.objects import inspector_name, inspector_pod
from paddock.core.source import ClaimSource, FileSource, ImageSource, RemoteSource, Source

KEPT_GOOD = 120.0
"""Seconds that a summary is used without asking again."""
KEPT_BAD = 5.0


@dataclass
class _Kept:
    answer: HeaderAnswer
    until: float
    failures: int = field(default=0)
    pod: str = ""
    """UID of the pod that gave it."""


class Models:
    """Reads headers, and remembers what they say."""

    def __init__(self, cluster: Cluster, agents: Agents, settings: Settings) -> None:
        self._cluster, self._agents, self._settings = cluster, agents, settings
        self._files: dict[tuple[str, str], _Kept] = {}
        self._claims: dict[str, _Kept] = {}
        self._asking: dict[tuple[str, str], asyncio.Task[HeaderAnswer]] = {}
        self._places = asyncio.Semaphore(64)
        self._forgotten = 0
        """How often something was forgotten: an answer that was asked for before is not kept."""
        self.remote = Remote(cluster, agents, settings, self._volume_terms)

    @property
    def settled(self) -> bool:
        """Whether every agent has answered once, or had its time to."""
        return self._agents.settled()

    def forget(self, source: Source, namespace: str) -> None:
        """Ask anew for this file the next time."""
        self._forgotten += 1
        if isinstance(source, FileSource):
            for key in [key for key in self._files if key[1] == source.path]:
                del self._files[key]
        else:
            self._claims.pop(f"{namespace}/{inspector_name(namespace, source)}", None)

    def forget_node(self, node: str) -> None:
        """Drop what was read on a node that is gone: one that comes back under its name has other files."""
        self._forgotten += 1
        for key in [key for key in self._files if key[0] == node]:
            del self._files[key]

    async def find(self, deployment: Deployment, source: Source | RemoteSource, nodes: Iterable[str]) -> Found:
        """Look at the file, and at those served beside it; `nodes` are those on which it could be served."""
        return await look_at_all(self._find, deployment, source, list(nodes), self._settings.model_roots)

    async def _find(self, deployment: Deployment, source: Source | RemoteSource, nodes: Iterable[str]) -> Found:
        if isinstance(source, FileSource):
            return await self._on_nodes(source, nodes)
        if isinstance(source, ClaimSource | ImageSource):
            return await self._in_claim(deployment, source)
        return await self.remote.find(deployment, nodes)

    async def reach(self, deployment: Deployment, source: Source | RemoteSource, nodes: Iterable[str]) -> Found:
        """Tell only from where the file of a deployment that runs can be reached; its header is known already."""
        spec = deployment.spec
        alone = spec is None or not wanted_of(spec.model, self._settings.model_roots)
        if isinstance(source, ImageSource) and alone:
            return Found()
        if isinstance(source, ClaimSource) and alone:
            return Found(volume_nodes=await self._volume_terms(deployment.namespace, source.claim))
        return await self.find(deployment, source, nodes)

    # -- files on nodes ------------------------------------------------------------------------------------------

    async def _on_nodes(self, source: FileSource, nodes: Iterable[str]) -> Found:
        wanted = set(nodes)
        asked = [node for node in self._agents.nodes() if node in wanted]
        if not asked:
            message = "no node agent answers on the nodes where this could run"
            return Found(reason=Reason.NO_NODE_AGENT, message=message)
        answers = dict(zip(asked, await asyncio.gather(*(self._ask(node, source.path) for node in asked)), strict=True))
        good = {node: answer.summary for node, answer in answers.items() if answer.summary is not None}
        if good:
            # Files of one name can differ between nodes; the larger one decides what is reserved.
            largest = max(good.values(), key=lambda summary: (summary.file_bytes, summary.block_count))
            return Found(summary=largest, reason=Reason.VALID, file_nodes=frozenset(good))
        faults = {node: answer.fault for node, answer in answers.items() if answer.fault is not None}
        telling = [node for node, fault in sorted(faults.items()) if fault.code != "ModelNotFound"]
        node = telling[0] if telling else min(faults)
        where = f"on {node}" if len(asked) == 1 or telling else f"on none of {len(asked)} nodes"
        fault = faults[node]
        # An agent that did not answer soon will, or falls silent; a file that is wrong takes a person.
        pause = KEPT_BAD if fault.code == "InspectionFailed" else 60
        return Found(reason=Reason(fault.code), message=f"{where}: {fault.message}", retry_after=pause)

    async def _ask(self, node: str, path: str) -> HeaderAnswer:
        key, loop = (node, path), asyncio.get_running_loop()
        kept = self._files.get(key)
        if kept is not None and kept.until > loop.time():
            return kept.answer
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.create_task(self._fetch(node, path))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        forgotten = self._forgotten
        answer = await asyncio.shield(task)
        seconds = KEPT_GOOD if answer.summary is not None else KEPT_BAD
        if forgotten == self._forgotten:
            self._files[key] = _Kept(answer, loop.time() + seconds)
        return answer

    async def _fetch(self, node: str, path: str) -> HeaderAnswer:
        try:
            async with self._places:
                return await self._agents.header(node, path)
        except AgentError as error:
            return _fault("InspectionFailed", str(error))

    # -- files in claims -----------------------------------------------------------------------------------------

    async def _in_claim(self, deployment: Deployment, source: ClaimSource | ImageSource) -> Found:
        key = f"{deployment.namespace}/{inspector_name(deployment.namespace, source)}"
        now = asyncio.get_running_loop().time()
        kept = self._claims.get(key)
        if kept is not None and (kept.answer.summary is not None or kept.until > now):
            return await self._with_volume(deployment, source, kept)
        if isinstance(source, ImageSource):
            return await self._inspect(deployment, source)
        try:
            await self._cluster.get(namespaced("persistentvolumeclaims", deployment.namespace, source.claim))
        except ClusterError as error:
            if not error.not_found:
                raise
            message = f"there is no PersistentVolumeClaim {source.claim} in namespace {deployment.namespace}"
            return Found(reason=Reason.CLAIM_NOT_FOUND, message=message, retry_after=15)
        return await self._inspect(deployment, source)

    async def _inspect(self, deployment: Deployment, source: ClaimSource | ImageSource) -> Found:
        """Start the inspector pod, or look at the one that runs."""
        name = inspector_name(deployment.namespace, source)
        settings = self._settings

        def made() -> JSON:
            return inspector_pod(
                deployment, source, settings.agent_image, settings.image_pull_policy, settings.server_user
            )

        pod = await started(self._cluster, deployment.namespace, name, made)
        if isinstance(pod, Found):
            return pod
        await self.inspected(pod)
        kept = self._claims.get(f"{deployment.namespace}/{name}")
        if kept is not None:
            return await self._with_volume(deployment, source, kept)
        return being_read(pod)

    async def inspected(self, pod: Mapping[str, object]) -> bool:
        """Take an inspector pod's answer if it has ended, and remove the pod; tells whether it had ended."""
        meta, status = pod.get("metadata"), pod.get("status")
        if not isinstance(meta, dict) or not isinstance(status, dict) or "deletionTimestamp" in meta:
            return False
        if status.get("phase") not in ("Succeeded", "Failed"):
            return False
        namespace, name = meta["namespace"], meta["name"]
        key, now = f"{namespace}/{name}", asyncio.get_running_loop().time()
        answer = await self._answer(namespace, name, status)
        before = self._claims.get(key)
        if before is not None and before.pod == meta["uid"]:
            return True  # Somebody else has taken it meanwhile, and removed the pod with its log.
        failures = 0 if answer.summary is not None else (before.failures + 1 if before is not None else 1)
        until = now + min(300.0, 10.0 * 2.0 ** min(failures, 8))
        self._claims[key] = _Kept(answer, until, failures, meta["uid"])
        await self._cluster.delete(namespaced("pods", namespace, name), meta.get("uid"))
        return True

    async def _answer(self, namespace: str, name: str, status: JSON) -> HeaderAnswer:
        line, words = await answer_of(self._cluster, namespace, name, status)
        if line is not None:
            with contextlib.suppress(ValidationError):
                return HeaderAnswer.model_validate_json(line)
        return _fault("InspectionFailed", words)

    async def _with_volume(self, deployment: Deployment, source: ClaimSource | ImageSource, kept: _Kept) -> Found:
        if kept.answer.summary is None:
            fault = kept.answer.fault
            wait = max(1.0, kept.until - asyncio.get_running_loop().time())
            code = Reason(fault.code) if fault is not None else Reason.INSPECTION_FAILED
            return Found(reason=code, message=fault.message if fault is not None else "", retry_after=wait)
        nodes = None
        if isinstance(source, ClaimSource):
            nodes = await self._volume_terms(deployment.namespace, source.claim)
        return Found(summary=kept.answer.summary, reason=Reason.VALID, volume_nodes=nodes)

    async def _volume_terms(self, namespace: str, claim: str) -> frozenset[str] | None:
        """Give the nodes that the claim's volume is tied to; None when it names none."""
        try:
            volume_name = (await self._cluster.get(namespaced("persistentvolumeclaims", namespace, claim)))["spec"].get(
                "volumeName"
            )
            if not volume_name:
                return None
            volume = await self._cluster.get(f"/api/v1/persistentvolumes/{volume_name}")
        except ClusterError as error:
            if error.not_found:
                return None
            raise
        terms = volume["spec"].get("nodeAffinity", {}).get("required", {}).get("nodeSelectorTerms") or []
        return frozenset(node.name for node in self.nodes.values() if any(_matches(term, node) for term in terms)) or (
            None if not terms else frozenset()
        )

    nodes: Mapping[str, Node] = {}
    """Every node; set by the controller."""


def _fault(code: str, message: str) -> HeaderAnswer:
    return HeaderAnswer.model_validate({"fault": {"code": code, "message": message[:1000]}})


def _matches(term: JSON, node: Node) -> bool:
    """Tell whether a node meets one term of a volume's node affinity."""
    for rule in term.get("matchExpressions") or ():
        value, values = node.labels.get(rule["key"]), rule.get("values") or []
        met = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }.get(rule.get("operator", "In"), True)
        if not met:
            return False
    for rule in term.get("matchFields") or ():
        if rule["key"] == "metadata.name" and (node.name in rule.get("values", ())) != (rule["operator"] == "In"):
            return False
    return True

"""Short pods that read a model's header, and how they hand back what they found: a marked line of their log."""

import logging
from collections.abc import Callable

from paddock.api.vocabulary import Reason
from paddock.controller.cluster import JSON, Cluster, ClusterError, namespaced
from paddock.controller.found import Found
from paddock.core.fetching import INSPECT

log = logging.getLogger("paddock.reader")
MARK = "PADDOCK-HEADER "
"""Start of the line that holds the answer."""
LOG_BYTES = 1024 * 1024


async def started(cluster: Cluster, namespace: str, name: str, make: Callable[[], JSON]) -> JSON | Found:
    """Give the pod that reads, made anew where there is none; Found where the API server refuses it."""
    try:
        return await cluster.get(namespaced("pods", namespace, name))
    except ClusterError as error:
        if not error.not_found:
            raise
    try:
        return await cluster.post(namespaced("pods", namespace), make())
    except ClusterError as refusal:
        if refusal.already_exists:
            return await cluster.get(namespaced("pods", namespace, name))
        if refusal.refused:
            return Found(reason=Reason.INSPECTION_FAILED, message=refusal.message, retry_after=60)
        raise


async def answer_of(cluster: Cluster, namespace: str, name: str, status: JSON) -> tuple[str | None, str]:
    """Give the answer of a pod that has ended, if it printed one, and how it ended, in words."""
    try:
        text = await cluster.log(namespace, name, INSPECT, limit_bytes=LOG_BYTES)
    except ClusterError as error:
        text = ""
        log.warning("cannot read the log of %s/%s: %s", namespace, name, error)
    found = next((line.removeprefix(MARK) for line in text.splitlines() if line.startswith(MARK)), None)
    why = status.get("message") or status.get("reason") or text.strip()[-300:] or "it printed no answer"
    return found, f"pod {name} ended as {status.get('phase')}: {why}"


def being_read(pod: JSON) -> Found:
    """Say that a pod reads, and what it waits for."""
    return Found(message=f"pod {pod['metadata']['name']} reads the header: {_state_of(pod)}", retry_after=30)


def _state_of(pod: JSON) -> str:
    status = pod.get("status") or {}
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return str(one.get("message", "not scheduled"))
    for one in status.get("containerStatuses") or ():
        waiting = (one.get("state") or {}).get("waiting")
        if waiting:
            return f"{waiting.get('reason', '')} {waiting.get('message', '')}".strip()
    return str(status.get("phase", "Pending"))

"""Headers of what is served beside a model: looked at together with it, and put together with what is known of it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from paddock.api.report import NodeReport
from paddock.api.source import CompanionStatus, ModelSpec
from paddock.api.vocabulary import Reason
from paddock.controller.found import Found
from paddock.core.companions import HOLDS, Present, Wanted, misfit, wanted_of
from paddock.core.deployment import Deployment
from paddock.core.fetching import told
from paddock.core.source import ModelRoot, RemoteSource, Source

Look = Callable[[Deployment, Source | RemoteSource, Iterable[str]], Awaitable[Found]]


def alone(deployment: Deployment, wanted: Wanted) -> Deployment:
    """Give a deployment of the companion alone: with its source, its Secret, and what is known of it."""
    spec = deployment.spec
    assert spec is not None  # noqa: S101 callers hold an accepted deployment
    model = ModelSpec(
        source=wanted.spec.source,
        secret_ref=wanted.spec.secret_ref,
        sha256=wanted.spec.sha256,
        cache=spec.model.cache if isinstance(wanted.source, RemoteSource) else None,
    )
    status = {"model": _stored(deployment, wanted)}
    return replace(deployment, spec=spec.model_copy(update={"model": model}), status=status)


def _stored(deployment: Deployment, wanted: Wanted) -> object:
    """Give what the status says of a companion, in the form that it has of a model."""
    model = deployment.status.get("model")
    known = model.get("companions") if isinstance(model, dict) else None
    source = told(wanted.spec.source)
    fitting = (one for one in known or () if isinstance(one, dict) and one.get("kind") == wanted.kind)
    return next((one for one in fitting if one.get("source") == source), None)


def keys_of(deployment: Deployment) -> set[str]:
    """Give the contents in caches that a deployment's status names."""
    model = deployment.status.get("model") or {}
    return {one["key"] for one in (model, *(model.get("companions") or ())) if "key" in one}


def moved_between(before: NodeReport | str | None, report: NodeReport, all_: Iterable[Deployment]) -> list[str]:
    """Give the deployments (namespace/name) whose files came to a node's cache between two reports, or went."""
    known = before.cache if isinstance(before, NodeReport) else None
    moved = {one.key for one in known or ()} ^ {one.key for one in report.cache or ()}
    return [one.key for one in all_ if not moved.isdisjoint(keys_of(one))] if moved else []


async def look_at_all(
    look: Look,
    deployment: Deployment,
    source: Source | RemoteSource,
    nodes: Sequence[str],
    roots: Sequence[ModelRoot],
) -> Found:
    """Look at a model and at all that is served beside it, at once."""
    spec = deployment.spec
    assert spec is not None  # noqa: S101 callers hold an accepted deployment
    beside = wanted_of(spec.model, roots)
    if isinstance(beside, str):
        return Found(reason=Reason.SOURCE_REFUSED, message=beside)
    looks = [look(deployment, source, nodes), *(look(alone(deployment, one), one.source, nodes) for one in beside)]
    looked, *others = await asyncio.gather(*looks)
    found = looked
    if found.summary is None:
        return found
    if found.summary.companion is not None:
        message = f"the file is {HOLDS[found.summary.companion.kind]}, no model: it serves beside one"
        return Found(reason=Reason.MODEL_UNSUPPORTED, message=message)
    for wanted, other in zip(beside, others, strict=True):
        if other.summary is None:
            return replace(other, message=f"{wanted.title}: {other.message}")
        if (problem := misfit(wanted.kind, other.summary, found.summary)) is not None:
            return Found(reason=Reason.MODEL_UNSUPPORTED, message=f"{wanted.title}: {problem}")
        found = _joined(found, wanted, other)
        if found.file_nodes == frozenset():
            message = f"no node has both the model and the {wanted.title}, or a cache for it"
            return Found(reason=Reason.MODEL_NOT_FOUND, message=message, retry_after=60)
    cached = [one.near_nodes for one in (looked, *others) if one.origin is not None and one.file_nodes is not None]
    return replace(found, near_nodes=frozenset.intersection(*cached) if cached else frozenset())


def _joined(found: Found, wanted: Wanted, other: Found) -> Found:
    """Add a companion to what was found: it must be reachable where the model is."""
    assert other.summary is not None  # noqa: S101 looked at by the caller
    waits = [one.retry_after for one in (found, other) if one.retry_after is not None]
    return replace(
        found,
        file_nodes=_both(found.file_nodes, other.file_nodes),
        volume_nodes=_both(found.volume_nodes, other.volume_nodes),
        beside=(*found.beside, Present(wanted, other.summary, other.origin)),
        retry_after=min(waits, default=None),
    )


def _both(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    return other if one is None else one if other is None else one & other


def status_of(present: Present) -> CompanionStatus:
    """Put a companion into the words of the status."""
    summary, origin = present.summary, present.origin
    return CompanionStatus(
        kind=present.wanted.kind,
        source=told(present.wanted.spec.source),
        pinned=origin.pinned if origin is not None else None,
        key=origin.key if origin is not None else None,
        path=origin.path if origin is not None else None,
        architecture=summary.architecture,
        parameters=summary.parameters,
        files=summary.files,
        size_bytes=origin.bytes if origin is not None else summary.file_bytes,
        digest=next((one.digest or one.etag for one in origin.files), None) if origin is not None else None,
    )

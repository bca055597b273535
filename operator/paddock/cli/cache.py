"""`paddock cache`: what the nodes' caches of fetched models hold, by short pods of the user's in the namespace."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from paddock import __version__
from paddock.api.vocabulary import Annotation, Label
from paddock.cli.access import JSON, deployments_path, find
from paddock.cli.output import CacheAction, Output
from paddock.cli.problem import ApiError, Problem
from paddock.cli.table import Column
from paddock.cli.target import Session
from paddock.cli.words import age, clean, size
from paddock.core.failures import FETCH
from paddock.core.fetching import Fetcher, cache_pod

POLL_SECONDS = 0.5
IMAGE = f"ghcr.io/paddock-dev/agent:{__version__}"


@dataclass(frozen=True)
class Asked:
    """What the user wants."""

    action: CacheAction
    nodes: list[str]
    keys: list[str]
    select: list[str]
    image: str | None
    timeout: float
    """Seconds that the pods may take."""


async def work(session: Session, asked: Asked, name: str | None, output: Output) -> None:
    """Do what is asked for."""
    if (name is None) == (asked.action is CacheAction.PREFETCH):
        raise Problem("prefetch needs the NAME of a ModelDeployment, the other actions take none", 2)
    if name is not None:
        await _prefetch(session, name, asked.select)
        return
    claims = await _claims(session, asked.nodes)
    fetcher = await _fetcher(session, asked.image)
    command = [asked.action.value, *(f"--key={key}" for key in asked.keys)]
    pods = [
        _Pod(session, node, claim, cache_pod(_name(node), session.namespace, claim, command, fetcher))
        for node, claim in claims
    ]
    lines = await asyncio.gather(*(one.run(asked.timeout) for one in pods), return_exceptions=True)
    broken = [one for one in lines if isinstance(one, BaseException)]
    if broken:
        raise broken[0]
    found = [line for one in lines if not isinstance(one, BaseException) for line in one]
    if output is not Output.TABLE:
        session.screen.data(found, output)
    else:
        _SHOW[asked.action](session, found)
    if any(one.get("ok") is False for one in found):
        raise Problem("a cached model is not what it should be: paddock cache clear --key KEY removes it")


async def _prefetch(session: Session, name: str, select: list[str]) -> None:
    """Have the operator start the pods that fetch."""
    found = await find(session.api, session.namespace, name)
    if str(found["spec"]["model"]["source"]).startswith(("file://", "pvc://", "image://")):
        raise Problem(f"{name} is not fetched: its source is {found['spec']['model']['source']}")
    pairs = [one.partition("=") for one in select]
    if any(not equals for _, equals, _ in pairs):
        raise Problem("--select is LABEL=VALUE", 2)
    selector: dict[str, str | None] = {label: value for label, _, value in pairs}
    known = found["spec"]["model"].get("prefetch", {}).get("nodeSelector", {})
    selector |= dict.fromkeys(known.keys() - selector.keys())  # null takes a label away
    body = {"spec": {"model": {"prefetch": {"nodeSelector": selector}}}}
    await session.api.patch(deployments_path(session.namespace, name), body)
    session.screen.line(f"The nodes fetch {name}; status.model.nodes of it says which have it.")


async def _claims(session: Session, nodes: list[str]) -> list[tuple[str, str]]:
    """Give node and claim of each cache that the namespace uses."""
    path = f"/api/v1/namespaces/{session.namespace}/persistentvolumeclaims"
    labels = f"{Label.MANAGED_BY}=paddock,{Label.MODEL_ROOT}"
    every = [one["metadata"] for one in await session.api.list(path, {"labelSelector": labels})]
    found = {
        str(one["annotations"][Annotation.NODE]): str(one["name"])
        for one in every
        if Annotation.NODE in (one.get("annotations") or {})
    }
    if missing := sorted(set(nodes) - found.keys()):
        raise Problem(f"namespace {session.namespace} does not use the cache of {', '.join(missing)}")
    if not found:
        raise Problem(f"namespace {session.namespace} uses no node's cache: no model was fetched for it yet")
    return sorted((node, claim) for node, claim in found.items() if not nodes or node in nodes)


async def _fetcher(session: Session, image: str | None) -> Fetcher:
    """Give what the operator's own pods of the namespace fetch with."""
    base = Fetcher(image or IMAGE)
    servers = {"labelSelector": f"{Label.COMPONENT}={Label.SERVER}"}
    for pod in await session.api.list(f"/api/v1/namespaces/{session.namespace}/pods", servers):
        for one in pod.get("spec", {}).get("initContainers") or ():
            if one["name"] == FETCH:
                user = pod["spec"].get("securityContext", {}).get("runAsUser", base.user)
                return replace(
                    base,
                    image=image or one["image"],
                    user=user,
                    pull_policy=one.get("imagePullPolicy", base.pull_policy),
                )
    return base


def _name(node: str) -> str:
    moment = datetime.now(UTC).isoformat()
    return f"paddock-cache-{sha256(f'{node} {moment}'.encode()).hexdigest()[:12]}"


class _Pod:
    """One pod on one node, from its start to its removal."""

    def __init__(self, session: Session, node: str, claim: str, body: JSON) -> None:
        self._session, self._node, self._claim, self._body = session, node, claim, body
        self._path = f"/api/v1/namespaces/{session.namespace}/pods"

    async def run(self, seconds: float) -> list[dict[str, Any]]:
        """Start it, wait for its end, and give what it said. Raises Problem and ApiError."""
        api, name = self._session.api, self._body["metadata"]["name"]
        await api.create(self._path, self._body)
        try:
            async with asyncio.timeout(seconds):
                phase = await self._phase(name)
                while phase not in ("Succeeded", "Failed"):
                    await asyncio.sleep(POLL_SECONDS)
                    phase = await self._phase(name)
            text = await api.log(self._session.namespace, name, container=FETCH)
        except TimeoutError as error:
            raise Problem(f"the pod {name} on {self._node} did not end within {seconds:.0f} s") from error
        finally:
            await api.delete(f"{self._path}/{name}")
        said = [one | {"node": self._node} for line in text.splitlines() if (one := _json(line))]
        failed = next((one for one in said if one.get("event") == "failed"), None)
        if failed is not None:
            raise Problem(f"{self._node}: {clean(failed.get('message', ''))}")
        if phase == "Failed" and not said:
            raise Problem(f"{self._node}: the pod failed: {clean(text)[-300:]}")
        return said

    async def _phase(self, name: str) -> str:
        try:
            pod = await self._session.api.get(f"{self._path}/{name}")
        except ApiError as error:
            if error.not_found:
                raise Problem(f"the pod {name} on {self._node} was removed") from error
            raise
        return str((pod.get("status") or {}).get("phase", "Pending"))


def _json(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _show_list(session: Session, found: list[dict[str, Any]]) -> None:
    models = [one for one in found if one.get("event") == "model"]
    if not models:
        session.screen.line("The caches hold no model.")
        return
    columns = [Column("NODE", least=8), Column("KEY"), Column("SIZE", right=True), Column("USED", right=True)]
    columns += [Column("IN USE"), Column("SOURCE", least=16)]
    rows = [
        [
            clean(one["node"]),
            clean(one["key"]),
            size(one.get("bytes")),
            age(datetime.fromtimestamp(one.get("used", 0), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), session.now()),
            "yes" if one.get("inUse") else "no",
            clean(one.get("source", "")),
        ]
        for one in models
    ]
    session.screen.table(columns, rows)


def _show_lines(session: Session, found: list[dict[str, Any]]) -> None:
    """Tell what was verified or removed, a line each."""
    for one in found:
        node, key = clean(one["node"]), clean(one.get("key", ""))
        match one.get("event"):
            case "verified":
                words = "is whole" if one.get("ok") else clean(one.get("message", ""))
                session.screen.line(f"{node}: {key} {words}")
            case "removed":
                session.screen.line(
                    f"{node}: {key} removed, {size(one.get('bytes'))} of {clean(one.get('source', ''))}"
                )
            case "cleared":
                session.screen.line(f"{node}: {size(one.get('bytes'))} left in the cache")
            case _:
                pass


_SHOW: dict[CacheAction, Callable[[Session, list[dict[str, Any]]], None]] = {
    CacheAction.LIST: _show_list,
    CacheAction.CLEAR: _show_lines,
    CacheAction.VERIFY: _show_lines,
}

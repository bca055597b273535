"""`paddock doctor`: reads what a cluster tells of an installation, and says what to do."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import TypeVar

import typer
import yaml
from rich.text import Text

from paddock import __version__
from paddock.api.crd import crds
from paddock.api.vocabulary import VERSION, Label
from paddock.cli.access import GPUS, JSON, Api
from paddock.cli.explain import if_allowed
from paddock.cli.output import Output
from paddock.cli.problem import ApiError
from paddock.cli.reading import gpus_of
from paddock.cli.screen import Screen
from paddock.cli.target import Session
from paddock.cli.version import VERSION_LABEL
from paddock.cli.words import clean, moment_of, plural
from paddock.core.checkup import Facts, Finding, Gpu, Kind, Lease, Node, Pod, State, Workload
from paddock.core.doctor import examine, fields_of, worst
from paddock.core.fleet import DEPLOYED
from paddock.core.quantity import parse_quantity
from paddock.core.rights import Right, options_of, rights

T = TypeVar("T")
STYLES = {State.OK: "green", State.WARNING: "yellow", State.WRONG: "bold red"}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
REVIEW = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
LEASES = "/apis/coordination.k8s.io/v1/namespaces"
AT_ONCE = 8
"""Questions about rights that are under way together."""
_GPU_LABELS = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present", "amd.com/gpu.product-name")


async def doctor(session: Session, node: str | None, output: Output) -> None:
    """Examine the cluster, or one node of it. Exit status 1 when something is wrong."""
    found = examine(await read(session), node)
    if output in (Output.JSON, Output.YAML):
        session.screen.data(to_dict(found), output)
    else:
        show(session.screen, found)
    if worst(found) is State.WRONG:
        raise typer.Exit(1)


def to_dict(findings: Sequence[Finding]) -> JSON:
    """Give findings as plain values."""
    return {
        "state": worst(findings).value,
        "findings": [
            {
                "check": one.check,
                "state": one.state.value,
                **({"node": one.node} if one.node else {}),
                "message": one.message,
                **({"remedy": one.remedy} if one.remedy else {}),
            }
            for one in findings
        ],
    }


def show(screen: Screen, findings: Sequence[Finding]) -> None:
    """Print one line for each check with what to do; in a terminal that stands below it."""
    width = max(len(one.check) for one in findings)
    for one in findings:
        message = clean(f"{one.node}: {one.message}" if one.node else one.message)
        remedy = clean(f"-> {one.remedy}") if one.remedy else ""
        label = Text.assemble((f"{one.state.value:<9}", STYLES[one.state]), f"{one.check:<{width}}  ")
        if screen.terminal:
            screen.line(message, label)
            if remedy:
                screen.line(Text(remedy, style="dim"), " " * label.cell_len)
        else:
            screen.line(f"{message}  {remedy}".rstrip(), label)
    bad = sum(one.state is not State.OK for one in findings)
    screen.line(f"{plural(len(findings), 'check')}, {f'{bad} to look at' if bad else 'all well'}.")


# --- reading -------------------------------------------------------------------------------------------------------


async def read(session: Session) -> Facts:
    """Read everything that the user may read."""
    api = session.api
    now, skew = await _server_time(session)
    deployments = await if_allowed(api, "/apis/apps/v1/deployments", {"labelSelector": _ours("operator")})
    operators = None if deployments is None else [_workload(one) for one in deployments]
    home = operators[0].namespace if operators else ""
    environment = _environment(deployments[0]) if deployments else {}
    daemons = await if_allowed(api, "/apis/apps/v1/daemonsets", {"labelSelector": _ours(Label.NODE_AGENT)})
    warnings = await _warnings(api, home)
    classes = await if_allowed(api, "/apis/node.k8s.io/v1/runtimeclasses")
    gpus = await if_allowed(api, GPUS)
    return Facts(
        client=__version__,
        kinds=await _kinds(api),
        operators=operators,
        agents=None if daemons is None else [_daemon(one) for one in daemons],
        pods=await _pods(api, warnings),
        warnings=warnings,
        lease=await _lease(api, home, now),
        lacking_rights=await _lacking(api, home, environment, operators),
        runtime_classes=None if classes is None else frozenset(one["metadata"]["name"] for one in classes),
        pod_security=await _pod_security(api, home),
        nodes=await _nodes(api, now),
        gpus=None if gpus is None else [Gpu(one.name, one.status, one.spec.quarantine) for one in gpus_of(gpus)],
        skew=skew,
    )


def _ours(component: str) -> str:
    return f"{Label.NAME}=paddock,{Label.COMPONENT}={component}"


async def _if_allowed(work: Awaitable[T]) -> T | None:
    """Wait for an answer; None where the user may not have it, or there is none."""
    try:
        return await work
    except ApiError as error:
        if error.forbidden or error.not_found:
            return None
        raise


async def _server_time(session: Session) -> tuple[datetime, float | None]:
    """Ask the API server for its time: it stamps a review of who asks, which every user may have."""
    before = session.now()
    answer = await _if_allowed(
        session.api.create(WHO_AM_I, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    )
    after = session.now()
    theirs = moment_of(((answer or {}).get("metadata") or {}).get("creationTimestamp"))
    if theirs is None:
        return after, None
    ours = before + (after - before) / 2
    # Stamps are whole seconds, rounded down.
    return theirs, max(0.0, (ours - theirs).total_seconds() - 1) if ours > theirs else (ours - theirs).total_seconds()


@cache
def _known() -> dict[str, frozenset[str]]:
    """Give the fields that this program knows, by the name of the definition."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    ours = [yaml.load(text, loader) for text in crds().values()]  # noqa: S506 a safe loader, in C where there is one
    return {one["metadata"]["name"]: _fields(one) for one in ours}


async def _kinds(api: Api) -> list[Kind] | None:
    found = []
    for name, mine in _known().items():
        try:
            theirs = await api.get(f"{DEFINITIONS}/{name}")
        except ApiError as error:
            if error.forbidden:
                return None
            if not error.not_found:
                raise
            found.append(Kind(name, there=False))
            continue
        conditions = (theirs.get("status") or {}).get("conditions") or ()
        established = any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
        other = _fields(theirs)
        lacks, more = tuple(sorted(mine - other)), tuple(sorted(other - mine))
        found.append(Kind(name, established=established and bool(other), older=lacks, newer=more))
    return found


def _fields(definition: JSON) -> frozenset[str]:
    """Give the fields of the version that this program speaks; none where that is not served."""
    versions = definition["spec"]["versions"]
    served = next((one for one in versions if one["name"] == VERSION and one["served"]), None)
    return frozenset(fields_of(served["schema"]["openAPIV3Schema"])) if served else frozenset()


def _workload(one: JSON) -> Workload:
    meta, status = one["metadata"], one.get("status") or {}
    return Workload(
        meta["namespace"],
        meta["name"],
        (meta.get("labels") or {}).get(VERSION_LABEL, "unknown"),
        one["spec"].get("replicas", 1),
        status.get("readyReplicas", 0),
    )


def _daemon(one: JSON) -> Workload:
    meta, status = one["metadata"], one.get("status") or {}
    version = (meta.get("labels") or {}).get(VERSION_LABEL, "unknown")
    wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
    runtime = one["spec"]["template"]["spec"].get("runtimeClassName", "")
    return Workload(meta["namespace"], meta["name"], version, wanted, ready, runtime)


def _environment(deployment: JSON) -> dict[str, str]:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value", "") for container in containers for one in container.get("env") or ()}


async def _warnings(api: Api, namespace: str) -> dict[str, str]:
    """Give Kubernetes' last warning about each object of the operator's namespace."""
    if not namespace:
        return {}
    events = await if_allowed(api, f"/api/v1/namespaces/{namespace}/events", {"fieldSelector": "type=Warning"}) or []
    events.sort(key=lambda one: one.get("lastTimestamp") or one.get("eventTime") or "")
    return {one["involvedObject"]["name"]: one.get("message", "") for one in events if one.get("involvedObject")}


async def _pods(api: Api, warnings: Mapping[str, str]) -> list[Pod] | None:
    """Read the chart's pods, and those that the operator makes."""
    found: dict[tuple[str, str], JSON] = {}
    for selector in (f"{Label.NAME}=paddock", f"{Label.MANAGED_BY}=paddock"):
        pods = await if_allowed(api, "/api/v1/pods", {"labelSelector": selector})
        if pods is None:
            return None
        found |= {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in pods}
    return [_pod(one, warnings) for one in found.values()]


def _pod(one: JSON, warnings: Mapping[str, str]) -> Pod:
    meta, status = one["metadata"], one.get("status") or {}
    told = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    stuck = next((each for each in told if (each.get("state") or {}).get("waiting")), None)
    waiting = stuck["state"]["waiting"] if stuck else {}
    conditions = status.get("conditions") or ()
    unplaced = next((each.get("message", "") for each in conditions if each.get("reason") == "Unschedulable"), "")
    containers = one.get("spec", {}).get("containers") or [{}]
    return Pod(
        meta["namespace"],
        meta["name"],
        (meta.get("labels") or {}).get(Label.COMPONENT, ""),
        node=one.get("spec", {}).get("nodeName") or _meant(one),
        ready=any(each["type"] == "Ready" and each["status"] == "True" for each in conditions),
        ended=status.get("phase") == "Succeeded" or "deletionTimestamp" in meta,
        image=(stuck or {}).get("image") or containers[0].get("image", ""),
        waiting=waiting.get("reason", ""),
        message=waiting.get("message") or unplaced or warnings.get(meta["name"], ""),
    )


def _meant(pod: JSON) -> str:
    """Give the node that a DaemonSet meant a pod for, before it is there."""
    affinity = ((pod.get("spec") or {}).get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    for term in terms:
        for one in term.get("matchFields") or ():
            if one.get("key") == "metadata.name" and one.get("values"):
                return str(one["values"][0])
    return ""


async def _lease(api: Api, namespace: str, now: datetime) -> Lease | None:
    if not namespace:
        return None
    found = await _if_allowed(api.get(f"{LEASES}/{namespace}/leases/paddock-operator"))
    if found is None:
        return None
    spec = found.get("spec") or {}
    renewed = moment_of(spec.get("renewTime"))
    age = None if renewed is None else (now - renewed).total_seconds()
    return Lease(spec.get("holderIdentity") or "", age, float(spec.get("leaseDurationSeconds") or 15))


async def _lacking(
    api: Api, namespace: str, environment: Mapping[str, str], operators: Sequence[Workload] | None
) -> list[str] | None:
    """Ask which rights the operator's ServiceAccount lacks; None where the user may not ask."""
    if not operators:
        return None
    served = [one for one in environment.get("PADDOCK_WATCH_NAMESPACES", "").split(",") if one]
    roots = environment.get("PADDOCK_MODEL_ROOTS", "[]")
    folders = roots not in ("", "[]") or bool(environment.get("PADDOCK_CACHE_FOLDER"))
    account = f"system:serviceaccount:{namespace}:{operators[0].name}"
    slots = asyncio.Semaphore(AT_ONCE)

    async def allowed(right: Right) -> bool:
        async with slots:
            answer = await api.create(REVIEW, _review(account, right))
        return bool((answer.get("status") or {}).get("allowed"))

    wanted = list(rights(namespace, served, folders=folders, options=options_of(environment)))
    answers = await _if_allowed(asyncio.gather(*(allowed(one) for one in wanted)))
    return None if answers is None else [one.words for one, yes in zip(wanted, answers, strict=True) if not yes]


def _review(account: str, right: Right) -> JSON:
    asked = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "subresource": right.subresource,
        "namespace": right.namespace,
        "name": right.name,
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": account, "resourceAttributes": {key: value for key, value in asked.items() if value}},
    }


async def _pod_security(api: Api, namespace: str) -> str:
    found = await _if_allowed(api.get(f"/api/v1/namespaces/{namespace}")) if namespace else None
    labels = ((found or {}).get("metadata") or {}).get("labels") or {}
    return str(labels.get("pod-security.kubernetes.io/enforce", ""))


async def _nodes(api: Api, now: datetime) -> list[Node] | None:
    nodes = await if_allowed(api, "/api/v1/nodes")
    if nodes is None:
        return None
    leases = await if_allowed(api, f"{LEASES}/kube-node-lease/leases") or []
    renewed = {one["metadata"]["name"]: moment_of((one.get("spec") or {}).get("renewTime")) for one in leases}
    return [_node(one, renewed.get(one["metadata"]["name"]), now) for one in nodes]


def _node(one: JSON, renewed: datetime | None, now: datetime) -> Node:
    meta, status = one["metadata"], one.get("status") or {}
    labels = meta.get("labels") or {}
    return Node(
        meta["name"],
        any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ()),
        {name: _count(value) for name, value in (status.get("allocatable") or {}).items() if "/" in name},
        None if renewed is None else (now - renewed).total_seconds(),
        any(labels.get(name) not in (None, "false") for name in _GPU_LABELS),
        labels.get(Label.DEDICATED) == "true",
        labels.get(DEPLOYED) == "false",
    )


def _count(quantity: object) -> int:
    try:
        return int(parse_quantity(str(quantity)))
    except ValueError:
        return 0

"""What is wrong with an installation, and what to do: facts of a cluster in, findings out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from paddock.api.vocabulary import REASONS, Label, Reason
from paddock.core.checkup import Facts, Finding, Gpu, Kind, Node, Pod, State
from paddock.core.fleet import DEPLOYED
from paddock.core.health import ready_of

JSON = Mapping[str, Any]
SKEW: Final = 5.0
"""Seconds by which two clocks may differ."""
SILENT: Final = 90.0
"""Seconds without a heartbeat of a node that is Ready: Kubernetes itself allows 40."""
NO_IMAGE: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
VENDORS: Final = ("nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu", "gpu.intel.com/")
"""How resources of the vendors' device plugins begin."""


_TOLD_ELSEWHERE: Final = frozenset({"", Reason.LISTING_FAILED, Reason.QUARANTINED})
"""Reasons of the Ready condition that another check tells; the empty one is that of a device that is Ready."""


def fields_of(schema: JSON, prefix: str = "") -> Iterator[str]:
    """Give the paths of all fields of a structural schema."""
    for name, below in (schema.get("properties") or {}).items():
        path = f"{prefix}.{name}" if prefix else name
        yield path
        yield from fields_of(below, path)
    for key in ("items", "additionalProperties"):
        below = schema.get(key)
        if isinstance(below, Mapping):
            yield from fields_of(below, f"{prefix}[]")


def examine(facts: Facts, node: str | None = None) -> tuple[Finding, ...]:
    """Make all checks, in the order in which their remedies are best tried; of one node only, where asked."""
    found = [one for check in _CHECKS for one in check(facts)]
    return tuple(one for one in found if node is None or one.node in {"", node})


def worst(findings: Sequence[Finding]) -> State:
    """Give the worst state."""
    states = {one.state for one in findings}
    return next((state for state in (State.WRONG, State.WARNING) if state in states), State.OK)


def _unread(check: str, what: str) -> Finding:
    return Finding(
        check, State.WARNING, f"not checked: you may not read {what}", "ask as an administrator of the cluster"
    )


# --- what is installed ---------------------------------------------------------------------------------------------


def _kinds(facts: Facts) -> Iterator[Finding]:
    check = "kinds"
    if facts.kinds is None:
        yield _unread(check, "CustomResourceDefinitions")
        return
    bad = list(_bad_kinds(check, facts.kinds))
    yield from bad
    if not bad:
        yield Finding(check, State.OK, f"{len(facts.kinds)} definitions, as paddock {facts.client} knows them")


def _bad_kinds(check: str, kinds: Sequence[Kind]) -> Iterator[Finding]:
    apply = "paddock crds | kubectl apply --server-side -f -, or upgrade the chart with crds.install"
    for one in kinds:
        if not one.there:
            yield Finding(check, State.WRONG, f"the cluster does not know {one.name}", f"install the chart, or {apply}")
        elif not one.established:
            yield Finding(
                check,
                State.WRONG,
                f"{one.name} is not served",
                f"kubectl describe crd {one.name} says what is in its way",
            )
        elif one.older:
            yield Finding(
                check,
                State.WRONG,
                f"{one.name} is older than this program: it drops {_some(one.older)} from objects",
                apply,
            )
        elif one.newer:
            yield Finding(
                check,
                State.WARNING,
                f"{one.name} is newer than this program, which does not know {_some(one.newer)}",
                "install the paddock command line of the operator's version",
            )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")  # noqa: PLR2004 a few


def _operator(facts: Facts) -> Iterator[Finding]:
    check = "operator"
    if facts.operators is None:
        yield _unread(check, "Deployments of all namespaces")
        return
    if not facts.operators:
        yield Finding(check, State.WRONG, "no operator is installed", "helm install paddock: docs/install.md")
        return
    spaces = sorted({one.namespace for one in facts.operators})
    if len(facts.operators) > 1:
        names = ", ".join(f"{one.namespace}/{one.name}" for one in facts.operators)
        yield Finding(
            check,
            State.WRONG if len(spaces) > 1 else State.WARNING,
            f"there are several: {names}",
            "uninstall all but one release: each namespace has a Lease of its own, so they work against each other",
        )
    for one in facts.operators:
        where = f"{one.namespace}/{one.name}"
        if one.ready < min(1, one.wanted) or not one.wanted:
            why = "it is scaled to 0" if not one.wanted else facts.warnings.get(one.name, "none of its pods is ready")
            yield Finding(
                check, State.WRONG, f"{where} is not up: {why}", f"kubectl -n {one.namespace} describe deployment,pod"
            )
        elif one.version != facts.client:
            yield Finding(
                check,
                State.WARNING,
                f"{where} is {one.version}, this program is {facts.client}",
                f"install paddock {one.version} here, or upgrade the chart",
            )
        else:
            yield Finding(check, State.OK, f"{where} is up, version {one.version}")


def _lease(facts: Facts) -> Iterator[Finding]:
    check = "lease"
    if facts.lease is None:
        if facts.operators:
            message = "nobody leads, or you may not read the Lease paddock-operator"
            yield Finding(check, State.WARNING, message, "see the operator's log: it must be able to write its Lease")
        return
    lease = facts.lease
    if not lease.holder:
        yield Finding(check, State.WRONG, "nobody leads: the last leader gave up", "see that the operator is up")
    elif lease.age is None or lease.age > 2 * lease.seconds:
        late = "never" if lease.age is None else f"{lease.age:.0f} s ago"
        message = f"{lease.holder} renewed it {late}; it holds {lease.seconds:.0f} s"
        yield Finding(check, State.WRONG, message, "see the operator's log: it hangs, or cannot reach the API server")
    elif facts.pods is not None and not any(one.name == lease.holder for one in facts.pods):
        message = f"{lease.holder} leads, and is no pod of this installation"
        yield Finding(check, State.WARNING, message, "an operator outside the cluster? End it: two will contend")
    else:
        yield Finding(check, State.OK, f"{lease.holder} leads, renewed {max(0.0, lease.age):.0f} s ago")


def _rights(facts: Facts) -> Iterator[Finding]:
    check = "rights"
    if not facts.operators:
        return
    if facts.lacking_rights is None:
        yield _unread(check, "what the operator's ServiceAccount may do (create subjectaccessreviews)")
    elif facts.lacking_rights:
        yield Finding(
            check,
            State.WRONG,
            f"the operator may not: {_some(facts.lacking_rights)}",
            "helm upgrade: roles and bindings of the chart were changed or removed, or are of an older version",
        )
    else:
        yield Finding(check, State.OK, "the operator has all its rights")


def _images(facts: Facts) -> Iterator[Finding]:
    check = "images"
    if facts.pods is None:
        yield _unread(check, "pods of all namespaces")
        return
    bad = [one for one in facts.pods if one.waiting in NO_IMAGE]
    for image in sorted({one.image for one in bad}):
        mine = [one for one in bad if one.image == image]
        whose = f"{mine[0].namespace}/{mine[0].name}" + (f" and {len(mine) - 1} more" if mine[1:] else "")
        yield Finding(
            check,
            State.WRONG,
            f"{image} cannot be pulled for {whose}: {mine[0].message or mine[0].waiting}",
            "check the name, the registry's reachability from the node, and images.pullSecrets",
            mine[0].node if len({one.node for one in mine}) == 1 else "",
        )
    if not bad:
        yield Finding(check, State.OK, f"no pod waits for its image ({len(facts.pods)} pods)")


# --- nodes ---------------------------------------------------------------------------------------------------------


def _runtime(facts: Facts) -> Iterator[Finding]:
    check = "runtime class"
    wanted = {one.runtime_class: one for one in facts.agents or () if one.runtime_class}
    if facts.runtime_classes is None:
        yield _unread(check, "RuntimeClasses")
        return
    for name, one in sorted(wanted.items()):
        if name not in facts.runtime_classes:
            yield Finding(
                check,
                State.WRONG,
                f"{one.namespace}/{one.name} asks for RuntimeClass {name}, which does not exist, so it has no pods",
                "install NVIDIA's container toolkit with its RuntimeClass, or name another one in the chart's values",
            )
    if wanted and wanted.keys() <= facts.runtime_classes:
        yield Finding(check, State.OK, ", ".join(sorted(wanted)))


def _security(facts: Facts) -> Iterator[Finding]:
    if facts.pod_security in {"baseline", "restricted"}:
        yield Finding(
            "pod security",
            State.WARNING,
            f"the operator's namespace enforces {facts.pod_security}, which refuses the agents' hostPath and hostPID",
            "label it pod-security.kubernetes.io/enforce=privileged, or set modelRoots to [] and agent.hostPID: false",
        )


def _agents(facts: Facts) -> Iterator[Finding]:
    check = "agents"
    if facts.agents is None or facts.pods is None:
        yield _unread(check, "DaemonSets and pods of all namespaces")
        return
    if not facts.agents and facts.operators:
        yield Finding(check, State.WRONG, "there is no agent, so no GPU is found", "give the chart's value agents")
    pods = [one for one in facts.pods if one.component == Label.NODE_AGENT and not one.ended]
    bad = [one for one in pods if not one.ready and one.waiting not in NO_IMAGE]
    for one in bad:
        why = one.message or one.waiting or "it is not ready"
        yield Finding(check, State.WRONG, f"{one.name} does not run: {why}", _to_run(why, one), one.node)
    for each in facts.agents:
        if each.wanted and not pods:
            why = facts.warnings.get(each.name, "its pods are not made")
            yield Finding(
                check, State.WRONG, f"{each.namespace}/{each.name} has no pods: {why}", "remove what it names"
            )
    having = {one.node for one in pods}
    for node in facts.nodes or ():
        if (node.has_gpu or _vendor(node)) and node.name not in having:
            yield Finding(
                check,
                State.WARNING,
                "the node seems to have GPUs, and no agent",
                "see nodeSelector and tolerations of the chart's agents; or it is left to others on purpose",
                node.name,
            )
    if pods and not bad:
        yield Finding(check, State.OK, f"{len(pods)} of {len(pods)} ready")


def _to_run(why: str, pod: Pod) -> str:
    if "runtime" in why and ("no runtime for" in why or "no such handler" in why or "handler" in why):
        return "the node's containerd or CRI-O has no such runtime: install the container toolkit there and restart it"
    return f"kubectl -n {pod.namespace} describe pod {pod.name}"


def _driver(facts: Facts) -> Iterator[Finding]:
    check = "driver"
    if any(not one.there for one in facts.kinds or ()):
        return  # there can be no GPU objects, and that is told
    if facts.gpus is None:
        yield _unread(check, "GPUs (bind the cluster role paddock-gpu-viewer)")
        return
    if not facts.gpus:
        if facts.operators:
            yield Finding(
                check,
                State.WRONG,
                "no GPU was ever listed",
                "kubectl logs of an agent names what fails: no driver, no library, no device",
            )
        return
    bad = False
    for node, gpus in _by_node(facts.gpus).items():
        failing = next((one for one in gpus if _reason(one) == Reason.LISTING_FAILED), None)
        blind = [one for one in gpus if (one.status.uuid or "").startswith("GPU-") and not one.status.driver]
        if failing is not None:
            bad = True
            remedy = REASONS[Reason.LISTING_FAILED].remedy
            yield Finding(check, State.WRONG, _message(failing), remedy, node)
        elif blind:
            bad = True
            yield Finding(check, State.WARNING, "the driver does not tell its version", "look at the agent's log", node)
    if not bad:
        versions = sorted({one.status.driver for one in facts.gpus if one.status.driver})
        yield Finding(check, State.OK, f"{len(facts.gpus)} GPUs listed; NVIDIA {', '.join(versions) or 'none'}")


def _reports(facts: Facts) -> Iterator[Finding]:
    check = "reports"
    if not facts.gpus:
        return
    bad: dict[tuple[str, str], list[Gpu]] = {}
    for one in facts.gpus:
        if _reason(one) not in _TOLD_ELSEWHERE:
            bad.setdefault((one.status.node, _reason(one)), []).append(one)
    for (node, reason), gpus in bad.items():
        remedy = REASONS[Reason(reason)].remedy if reason in set(Reason) else "see kubectl describe gpu"
        names = _some([one.name for one in gpus])
        yield Finding(check, State.WRONG, f"{names} not ready, {reason}: {_message(gpus[0])}", remedy, node)
    if not bad:
        yield Finding(check, State.OK, f"{len(facts.gpus)} GPUs reported")


def _quarantines(facts: Facts) -> Iterator[Finding]:
    check = "quarantine"
    for one in facts.gpus or ():
        if one.quarantined:
            message = f"{one.name} is in quarantine by its owner (spec.quarantine)"
            remedy = (
                f'once it is sound: kubectl patch gpu {one.name} --type merge -p \'{{"spec":{{"quarantine":false}}}}\''
            )
            yield Finding(check, State.WARNING, message, remedy, one.status.node)
        for each in one.status.apart:
            who = each.deployment or "nobody"
            gets = "gets nothing" if each.deployment else "gets anything"
            yield Finding(
                check,
                State.WARNING,
                f"{who} {gets} on {one.name} until {each.until}: {each.message}",
                "it is tried again by itself; where that repeats, look at the server's log and the card",
                one.status.node,
            )


def _plugins(facts: Facts) -> Iterator[Finding]:
    check = "plugins"
    if facts.nodes is None:
        yield _unread(check, "nodes")
        return
    ours = {one.status.node for one in facts.gpus or ()}
    bad = [(node, name) for node in facts.nodes if node.name in ours and not node.dedicated and (name := _vendor(node))]
    for node in facts.nodes:
        if node.name in ours and not (node.dedicated or _vendor(node)) and (left := _listed(node)):
            yield Finding(
                check,
                State.WARNING,
                f"{left} is listed with 0: its plugin may come back, so nothing new is placed on these cards",
                f"where the plugin is gone for good: kubectl label node {node.name} {DEPLOYED}=false",
                node.name,
            )
    for node, name in bad:
        yield Finding(
            check,
            State.WARNING,
            f"a vendor's device plugin offers {node.resources[name]} {name}, so nothing new is placed on these cards",
            f"keep the plugin off the node, or, where nothing else asks for its GPUs: "
            f"kubectl label node {node.name} {Label.DEDICATED}=true",
            node.name,
        )
    deaf = sorted(
        {one.status.node for one in facts.gpus or () if one.status.plugin and not one.status.plugin.registered}
    )
    for name in deaf:
        yield Finding(
            check,
            State.WARNING,
            "the kubelet does not listen to the agent's device plugin, so nothing new is placed there",
            "see the log of the agent's container device-plugin, and agent.devicePlugin.kubeletFolder",
            name,
        )
    if not bad and not deaf:
        yield Finding(check, State.OK, "no vendor's device plugin offers Paddock's cards")


def _clock(facts: Facts) -> Iterator[Finding]:
    check = "clock"
    bad = False
    if facts.skew is not None and abs(facts.skew) > SKEW:
        bad = True
        ahead = "ahead of" if facts.skew > 0 else "behind"
        message = f"this machine's clock is {abs(facts.skew):.0f} s {ahead} the API server's"
        yield Finding(check, State.WARNING, message, "ages in tables are wrong by as much; set the time by NTP")
    for node in facts.nodes or ():
        if node.heartbeat is None or not node.ready:
            continue
        if node.heartbeat < -SKEW or node.heartbeat > SILENT:
            bad = True
            ahead = "ahead of" if node.heartbeat < 0 else "behind"
            message = f"its clock is {abs(node.heartbeat):.0f} s {ahead} the API server's, or its kubelet is silent"
            yield Finding(
                check, State.WRONG, message, "set the node's time by NTP: certificates depend on it", node.name
            )
    if not bad and (facts.skew is not None or facts.nodes):
        yield Finding(check, State.OK, "this machine, the API server and the nodes agree")


# --- small words ---------------------------------------------------------------------------------------------------


def _by_node(gpus: Sequence[Gpu]) -> dict[str, list[Gpu]]:
    out: dict[str, list[Gpu]] = {}
    for one in gpus:
        out.setdefault(one.status.node, []).append(one)
    return out


def _reason(gpu: Gpu) -> str:
    """Say why it is not ready; nothing for one that is."""
    found = ready_of(gpu.status)
    return "NoReport" if found is None else "" if found.status == "True" else found.reason


def _message(gpu: Gpu) -> str:
    found = ready_of(gpu.status)
    return "no agent has reported it" if found is None else found.message


def _vendor(node: Node) -> str:
    return next((name for name in node.resources if name.startswith(VENDORS) and node.resources[name]), "")


def _listed(node: Node) -> str:
    awaited = (name for name in node.resources if name.startswith(VENDORS))
    return next((name for name in awaited if not (node.kept_off and name.startswith("nvidia.com/"))), "")


_CHECKS: Final[tuple[Callable[[Facts], Iterator[Finding]], ...]] = (
    _kinds,
    _operator,
    _lease,
    _rights,
    _images,
    _runtime,
    _security,
    _agents,
    _driver,
    _reports,
    _quarantines,
    _plugins,
    _clock,
)

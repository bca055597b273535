"""Pods that reach out for model files: one reads the header, one fetches ahead of need, and each server fetches first.

All of them run as the server's user, meet restricted Pod Security, and get the Secret of their own namespace as files;
the server itself never sees that Secret, and reads the cache only.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paddock.api.fetched import Further, Origin
from paddock.api.modeldeployment import ModelDeploymentSpec
from paddock.api.source import Companion, ModelSpec
from paddock.api.vocabulary import Annotation, Label
from paddock.core.deployment import Deployment
from paddock.core.failures import FETCH, HOLD
from paddock.core.pod import (
    DRAIN_SECONDS,
    MOST_SECONDS,
    PORT,
    RESTRICTED_CONTAINER,
    SERVER_USER,
    Mounted,
    restricted,
    verbatim,
)
from paddock.core.source import ModelRoot, parse_remote

CACHE_MOUNT = "/model-cache"
"""Where the cache is mounted, in agents and in all pods."""
SECRET_MOUNT = "/etc/paddock/source"  # noqa: S105 a folder
TRUSTED_MOUNT = "/etc/paddock/trusted"
VOLUME = "model"
"""Name of the volume that holds the model's files."""
INSPECT = "inspect"
"""Name of the container that reads a header."""
_MODULE = "paddock.fetch.main"
_PATH = re.compile(r"models/(?P<key>[A-Za-z0-9][A-Za-z0-9._-]*)/[^/.\x00-\x1f][^/\x00-\x1f]*")


class CacheRoot(ModelRoot):
    """The folder of the nodes in which fetched files are kept; pods of every namespace that fetches may write there."""


def cache_root(host_path: str) -> CacheRoot:
    """Give the cache of a node that is called `host_path` there."""
    return CacheRoot(path=CACHE_MOUNT, host_path=host_path)


@dataclass(frozen=True, slots=True)
class Fetcher:
    """What the operator adds to pods that fetch."""

    image: str
    pull_policy: str = "IfNotPresent"
    user: int = SERVER_USER
    environment: Mapping[str, str] = field(default_factory=dict)
    """PADDOCK_FETCH_... variables."""
    certificates: str = ""
    """PEM; certificates that are trusted beside the usual ones."""
    limit: int | None = None
    """Bytes that a node's cache may hold; None = as many as there is room for."""


@dataclass(frozen=True, slots=True)
class Order:
    """One content that a pod fetches: of the model, or of what is served beside it."""

    origin: Origin
    spec: ModelSpec | Companion
    """Where the user's words for it are."""
    name: str = ""
    """For messages about what is not the model itself: projector, draft model."""

    @property
    def secret(self) -> str | None:
        """Name of the Secret with what its source asks for."""
        return self.spec.secret_ref.name if self.spec.secret_ref is not None else None


def told(source: str) -> str:
    """Give a source as a status names it: without its query, which may hold a signature."""
    return source.partition("?")[0]


def sound(origin: Origin) -> bool:
    """Tell whether an origin can be what paddock-fetch said: it comes from a pod's log, or a status."""
    path = _PATH.fullmatch(origin.path)
    return path is not None and path["key"] == origin.key and not isinstance(parse_remote(origin.pinned), str)


def header_name(namespace: str, source: str, secret: str | None) -> str:
    """Give the name of the pod that reads the header of one source with one Secret."""
    return f"paddock-inspect-{_short(namespace, source, secret or '')}"


def header_pod(deployment: Deployment, source: str, fetcher: Fetcher) -> dict[str, Any]:
    """Build the short pod that reads a header from afar and logs what it found."""
    spec = _spec(deployment)
    name = header_name(deployment.namespace, source, _secret(spec))
    command = ["header", source, *_credentials(spec)]
    pod = _pod(deployment, name, Label.INSPECT, fetcher)
    pod["spec"] |= {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": 600,
        "containers": [_container(INSPECT, command, fetcher, secrets=[_secret(spec)])],
    }
    _common(pod, spec, fetcher, [_secret(spec)])
    return pod


def prefetch_name(namespace: str, orders: Sequence[Order], node: str) -> str:
    """Give the name of the pod that brings files to one node ahead of need."""
    return f"paddock-fetch-{_short(namespace, *(one.origin.key for one in orders), node)}"


def prefetch_pod(
    deployment: Deployment, orders: Sequence[Order], node: str, claim: str, fetcher: Fetcher
) -> dict[str, Any]:
    """Build the pod that fetches files to a node, and ends."""
    spec = _spec(deployment)
    pod = _pod(deployment, prefetch_name(deployment.namespace, orders, node), Label.FETCH, fetcher)
    pod["metadata"]["annotations"] = {Annotation.FETCHES: f"{orders[0].origin.key} {node}"}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    pod["spec"] |= {
        "restartPolicy": "Never",
        "affinity": {"nodeAffinity": required},
        "containers": [_fetch(spec, orders, fetcher)],
    }
    _common(pod, spec, fetcher, [one.secret for one in orders])
    pod["spec"]["volumes"].append({"name": VOLUME, "persistentVolumeClaim": {"claimName": claim}})
    return pod


def cache_pod(name: str, namespace: str, claim: str, command: Sequence[str], fetcher: Fetcher) -> dict[str, Any]:
    """Build the pod by which the command line looks after the cache that a claim gives access to."""
    container = {
        "name": FETCH,
        "image": fetcher.image,
        "imagePullPolicy": fetcher.pull_policy,
        "command": ["python3", "-m", _MODULE, "cache", *map(verbatim, command), "--cache", CACHE_MOUNT],
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": dict(RESTRICTED_CONTAINER),
        "volumeMounts": [{"name": "model", "mountPath": CACHE_MOUNT}],
    }
    security = restricted(fetcher.user)
    security["securityContext"] |= {"fsGroup": fetcher.user, "fsGroupChangePolicy": "OnRootMismatch"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {Label.COMPONENT: "cache-command"}},
        "spec": {
            **security,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            # The volume says which node; where a GPU's node has taints, a server was tolerated there before.
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
            "volumes": [{"name": "model", "persistentVolumeClaim": {"claimName": claim}}],
        },
    }


def is_there(orders: Sequence[Order], keys: Collection[str]) -> bool:
    """Tell whether a cache that holds these contents has all that is ordered, so that there is nothing to fetch.

    A cache shows a content only once it is whole and was checked. A digest that the user gives is compared with what
    the origin says of its one file; where that says nothing, the container that fetches has to look.
    """
    return all(one.origin.key in keys and _has_digest(one) for one in orders)


def _has_digest(order: Order) -> bool:
    wanted, files = order.spec.sha256, order.origin.files
    return wanted is None or (len(files) == 1 and files[0].digest == f"sha256:{wanted.lower()}")


def with_fetch(
    pod: dict[str, Any],
    deployment: Deployment,
    orders: Sequence[Order],
    fetcher: Fetcher,
    volume: str = VOLUME,
    *,
    there: bool = False,
) -> dict[str, Any]:
    """Give a server's pod the container that fetches its files first, and one that keeps them from being cleaned away.

    The pod's volume of this name is the cache, which these two may write to. The server mounts it read-only. Where the
    files are `there` already nothing is fetched: no Secret is mounted, and a second of waiting for a container that
    finds them is saved. If they are gone by then, the keeper says so.

    The keeper stands behind the server and not before it: kubelets start containers of one kind at once, but look for
    the end or the start of an initial one only about once a second. Both open the files equally soon.
    """
    spec = _spec(deployment)
    keys = [one.origin.key for one in orders]
    hold = _container(HOLD, ["hold", *keys, "--cache", CACHE_MOUNT], fetcher, cache=volume)
    # A kubelet takes in a gate that was opened only with a change of its own that it finds when it looks at the pod as
    # a whole, about once a second, and learns of a server's readiness in between. A keeper that is up when the server
    # is up is such a change: the pod is Ready a second sooner. A server that does not come up is not the keeper's end.
    up = {"path": "/health", "port": PORT}
    hold["startupProbe"] = {"httpGet": up, "periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": MOST_SECONDS}
    # As long as the server answers its last requests.
    hold["lifecycle"] = {"preStop": {"sleep": {"seconds": DRAIN_SECONDS}}}
    if not there:
        pod["spec"]["initContainers"] = [_fetch(spec, orders, fetcher, volume)]
    pod["spec"]["containers"].append(hold)
    _common(pod, spec, fetcher, [] if there else [one.secret for one in orders], inherited=True)
    for one in pod["spec"]["volumes"]:
        if one["name"] == volume:
            one["persistentVolumeClaim"].pop("readOnly", None)
    return pod


def cached_file(claim: str, origin: Origin) -> Mounted:
    """Give how a server mounts the cache, and where in it the files are."""
    return Mounted(claim, CACHE_MOUNT, f"{CACHE_MOUNT}/{origin.path}", origin.bytes)


def address(source: str, origin: Origin) -> str:
    """Give the source by which this very content is asked for.

    A query may hold a signature: origins leave it out, so only the user's own word leads to the file.
    """
    return source if "?" in source else origin.pinned


def _fetch(
    spec: ModelDeploymentSpec, orders: Sequence[Order], fetcher: Fetcher, volume: str = VOLUME
) -> dict[str, Any]:
    first, *others = orders
    command = [
        "get",
        address(first.spec.source, first.origin),
        "--cache",
        CACHE_MOUNT,
        "--key",
        first.origin.key,
        *(("--credentials", SECRET_MOUNT) if first.secret is not None else ()),
    ]
    if first.spec.sha256 is not None:
        command += ["--sha256", first.spec.sha256]
    # A claim of the user's is as large as it is.
    if fetcher.limit is not None and spec.model.cache is None:
        command += ["--limit", str(fetcher.limit)]
    if first.name:
        command += ["--name", first.name]
    if others:
        command += ["--bytes", str(first.origin.bytes)]
    for number, one in enumerate(others, 1):
        further = Further(
            source=address(one.spec.source, one.origin),
            name=one.name,
            key=one.origin.key,
            bytes=one.origin.bytes,
            sha256=one.spec.sha256,
            credentials=secret_mount(number) if one.secret is not None else None,
        )
        command += ["--beside", json.dumps(further.to_dict(), separators=(",", ":"))]
    return _container(FETCH, command, fetcher, cache=volume, secrets=[one.secret for one in orders])


def secret_mount(number: int) -> str:
    """Give the folder of the Secret of the one or the other source."""
    return SECRET_MOUNT + (f"-{number}" if number else "")


def _short(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _spec(deployment: Deployment) -> ModelDeploymentSpec:
    assert deployment.spec is not None  # noqa: S101 callers hold an accepted deployment
    return deployment.spec


def _secret(spec: ModelDeploymentSpec) -> str | None:
    return spec.model.secret_ref.name if spec.model.secret_ref is not None else None


def _credentials(spec: ModelDeploymentSpec) -> Sequence[str]:
    return ("--credentials", SECRET_MOUNT) if spec.model.secret_ref is not None else ()


def _pod(deployment: Deployment, name: str, component: str, fetcher: Fetcher) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": deployment.namespace,
            "labels": {
                Label.DEPLOYMENT: deployment.name,
                Label.COMPONENT: component,
                Label.MANAGED_BY: "paddock",
            },
            "ownerReferences": [deployment.owner_reference],
        },
        "spec": {**restricted(fetcher.user), "terminationGracePeriodSeconds": 5, "volumes": []},
    }


def _container(
    name: str, command: Sequence[str], fetcher: Fetcher, *, cache: str = "", secrets: Sequence[str | None] = ()
) -> dict[str, Any]:
    environment = {
        "NVIDIA_VISIBLE_DEVICES": "void",
        **fetcher.environment,
        **({"PADDOCK_FETCH_CA_FILE": f"{TRUSTED_MOUNT}/ca.crt"} if fetcher.certificates else {}),
    }
    mounts: list[dict[str, Any]] = []
    if cache:
        mounts.append({"name": cache, "mountPath": CACHE_MOUNT})
    for number, secret in enumerate(secrets):
        if secret is not None:
            mounts.append({"name": _secret_volume(number), "mountPath": secret_mount(number), "readOnly": True})
    if fetcher.certificates:
        mounts.append({"name": "trusted", "mountPath": TRUSTED_MOUNT, "readOnly": True})
    memory = {"requests": "16Mi", "limits": "64Mi"} if name == HOLD else {"requests": "64Mi", "limits": "256Mi"}
    cpu = "1m" if name == HOLD else "50m"
    return {
        "name": name,
        "image": fetcher.image,
        "imagePullPolicy": fetcher.pull_policy,
        "command": ["python3", "-m", _MODULE, *(verbatim(one) for one in command)],
        "env": [{"name": key, "value": value} for key, value in sorted(environment.items())],
        "resources": {"requests": {"cpu": cpu, "memory": memory["requests"]}, "limits": {"memory": memory["limits"]}},
        # The last line says what failed.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": dict(RESTRICTED_CONTAINER),
        "volumeMounts": mounts,
    }


def _secret_volume(number: int) -> str:
    return "source-secret" + (f"-{number}" if number else "")


def _common(
    pod: dict[str, Any],
    spec: ModelDeploymentSpec,
    fetcher: Fetcher,
    secrets: Sequence[str | None],
    *,
    inherited: bool = False,
) -> None:
    """Add what every pod that reaches out has. `inherited`: tolerations and pull secrets are there already."""
    security = pod["spec"]["securityContext"]
    # Files of the Secret and a fresh cache belong to root: by the group the server's user may read and write them.
    security |= {"fsGroup": fetcher.user, "fsGroupChangePolicy": "OnRootMismatch"}
    for number, name in enumerate(secrets):
        if name is not None:
            # Optional: a pod without it says what is missing, instead of waiting for ever.
            secret = {"secretName": name, "optional": True, "defaultMode": 0o440}
            pod["spec"]["volumes"].append({"name": _secret_volume(number), "secret": secret})
    if fetcher.certificates:
        # Certificates are no secret; a pod brings them itself, so that no object is needed in its namespace.
        pod["metadata"].setdefault("annotations", {})[Annotation.TRUSTED] = fetcher.certificates
        item = {"path": "ca.crt", "fieldRef": {"fieldPath": f"metadata.annotations['{Annotation.TRUSTED}']"}}
        pod["spec"]["volumes"].append({"name": "trusted", "downwardAPI": {"items": [item]}})
    if not inherited:
        if spec.server.tolerations:
            pod["spec"]["tolerations"] = [one.to_dict() for one in spec.server.tolerations]
        if spec.server.image_pull_secrets:
            pod["spec"]["imagePullSecrets"] = [one.to_dict() for one in spec.server.image_pull_secrets]

"""Build the pod of one replica: arguments, and what pins it to one device and its node.

A pure function of the user's spec, the resolved image and the placement, so that every pod can be compared with a
golden file. Restricted Pod Security holds for every pod built here.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from paddock.api.modeldeployment import FlashAttention, Mode, ModelDeploymentSpec
from paddock.api.vocabulary import READINESS_GATE, Annotation, Label
from paddock.core.binding import Binding
from paddock.core.deployment import Deployment, placement_hash
from paddock.core.need import slot_context
from paddock.core.quantity import MIB, parse_quantity, round_up, seconds_of
from paddock.core.replica import CONTAINER, Record

PORT = 8080
SERVER_USER = 65532
CACHE_RAM_MIB = 256
"""Host memory that llama-server may keep prompts in (`-cram`); upstream's default is 8 GiB."""
CONTEXT_CHECKPOINTS = 8
"""Snapshots of sliding-window caches in host memory; upstream's default is 32."""
GRACE_SECONDS = 60
DRAIN_SECONDS = 3
"""Pause before the end, so that no new request arrives at a server that is leaving."""
LOAD_BYTES_PER_SECOND = 100 * MIB
"""Slowest disk that the default startup budget allows for."""
STARTUP_SECONDS = 120
MOST_SECONDS = 30 * 24 * 3600
"""Longest startup budget."""
MOST_THREADS = 512
"""Most threads that ggml takes (GGML_MAX_N_THREADS)."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """The model file inside the pod, and the claim that brings it."""

    claim: str
    mount: str
    path: str
    file_bytes: int
    image: bool = False
    """Whether `claim` is the reference of an image instead, which the kubelet mounts."""

    def volume(self, name: str) -> dict[str, Any]:
        """Give the pod's volume of this name."""
        if self.image:
            return {"name": name, "image": {"reference": self.claim, "pullPolicy": "IfNotPresent"}}
        return {"name": name, "persistentVolumeClaim": {"claimName": self.claim, "readOnly": True}}


def arguments(deployment: Deployment, binding: Binding, mounted: Mounted, threads: int, context: int = 0) -> list[str]:
    """Give llama-server's arguments; every default that decides memory is stated.

    context is the tokens of each slot, by default the spec's, which must then be a number.
    """
    assert deployment.spec is not None  # noqa: S101 callers hold an accepted deployment
    serving = deployment.spec.serving
    slot = context or slot_context(serving)
    on_device = binding.name_in_pod is not None
    attention = {FlashAttention.AUTO: "auto", FlashAttention.ON: "on", FlashAttention.OFF: "off"}
    out = ["-m", mounted.path, "--alias", deployment.name, "--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104
    out += [
        "--device",
        binding.name_in_pod or "none",
        "-sm",
        "none",
        "-ngl",
        "all" if on_device else "0",
        "-fit",
        "off",
    ]
    out += ["-c", str(slot * serving.parallel), "-np", str(serving.parallel), "--no-kv-unified"]
    out += ["-b", str(serving.batch), "-ub", str(serving.ubatch), "-fa", attention[serving.flash_attention]]
    out += ["-ctk", serving.cache_type_k.value, "-ctv", serving.cache_type_v.value]
    out += ["-t", str(threads), "-cram", str(CACHE_RAM_MIB), "-ctxcp", str(CONTEXT_CHECKPOINTS)]
    # Level 4 is the lowest that prints the lines about devices and buffers.
    out += ["-lv", "4", "--metrics", "--no-ui", "--offline"]
    out += {Mode.CHAT: [], Mode.EMBEDDING: ["--embeddings"], Mode.RERANK: ["--reranking"]}[serving.mode]
    return [verbatim(one) for one in (*out, *serving.args)]


def verbatim(text: str) -> str:
    """Give what Kubernetes turns into `text`: it expands $(NAME) in commands and arguments, and makes $$ to $."""
    return text.replace("$", "$$")


def threads_of(spec: ModelDeploymentSpec, *, on_device: bool) -> int:
    """Give the number of threads: llama.cpp looks at the machine's cores, not at the container's share of them."""
    for share in (spec.server.resources.limits, spec.server.resources.requests):
        if "cpu" in share:
            return min(MOST_THREADS, max(1, ceil(parse_quantity(share["cpu"]))))
    return 2 if on_device else 4


def pod_name(deployment: Deployment, revision: str, number: int, attempt: int = 0) -> str:
    """Give the deterministic name of a replica's pod: who makes it a second time meets the first one's pod.

    `attempt` counts the pods of this number that a silent node holds. Where the pod may be is part of the name: a
    successor on another device exists beside the pod that it replaces.
    """
    digest = hashlib.sha256(f"{revision} {placement_hash(deployment)}".encode()).hexdigest()
    return f"{deployment.name}-{digest[:8]}-{number}" + (f"-{attempt}" if attempt else "")


def server_pod(
    deployment: Deployment, number: int, record: Record, binding: Binding, mounted: Mounted, settings: "PodSettings"
) -> dict[str, Any]:
    """Build the pod's manifest."""
    spec = deployment.spec
    assert spec is not None  # noqa: S101 callers hold an accepted deployment
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(deployment, settings.revision, number, settings.attempt),
            "namespace": deployment.namespace,
            "labels": {
                **spec.server.pod_labels,
                **deployment.selector,
                Label.NAME: "llama-server",
                Label.INSTANCE: deployment.name,
                Label.MANAGED_BY: "paddock",
            },
            "annotations": {
                **spec.server.pod_annotations,
                Annotation.PLACEMENT: record.dumps(),
                Annotation.REVISION: settings.revision,
                Annotation.PLACEMENT_SPEC: settings.placement_hash,
                Annotation.REPLICA: str(number),
                **binding.annotations,
            },
            "ownerReferences": [deployment.owner_reference],
        },
        "spec": {
            **restricted(settings.user),
            "restartPolicy": "Always",
            # As PID 1 llama-server ignores SIGTERM while it loads; with a shared process namespace it is not PID 1.
            "shareProcessNamespace": True,
            "readinessGates": [{"conditionType": READINESS_GATE}],
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "containers": [_container(deployment, record, binding, mounted, settings)],
            "volumes": [
                mounted.volume("model"),
                {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
                {"name": "cuda-cache", "emptyDir": {"sizeLimit": "2Gi"}},
            ],
        },
    }
    _scheduling(pod["spec"], spec, record, binding)
    return pod


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What the operator adds to a pod."""

    revision: str
    placement_hash: str
    pull_policy: str = "IfNotPresent"
    user: int = SERVER_USER
    host_bytes: int = 0
    """Host memory that the model needs."""
    attempt: int = 0
    """Part of the pod's name; see `pod_name`."""


def restricted(user: int) -> dict[str, Any]:
    """Give the pod-level settings that restricted Pod Security asks for, and no way to the API server."""
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


RESTRICTED_CONTAINER: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def _container(
    deployment: Deployment, record: Record, binding: Binding, mounted: Mounted, settings: PodSettings
) -> dict[str, Any]:
    spec = deployment.spec
    assert spec is not None  # noqa: S101 callers hold an accepted deployment
    on_device = binding.name_in_pod is not None
    environment: list[dict[str, Any]] = [
        {"name": name, "value": value}
        for name, value in {
            **binding.environment,
            "GGML_NO_BACKTRACE": "1",
            "HOME": "/tmp",  # noqa: S108 a volume of the pod
            "CUDA_CACHE_PATH": "/var/cache/cuda",
        }.items()
    ]
    if spec.serving.api_key_secret_ref is not None:
        reference = spec.serving.api_key_secret_ref
        environment.append(
            {"name": "LLAMA_API_KEY", "valueFrom": {"secretKeyRef": {"name": reference.name, "key": reference.key}}}
        )
    health = {"httpGet": {"path": "/health", "port": "http"}}
    return {
        "name": CONTAINER,
        "image": record.image,
        "imagePullPolicy": settings.pull_policy,
        "args": arguments(deployment, binding, mounted, threads_of(spec, on_device=on_device), record.context),
        "env": environment,
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "startupProbe": {**health, "periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": _budget(spec, mounted)},
        "readinessProbe": {**health, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        # /health is answered beside the decode loop: it fails when the process is stuck, not when it is busy.
        "livenessProbe": {**health, "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 6},
        "lifecycle": {"preStop": {"sleep": {"seconds": DRAIN_SECONDS}}},
        "resources": _resources(spec, binding, settings),
        "securityContext": dict(RESTRICTED_CONTAINER),
        "volumeMounts": [
            {"name": "model", "mountPath": mounted.mount, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 a volume of the pod
            {"name": "cuda-cache", "mountPath": "/var/cache/cuda"},
        ],
    }


def _budget(spec: ModelDeploymentSpec, mounted: Mounted) -> int:
    """Give the seconds that loading may take."""
    if spec.server.startup_timeout:
        return min(MOST_SECONDS, seconds_of(spec.server.startup_timeout))
    return STARTUP_SECONDS + mounted.file_bytes // LOAD_BYTES_PER_SECOND


def model_memory(spec: ModelDeploymentSpec) -> int | None:
    """Give the bytes of host memory that a spec has for its model: the limit, else the request, less the prompt cache.

    None where it says neither.
    """
    told = spec.server.resources.limits.get("memory") or spec.server.resources.requests.get("memory")
    return None if told is None else int(parse_quantity(told)) - CACHE_RAM_MIB * MIB


def _resources(spec: ModelDeploymentSpec, binding: Binding, settings: PodSettings) -> dict[str, Any]:
    memory = round_up(settings.host_bytes + CACHE_RAM_MIB * MIB, 64 * MIB)
    out: dict[str, Any] = {
        "requests": {"cpu": "500m", "memory": f"{memory // MIB}Mi", **spec.server.resources.requests}
    }
    if spec.server.resources.limits:
        out["limits"] = dict(spec.server.resources.limits)
        for name, limit in spec.server.resources.limits.items():
            given = spec.server.resources.requests.get(name)
            default = out["requests"].get(name)
            if given is None and default is not None and parse_quantity(default) > parse_quantity(limit):
                out["requests"][name] = limit
    if binding.resources:
        # Of extended resources the request is the limit.
        out["requests"] |= binding.resources
        out["limits"] = {**out.get("limits", {}), **binding.resources}
    if binding.resource_claims:
        out["claims"] = [{"name": name} for name in binding.resource_claims]
    return out


def _scheduling(out: dict[str, Any], spec: ModelDeploymentSpec, record: Record, binding: Binding) -> None:
    """Say where the pod may go. Affinity by field, not spec.nodeName: scheduler and kubelet keep their say."""
    term: dict[str, Any] = {}
    if record.node is not None:
        term["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": [record.node]}]
    elif spec.placement.node_selector:
        term["matchExpressions"] = [
            {"key": key, "operator": "In", "values": [value]}
            for key, value in sorted(spec.placement.node_selector.items())
        ]
    if term:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        out["affinity"] = {"nodeAffinity": required}
    if binding.supplemental_groups:
        out["securityContext"] = {**out["securityContext"], "supplementalGroups": list(binding.supplemental_groups)}
    if binding.resource_claims:
        out["resourceClaims"] = [
            {"name": name, "resourceClaimName": claim} for name, claim in binding.resource_claims.items()
        ]
    runtime_class = spec.server.runtime_class_name or binding.runtime_class
    if runtime_class:
        out["runtimeClassName"] = runtime_class
    if spec.server.tolerations:
        out["tolerations"] = [one.to_dict() for one in spec.server.tolerations]
    if spec.server.image_pull_secrets:
        out["imagePullSecrets"] = [one.to_dict() for one in spec.server.image_pull_secrets]
    if spec.server.priority_class_name:
        out["priorityClassName"] = spec.server.priority_class_name

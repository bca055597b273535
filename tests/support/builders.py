"""Small builders of devices, fleets, deployments and replicas, each with what most tests want by default."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from paddock.api.binding import Binder, DevicePlugin
from paddock.api.gpu import DeviceType
from paddock.api.vocabulary import READINESS_GATE, Annotation, Label
from paddock.core.binding import ON_CPU, Binding, Chosen, Names, NodeFacts, bind
from paddock.core.deployment import Deployment, deployment_of, placement_hash, revision
from paddock.core.fleet import Claim, Device, Fleet, Node
from paddock.core.pod import pod_name
from paddock.core.replica import CONTAINER, Record, Replica

MIB = 1024 * 1024
GIB = 1024 * MIB
NOW = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:05:00Z"
IMAGE = "ghcr.io/ggml-org/llama.cpp:server-cuda-b11434"
CONTAINER_ID = "containerd://one"
READY = {"type": "Ready", "status": "True"}


def device(gpu: str = "node1-gpu-a", **fields: Any) -> Device:
    """Give a CUDA device of 12 GiB that is Ready and empty."""
    given: dict[str, Any] = {
        "gpu": gpu,
        "node": "node1",
        "name": "CUDA0",
        "backend": "CUDA",
        "type": DeviceType.DISCRETE,
        "description": "NVIDIA Test Card",
        "uuid": f"GPU-{gpu}",
        "pci_id": "0000:01:00.0",
        "index": 0,
        "raw_index": 0,
        "total": 12 * GIB,
        "free": 12 * GIB,
        **fields,
    }
    return Device(**given)


GTX_1060 = device(
    "node1-0000-01-00-0",
    description="NVIDIA GeForce GTX 1060",
    uuid="GPU-1060",
    total=6144 * MIB,
    free=6144 * MIB,
)
RTX_4080 = device(
    "node1-0000-02-00-0",
    name="CUDA1",
    description="NVIDIA GeForce RTX 4080 Laptop GPU",
    uuid="GPU-4080",
    pci_id="0000:02:00.0",
    index=1,
    raw_index=1,
    total=12282 * MIB,
    free=12032 * MIB,
)
INTEL = device(
    "node1-0000-00-02-0",
    name="Vulkan2",
    backend="Vulkan",
    type=DeviceType.INTEGRATED,
    description="Intel UHD Graphics",
    uuid=None,
    pci_id="0000:00:02.0",
    index=None,
    raw_index=2,
    total=16384 * MIB,
    free=16384 * MIB,
)
AMD = device(
    "node3-0000-03-00-0",
    node="node3",
    name="ROCm0",
    backend="ROCm",
    description="AMD Radeon RX 7900 XTX",
    uuid="GPU-7900",
    pci_id="0000:03:00.0",
)
RTX_6000 = device(
    "node2-0000-41-00-0",
    node="node2",
    description="NVIDIA RTX PRO 6000",
    uuid="GPU-6000",
    pci_id="0000:41:00.0",
    total=97887 * MIB,
    free=97280 * MIB,
)


def plugged(on: Device, hands: Literal["Cdi", "Devices", "Environment"], **fields: Any) -> Device:
    """Give a device that the node agent's plugin gives out, in granules of all its memory."""
    given = {"resource": f"gpu.paddock.dev/{on.gpu}", "granules": (on.total or 0) // (256 * MIB), "registered": True}
    return replace(on, plugin=DevicePlugin.model_validate({**given, "hands": hands, **fields}))


def claim(pod: str = "default/other-1-0", size: int = GIB, *, resident: bool = False) -> Claim:
    """Give a claim of a pod whose deployment's name is the part before the first dash."""
    return Claim(pod, pod.split("-", 1)[0], size, resident=resident)


def fleet(*devices: Device, reserve: int = 0, **nodes: Node) -> Fleet:
    """Give a fleet whose nodes are all Ready, except for those given."""
    names = {one.node for one in devices}
    return Fleet({name: nodes.get(name, Node(name)) for name in names | set(nodes)}, devices, reserve)


def laptop() -> Fleet:
    """Give the laptop that Paddock's rule comes from: GTX 1060 first in the list, RTX 4080, an integrated GPU."""
    return fleet(GTX_1060, RTX_4080, INTEL)


def body(name: str = "gemma", *, uid: str = "uid-1", **spec: Any) -> dict[str, Any]:
    """Give a ModelDeployment as the API server returns it."""
    return {
        "apiVersion": "paddock.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name, "namespace": "default", "uid": uid, "generation": 1},
        "spec": {"model": {"source": "file:///models/gemma.gguf"}, **spec},
    }


def deployment(name: str = "gemma", *, uid: str = "uid-1", **spec: Any) -> Deployment:
    """Give a ModelDeployment as the operator reads it; `spec` has the API's names."""
    return deployment_of(body(name, uid=uid, **spec))


def record(on: Device | None = RTX_4080, **fields: Any) -> Record:
    """Give the record of a placement on this device, or on the CPU."""
    given: dict[str, Any] = {
        "gpu": on.gpu if on else None,
        "node": on.node if on else None,
        "need": GIB if on else 0,
        "reason": f"{on.description if on else 'the CPU'}: because",
        "since": NOW,
        "policy": "Auto",
        "image": IMAGE,
    }
    if on is not None:
        given |= {
            "uuid": on.uuid,
            "pci_id": on.pci_id,
            "name": on.name,
            "name_in_pod": f"{on.backend}0",
            "backend": on.backend,
            "description": on.description,
        }
    return Record(**given | fields)


def bound(on: Device | None, runtime_class: str | None = "nvidia") -> Binding:
    """Give how a pod gets this device: by the plugin that it names, else as without one; None: the CPU."""
    binder = Binder.RUNTIME_CLASS if on is not None and on.backend == "CUDA" else Binder.NONE
    if on is not None and on.plugin is not None:
        binder = Binder.DEVICE_PLUGIN
    if on is not None and on.exclusive:
        binder = Binder.VENDOR_PLUGIN if on.picked_by_plugin else Binder.DRA
    chosen = ON_CPU if on is None else Chosen(binder, "because")
    facts = NodeFacts("node1", frozenset({runtime_class} if runtime_class else ()))
    return bind(on, facts, GIB, Names(runtime_class, claim="gemma-1-0a1b"), chosen)


def replica(of: Deployment, number: int = 0, *, ready: bool = True, **fields: Any) -> Replica:
    """Give a pod of the deployment as it is now; Ready and verified unless told otherwise."""
    given: dict[str, Any] = {
        "namespace": of.namespace,
        "name": pod_name(of, revision(of), number),
        "uid": f"pod-{number}",
        "deployment": of.name,
        "owner_uid": of.uid,
        "number": number,
        "revision": revision(of),
        "placement_spec": placement_hash(of),
        "record": record(),
        "phase": "Running",
        "node": "node1",
    }
    if ready:
        given |= {
            "scheduled": True,
            "ready": True,
            "running": True,
            "container_ready": True,
            "container_id": CONTAINER_ID,
            "gate": "True",
            "gate_container": CONTAINER_ID,
            "gate_reason": "BuffersOnDevice",
            "gate_message": "its buffers are there",
        }
    return Replica(**given | fields)


def older(one: Replica, **fields: Any) -> Replica:
    """Give a pod of the same number that was made from an older spec."""
    return replace(one, **{"name": f"{one.deployment}-older-{one.number}", "revision": "older", **fields})


def pod_json(of: Deployment, number: int = 0, *, status: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    """Give a server pod as the API server returns it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(of, revision(of), number),
            "namespace": of.namespace,
            "uid": f"pod-{number}",
            "labels": {Label.DEPLOYMENT: of.name, Label.COMPONENT: Label.SERVER},
            "annotations": {
                Annotation.REPLICA: str(number),
                Annotation.REVISION: revision(of),
                Annotation.PLACEMENT_SPEC: placement_hash(of),
                Annotation.PLACEMENT: record().dumps(),
            },
            "ownerReferences": [of.owner_reference],
            **meta,
        },
        "spec": {
            "nodeName": "node1",
            "containers": [{"name": CONTAINER, "startupProbe": {"periodSeconds": 1, "failureThreshold": 120}}],
        },
        "status": status or {"phase": "Pending"},
    }


def gpu_json(one: Device) -> dict[str, Any]:
    """Give a device's GPU object, made for its node and Ready."""
    return {
        "metadata": {"name": one.gpu, "annotations": {Annotation.NODE: one.node}},
        "status": {
            "node": one.node,
            "index": 0,
            "name": one.name,
            "description": one.description,
            "backends": [one.backend],
            "rawIndex": 0,
            "type": "Discrete",
            "uuid": one.uuid,
            "pciId": one.pci_id,
            "memory": {"total": "12288Mi", "free": "12288Mi", "reserved": "0Mi"},
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "Listed", "message": "", "lastTransitionTime": NOW}
            ],
        },
    }


def serving_status(container_id: str = CONTAINER_ID, gate_for: str | None = CONTAINER_ID) -> dict[str, Any]:
    """Give the status of a pod whose server answers; `gate_for` is the container that its gate was set for."""
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "True" if gate_for else "False"},
    ]
    if gate_for:
        conditions.append(
            {
                "type": READINESS_GATE,
                "status": "True",
                "reason": "BuffersOnDevice",
                "message": f"{gate_for} all is well",
            }
        )
    return {
        "phase": "Running",
        "conditions": conditions,
        "containerStatuses": [
            {
                "name": CONTAINER,
                "ready": True,
                "restartCount": 0,
                "containerID": container_id,
                "state": {"running": {"startedAt": NOW}},
            }
        ],
    }

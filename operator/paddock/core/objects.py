"""Build the objects beside the server pods: Service, volumes of model roots, inspector pods."""

import hashlib
from typing import Any

from paddock.api.vocabulary import Annotation, Label
from paddock.core.deployment import Deployment
from paddock.core.fetching import CacheRoot
from paddock.core.pod import PORT, RESTRICTED_CONTAINER, Mounted, restricted, verbatim
from paddock.core.source import CLAIM_MOUNT, IMAGE_MOUNT, ClaimSource, ImageSource, ModelRoot, Source


def service(deployment: Deployment) -> dict[str, Any]:
    """Build the Service: the deployment's own name, port 8080 of the servers that are Ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": deployment.name,
            "namespace": deployment.namespace,
            "labels": {
                Label.DEPLOYMENT: deployment.name,
                Label.NAME: "llama-server",
                Label.INSTANCE: deployment.name,
                Label.MANAGED_BY: "paddock",
            },
            "ownerReferences": [deployment.owner_reference],
        },
        "spec": {
            "selector": deployment.selector,
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def endpoint(deployment: Deployment) -> str:
    """Give the URL of the Service, as an OpenAI client's base URL."""
    return f"http://{deployment.name}.{deployment.namespace}.svc:{PORT}/v1"


def _short(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def root_id(root: ModelRoot) -> str:
    """Give the short identity of a model root, for labels and names."""
    return _short(root.path, root.host_path)


def root_claim_name(root: ModelRoot, node: str) -> str:
    """Give the name of the claim through which pods of one namespace reach a root of one node."""
    return f"paddock-models-{_short(root.path, root.host_path, node)}"


def _access(root: ModelRoot) -> list[str]:
    return ["ReadWriteMany" if isinstance(root, CacheRoot) else "ReadOnlyMany"]


def root_volume(root: ModelRoot, node: str, namespace: str, hostname: str | None = None) -> dict[str, Any]:
    """Build the static volume for one root, node and namespace. Reserved for its claim, kept when released.

    `hostname` is the node's kubernetes.io/hostname label: the scheduler compares a volume's affinity with labels only.
    """
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": f"paddock-models-{_short(root.path, root.host_path, node, namespace)}",
            "labels": {Label.MANAGED_BY: "paddock", Label.MODEL_ROOT: root_id(root)},
        },
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": _access(root),
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "volumeMode": "Filesystem",
            # A claim can be mounted by any pod of its namespace: nobody may change the node's files, but for the cache.
            **({} if isinstance(root, CacheRoot) else {"mountOptions": ["ro"]}),
            "local": {"path": root.host_path},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": namespace,
                "name": root_claim_name(root, node),
            },
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "kubernetes.io/hostname", "operator": "In", "values": [hostname or node]}
                            ]
                        }
                    ]
                }
            },
        },
    }


def root_claim(root: ModelRoot, node: str, namespace: str) -> dict[str, Any]:
    """Build the claim that belongs to `root_volume`."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": root_claim_name(root, node),
            "namespace": namespace,
            "labels": {Label.MANAGED_BY: "paddock", Label.MODEL_ROOT: root_id(root)},
            **({"annotations": {Annotation.NODE: node}} if isinstance(root, CacheRoot) else {}),
        },
        "spec": {
            "accessModes": _access(root),
            "storageClassName": "",
            "volumeName": root_volume(root, node, namespace)["metadata"]["name"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def inspector_name(namespace: str, source: ClaimSource | ImageSource) -> str:
    """Give the name of the pod that reads one file's header."""
    holder = source.claim if isinstance(source, ClaimSource) else source.reference
    return f"paddock-inspect-{_short(namespace, holder, source.path)}"


def inspector_pod(
    deployment: Deployment, source: ClaimSource | ImageSource, image: str, pull_policy: str, user: int
) -> dict[str, Any]:
    """Build the short pod that reads a header from a claim or image, as the server's user, and logs a summary."""
    spec = deployment.spec
    assert spec is not None  # noqa: S101 callers hold an accepted deployment
    mounted = mounted_of(source, None)
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": inspector_name(deployment.namespace, source),
            "namespace": deployment.namespace,
            "labels": {
                Label.DEPLOYMENT: deployment.name,
                Label.COMPONENT: Label.INSPECT,
                Label.MANAGED_BY: "paddock",
            },
            "ownerReferences": [deployment.owner_reference],
        },
        "spec": {
            **restricted(user),
            "restartPolicy": "Never",
            "activeDeadlineSeconds": 300,
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "inspect",
                    "image": image,
                    "imagePullPolicy": pull_policy,
                    "command": ["python3", "-m", "paddock.agent.inspect", verbatim(source.mounted), mounted.mount],
                    "resources": {
                        "requests": {"cpu": "50m", "memory": "64Mi"},
                        "limits": {"memory": "256Mi"},
                    },
                    "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
                    "securityContext": dict(RESTRICTED_CONTAINER),
                    "volumeMounts": [{"name": "model", "mountPath": mounted.mount, "readOnly": True}],
                }
            ],
            "volumes": [mounted.volume("model")],
        },
    }
    if spec.server.tolerations:
        pod["spec"]["tolerations"] = [one.to_dict() for one in spec.server.tolerations]
    if spec.server.image_pull_secrets:
        pod["spec"]["imagePullSecrets"] = [one.to_dict() for one in spec.server.image_pull_secrets]
    return pod


def mounted_of(source: Source, node: str | None, size: int = 0) -> Mounted:
    """Give how a server on `node` mounts a file that need not be fetched."""
    if isinstance(source, ClaimSource):
        return Mounted(source.claim, CLAIM_MOUNT, source.mounted, size)
    if isinstance(source, ImageSource):
        return Mounted(source.reference, IMAGE_MOUNT, source.mounted, size, image=True)
    assert node is not None  # noqa: S101 a file source always has a node
    return Mounted(root_claim_name(source.root, node), source.root.path, source.path, size)

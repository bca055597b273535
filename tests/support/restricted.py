"""Pod Security's `restricted` profile as a function, by the text of the Kubernetes documentation (v1.34)."""

from collections.abc import Iterator, Mapping
from typing import Any

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",  # since 1.33 (kubernetes#130394), which the text does not say yet
    "persistentVolumeClaim",
    "projected",
    "secret",
}
HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
SYSCTLS = "sysctls"


def violations(pod: Mapping[str, Any]) -> list[str]:
    """Give every way in which the pod breaks the profile."""
    spec = pod["spec"]
    context = spec.get("securityContext") or {}
    out = [f"{name} is set" for name in HOST_NAMESPACES if spec.get(name)]
    for volume in spec.get("volumes") or ():
        out += [f"volume {volume['name']} is a {kind}" for kind in set(volume) - {"name"} - VOLUMES]
    out += [f"pod: {text}" for text in _forbidden(context)]
    for container in _containers(spec):
        out += [f"{container['name']}: {text}" for text in _container(container, context)]
    annotations = pod["metadata"].get("annotations") or {}
    out += [f"annotation {key}" for key in annotations if "apparmor.security" in key or "seccomp.security" in key]
    return out


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(kind) or ()


def _forbidden(context: Mapping[str, Any]) -> list[str]:
    keys = ("seLinuxOptions", SYSCTLS, "windowsOptions", "appArmorProfile", "procMount")
    return [f"{key} is set" for key in keys if context.get(key)]


def _container(container: Mapping[str, Any], pod_context: Mapping[str, Any]) -> list[str]:
    context = container.get("securityContext") or {}
    capabilities = context.get("capabilities") or {}
    both = {**pod_context, **context}
    rules = {
        "privileged": not context.get("privileged"),
        "allowPrivilegeEscalation is not false": context.get("allowPrivilegeEscalation") is False,
        "runAsNonRoot is not true": both.get("runAsNonRoot") is True,
        "runs as root": both.get("runAsUser") != 0,
        "no seccomp profile": (both.get("seccompProfile") or {}).get("type") in ("RuntimeDefault", "Localhost"),
        "capabilities are not dropped": "ALL" in (capabilities.get("drop") or ()),
        "capabilities are added": set(capabilities.get("add") or ()) <= {"NET_BIND_SERVICE"},
        "host port": not any(port.get("hostPort") for port in container.get("ports") or ()),
    }
    return [text for text, good in rules.items() if not good] + _forbidden(context)

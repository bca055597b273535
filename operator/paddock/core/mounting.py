"""What a server's pod gets for the files beside its model: volumes, mounts and arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paddock.core.beside import DRAFTED
from paddock.core.companions import Present
from paddock.core.pod import Mounted, verbatim
from paddock.core.replica import CONTAINER
from paddock.core.source import CLAIM_MOUNT


@dataclass(frozen=True, slots=True)
class Shelved:
    """A companion, and its file inside the pod."""

    present: Present
    mounted: Mounted


def with_companions(pod: dict[str, Any], beside: Sequence[Shelved], name_in_pod: str | None) -> dict[str, Any]:
    """Give a server's pod what is served beside its model. name_in_pod: the device; None on the CPU."""
    container = next(one for one in pod["spec"]["containers"] if one["name"] == CONTAINER)
    placed = [replace(one, mounted=_mounted(pod["spec"]["volumes"], container, one.mounted)) for one in beside]
    container["args"] += [verbatim(one) for one in _arguments(placed, name_in_pod)]
    return pod


def volume_of(pod: dict[str, Any], claim: str) -> str:
    """Give the name of the pod's volume that brings this claim."""
    volumes = pod["spec"]["volumes"]
    return next(str(one["name"]) for one in volumes if _claim_of(one) == claim)


def _claim_of(volume: Mapping[str, Any]) -> str | None:
    image = (volume.get("image") or {}).get("reference")
    return image or (volume.get("persistentVolumeClaim") or {}).get("claimName")


def _mounted(volumes: list[dict[str, Any]], container: dict[str, Any], file: Mounted) -> Mounted:
    """Mount the claim of a file, unless it is mounted already; a second claim of the user's gets a folder of its own.

    Gives where the file is then.
    """
    claims = {_claim_of(one): one["name"] for one in volumes}
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    if file.claim in claims:
        folder = mounts[claims[file.claim]]
        # A claim in which fetched files are kept may hold others, too: below the mount they are called the same.
        return replace(file, mount=folder, path=folder + file.path.removeprefix(file.mount))
    name = f"beside-{len(volumes)}"
    folder = file.mount if file.mount not in mounts.values() else f"{CLAIM_MOUNT}-{len(volumes)}"
    volumes.append(file.volume(name))
    container["volumeMounts"].append({"name": name, "mountPath": folder, "readOnly": True})
    return replace(file, mount=folder, path=folder + file.path.removeprefix(file.mount))


def _arguments(beside: Sequence[Shelved], device: str | None) -> list[str]:
    """Give llama-server's arguments; every default that decides memory or device is stated."""
    by_kind: dict[str, list[Shelved]] = {}
    for one in beside:
        by_kind.setdefault(one.present.wanted.kind, []).append(one)
    out: list[str] = []
    for one in by_kind.get("Projector", ()):
        # Its device follows --device; without one it takes the first that it finds, so that is said, too.
        out += ["--mmproj", one.mounted.path, "--mmproj-offload" if device is not None else "--no-mmproj-offload"]
    if adapters := by_kind.get("Adapter"):
        scaled = (f"{one.mounted.path}:{one.present.wanted.scale:g}" for one in adapters)
        out += ["--lora-scaled", ",".join(scaled)]
    for one in by_kind.get("Draft", ()):
        out += ["-md", one.mounted.path, "-devd", device or "none", "-ngld", "all" if device is not None else "0"]
        out += ["-ctkd", "f16", "-ctvd", "f16", "--spec-type", "draft-simple", "--spec-draft-n-max", str(DRAFTED)]
    return out

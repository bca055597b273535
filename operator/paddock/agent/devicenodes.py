"""What a container is given so that it can open one GPU, found on the host when it is asked for.

Numbers of device nodes change with each boot and driver, so none is remembered.
"""

import contextlib
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paddock.core.offers import Offer, cdi_names

CDI_KIND = "nvidia.com/gpu"
_LARGEST = 4 * 1024 * 1024
"""Bytes of a CDI spec that are read."""


@dataclass(frozen=True, slots=True)
class Handing:
    """What is handed out."""

    hands: Literal["Cdi", "Devices", "Environment"]
    cdi: str | None = None
    nodes: tuple[str, ...] = ()
    """Paths of device nodes on the host."""
    environment: tuple[tuple[str, str], ...] = ()
    groups: tuple[int, ...] = ()
    """Groups that may open the nodes which not everybody may."""


class Host:
    """The folders of the host that tell of devices."""

    def __init__(self, sys: Path, dev: Path, cdi: Iterable[Path]) -> None:
        self._sys, self._dev, self._cdi = sys, dev, tuple(cdi)
        self._names: frozenset[str] = frozenset()
        self._read: list[tuple[Path, int, int]] = []
        """The CDI specs in which these were found: file, time of change, size."""

    def handing(self, offer: Offer) -> Handing | None:
        """Give what a container gets of an offered GPU; None when the host has nothing for it."""
        if offer.uuid is not None:
            name = f"{CDI_KIND}={offer.uuid}"
            if name in self._cdi_names():
                return Handing("Cdi", cdi=name)
            # Understood by NVIDIA's runtime alone, which a pod gets by its RuntimeClass.
            return Handing(
                "Environment", environment=(("NVIDIA_VISIBLE_DEVICES", f"runtime.nvidia.com/gpu={offer.uuid}"),)
            )
        folder = self._sys / "bus" / "pci" / "devices" / (offer.pci_id or "none") / "drm"
        names = sorted(one.name for one in _entries(folder) if one.name.startswith(("card", "renderD")))
        if not any(name.startswith("renderD") for name in names):
            return None
        nodes = [f"dri/{name}" for name in names]
        if offer.compute:
            if not (self._sys / "class" / "kfd").exists():
                return None
            nodes.insert(0, "kfd")
        return Handing("Devices", nodes=tuple(f"/dev/{one}" for one in nodes), groups=self._groups(nodes))

    def _groups(self, nodes: Iterable[str]) -> tuple[int, ...]:
        found = set()
        for one in nodes:
            try:
                status = (self._dev / one).stat()
            except OSError:
                continue
            everybody = status.st_mode & stat.S_IROTH and status.st_mode & stat.S_IWOTH
            if not everybody and status.st_mode & stat.S_IRGRP and status.st_gid:
                found.add(status.st_gid)
        return tuple(sorted(found))

    def _cdi_names(self) -> frozenset[str]:
        """Give the names in the CDI specs; they are read again when one has changed."""
        there = []
        for file in (file for folder in self._cdi for file in _entries(folder)):
            with contextlib.suppress(OSError):
                status = file.stat()
                there.append((file, status.st_mtime_ns, status.st_size))
        if there != self._read:
            texts = [_read(file) for file, _, _ in there if file.suffix in (".json", ".yaml", ".yml")]
            self._names, self._read = cdi_names(texts), there
        return self._names


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_LARGEST).decode(errors="replace")
    except OSError:
        return ""


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []

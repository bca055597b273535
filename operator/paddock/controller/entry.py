"""One GPU object: what is stored of it, what is seen, and what is on its way into it."""

import asyncio
from functools import reduce

from paddock.api.disruption import Promise
from paddock.api.gpu import Apart, GPUSpec, GPUStatus, Learned, Reservation
from paddock.controller.clock import now
from paddock.core.fleet import Device
from paddock.core.health import withheld
from paddock.core.inventory import in_words, merge
from paddock.core.overhead import learn
from paddock.core.quantity import mebibytes


class Entry:
    """One GPU object: as stored, as observed, and what is to be added or taken off."""

    def __init__(self, name: str, stale: set[str]) -> None:
        """Note in `stale` whenever its device is another one."""
        self.name, self._stale = name, stale
        self._device: Device | None = None
        self.uid, self.version = "", ""
        self.made_for = ""
        """Name of the node for which it was made; empty if somebody else made it."""
        self.spec = GPUSpec()
        """What the owner of the fleet says; never written here."""
        self.doubt: str | None = None
        """Why nothing new is placed on it though it is in order."""
        self.apart: list[Apart] | None = None
        """Who gets nothing here for a while; None: those who are stored."""
        self.mismatches: list[str] | None = None
        """When servers were found elsewhere lately; None: what is stored."""
        self.stored: GPUStatus | None = None
        self.observed: GPUStatus | None = None
        self.adding: dict[str, Reservation] = {}
        self.removing: dict[str, str] = {}
        """Since when the reservation was made that is taken off, by pod: never a later one of the same pod."""
        self.promising: dict[str, Promise] = {}
        self.withdrawing: dict[str, str] = {}
        """Since when the promise was made that is taken back, by pod."""
        self.pods: frozenset[str] = frozenset()
        """Pods with a stored reservation."""
        self.learned: list[Learned] = []
        """What was seen of servers and is not stored yet."""
        self.facts: set[str] = set()
        """Pods among `adding` that exist already: their reservation was lost, and is no question of room."""
        self.lock = asyncio.Lock()

    @property
    def device(self) -> Device | None:
        """As the fleet has it; None after a change."""
        return self._device

    @device.setter
    def device(self, device: Device | None) -> None:
        self._device = device
        if device is None:
            self._stale.add(self.name)

    @property
    def reservations(self) -> list[Reservation]:
        """What counts now: stored, less what is being removed, and what is being added."""
        stored = self.stored.reservations if self.stored else []
        kept = [one for one in stored if self.removing.get(one.pod) != one.since and one.pod not in self.adding]
        return [*kept, *self.adding.values()]

    @property
    def promises(self) -> list[Promise]:
        """What is promised now; a promise ends with the reservation that it becomes."""
        stored = self.stored.promises if self.stored else []
        kept = [one for one in stored if self.withdrawing.get(one.pod) != one.since and one.pod not in self.promising]
        booked = {one.pod for one in self.reservations}
        return [one for one in (*kept, *self.promising.values()) if one.pod not in booked]

    @property
    def last_disruption(self) -> Promise | None:
        """The last promise for which somebody was asked to leave."""
        stored = self.stored.last_disruption if self.stored else None
        return next((one for one in self.promising.values() if one.leaving), stored)

    def removed(self) -> None:
        """Forget what was to be taken off and is stored no more; not earlier, a write may be on its way with it."""
        promised = {one.pod: one.since for one in self.stored.promises} if self.stored else {}
        self.withdrawing = {pod: since for pod, since in self.withdrawing.items() if promised.get(pod) == since}
        there = {one.pod: one.since for one in self.stored.reservations} if self.stored else {}
        self.removing = {pod: since for pod, since in self.removing.items() if there.get(pod) == since}

    def wanted(self) -> GPUStatus | None:
        """Give the status that should be stored; None while nothing is known."""
        base = self.observed if self.observed is not None else self.stored
        if base is None:
            return None
        merged = withheld(merge(base, self.stored), self.spec, self.doubt, self.stored, now())
        reservations = sorted(self.reservations, key=lambda one: one.pod)
        deployments = sorted({one.deployment for one in reservations})
        return merged.model_copy(
            update={
                "learned": reduce(learn, self.learned, merged.learned),
                "reservations": reservations,
                "promises": sorted(self.promises, key=lambda one: one.pod),
                "apart": merged.apart if self.apart is None else self.apart,
                "mismatches": merged.mismatches if self.mismatches is None else self.mismatches,
                "last_disruption": self.last_disruption,
                "deployments": deployments,
                "used_by": in_words(deployments),
                "memory": merged.memory.model_copy(
                    update={"reserved": mebibytes(sum(one.bytes for one in reservations))}
                ),
            }
        )

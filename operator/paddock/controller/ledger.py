"""The fleet's books: GPU objects, and the reservations on them.

A reservation is written to its GPU object by compare-and-swap on resourceVersion *before* the pod is made, and taken
off when the pod object is gone: two operators at once cannot book a byte twice. Reservations for one GPU that wait at
the same time go into one write.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paddock.api.disruption import Promise
from paddock.api.gpu import Apart, GPUStatus, Learned, Reservation
from paddock.api.vocabulary import API_VERSION, Annotation
from paddock.controller.cluster import GPUS, JSON, Cluster, ClusterError
from paddock.controller.entry import Entry
from paddock.controller.settings import Settings
from paddock.controller.store import Tombstones, gpu_spec_of, gpu_status_of, older
from paddock.core.fleet import Device, Fleet, Node, device_of

log = logging.getLogger("paddock.ledger")


class ConflictError(Exception):
    """Somebody else took the room meanwhile: decide again."""


class Ledger:
    """All GPU objects. The decision and the assumed reservation happen without an await between them."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        changed: Callable[[], None],
        lost: Callable[[frozenset[str]], None],
    ) -> None:
        """Call `changed` when room may have appeared, and `lost` with pods that somebody else took off a GPU object."""
        self._cluster, self._changed, self._lost = cluster, changed, lost
        self.dress: Callable[[Device], Device] = lambda device: device
        """Puts on a device what others know of its node; see `renew`."""
        self._reserve, self._host_budget = settings.reserve_bytes, settings.host_budget
        self._entries: dict[str, Entry] = {}
        self._gone = Tombstones()
        self._stale: set[str] = set()
        """GPUs that are not any more what the fleet has."""
        self._fleet = Fleet(reserve=self._reserve, host_budget=self._host_budget)
        self._places: dict[str, set[str]] = {}
        """GPUs by pod: all on which it has a reservation are among them."""
        self._promised: set[str] = set()
        """GPUs on which something may be promised."""
        self._disturbed: set[str] = set()
        """GPUs that somebody was asked to leave once."""
        self.resident: set[str] = set()
        """Pods (namespace/name) whose memory the driver's figures show already."""
        self._shown: dict[str, int] = {}
        """Bytes that the driver shows for pods (namespace/name), as long as they have a reservation."""

    # -- what is stored ------------------------------------------------------------------------------------------

    def seed(self, objects: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
        """Take over all GPU objects; gives name and UID of those that are known and not among them."""
        names = set()
        for body in objects:
            names.add(body["metadata"]["name"])
            self.apply(body)
        return [(name, entry.uid) for name, entry in self._entries.items() if name not in names and entry.uid]

    def apply(self, body: Mapping[str, Any]) -> None:
        """Take over one GPU object, unless a newer state of it is known; tells `lost` whom somebody took off it."""
        meta = body["metadata"]
        if meta["uid"] in self._gone:
            return
        entry = self._entries.setdefault(meta["name"], Entry(meta["name"], self._stale))
        version = meta.get("resourceVersion", "")
        if older(version, entry.version):
            return
        entry.uid, entry.version = meta["uid"], version
        entry.made_for = (meta.get("annotations") or {}).get(Annotation.NODE, "")
        before, pods = (entry.stored, entry.spec), entry.pods
        entry.spec = gpu_spec_of(body)
        entry.stored = gpu_status_of(body)
        entry.pods = frozenset(one.pod for one in entry.stored.reservations) if entry.stored else frozenset()
        if entry.stored is not None and entry.stored.promises:
            self._promised.add(entry.name)
        if entry.stored is not None and entry.stored.last_disruption is not None:
            self._disturbed.add(entry.name)
        lost = pods - entry.pods - entry.removing.keys()
        if lost:
            self._lost(lost)
        if (entry.stored, entry.spec) == before:
            return
        entry.device = None
        for pod in entry.pods:
            self._places.setdefault(pod, set()).add(entry.name)
        for pod in pods - entry.pods - entry.adding.keys():
            self._not_there(pod, entry.name)
        self._changed()

    def _not_there(self, pod: str, gpu: str) -> None:
        places = self._places.get(pod, set())
        places.discard(gpu)
        if not places:
            self._places.pop(pod, None)

    def forget(self, name: str, uid: str) -> None:
        """Drop a GPU object that was deleted, not a later one of its name; tells `lost` the pods that were on it."""
        self._gone.add(uid)
        entry = self._entries.get(name)
        if entry is None or entry.uid != uid:
            return
        del self._entries[name]
        self._stale.add(name)
        for pod in entry.pods | entry.adding.keys():
            self._not_there(pod, name)
        if entry.pods:
            self._lost(entry.pods)
        self._changed()

    def status(self, name: str) -> GPUStatus | None:
        """Give a GPU's stored status, if there is one."""
        entry = self._entries.get(name)
        return entry.stored if entry is not None else None

    def stored(self) -> dict[str, GPUStatus]:
        """Give every GPU's stored status by name."""
        return {name: entry.stored for name, entry in self._entries.items() if entry.stored is not None}

    def bare(self) -> list[tuple[str, str]]:
        """Give name and node of the GPU objects that were made for a node and have no status: a write failed then."""
        return [(one.name, one.made_for) for one in self._entries.values() if one.made_for and one.stored is None]

    def disturbed(self, name: str) -> str | None:
        """Give the node of a GPU whose object is not what it should be, though nobody here is changing it."""
        entry = self._entries.get(name)
        if entry is None or entry.lock.locked() or entry.observed is None or entry.wanted() == entry.stored:
            return None
        return entry.observed.node

    def booked(self, pod: str, gpu: str) -> bool:
        """Tell whether a pod has a reservation on a GPU; True as well while the GPU is not known."""
        entry = self._entries.get(gpu)
        if entry is None or entry.version == "":
            return True
        if pod in entry.adding or pod not in entry.pods:
            return pod in entry.adding
        return pod not in entry.removing or any(one.pod == pod for one in entry.reservations)

    def places(self, pod: str) -> set[str]:
        """Give the GPUs on which a pod (namespace/name) has a reservation."""
        return set(self._places.get(pod, ()))

    def promises(self) -> list[tuple[str, Promise]]:
        """Give every promise with the name of its GPU."""
        entries = [self._entries[name] for name in sorted(self._promised) if name in self._entries]
        found = [(entry.name, one) for entry in entries for one in entry.promises]
        self._promised = {name for name, _ in found}
        return found

    @property
    def promised(self) -> set[str]:
        """Pods (namespace/name) with a promise."""
        return {one.pod for _, one in self.promises()}

    def disruptions(self) -> list[tuple[str, Promise]]:
        """Give for each GPU that somebody was asked to leave the last promise for which that was."""
        entries = [self._entries[name] for name in sorted(self._disturbed) if name in self._entries]
        return [(entry.name, one) for entry in entries if (one := entry.last_disruption) is not None]

    def reservations(self) -> list[tuple[str, Reservation]]:
        """Give every reservation with the name of its GPU."""
        return [(entry.name, one) for entry in self._entries.values() for one in entry.reservations]

    # -- reading -------------------------------------------------------------------------------------------------

    def fleet(self, nodes: Mapping[str, Node]) -> Fleet:
        """Give a snapshot. What has not changed since the last one is taken from it."""
        if self._stale:
            stale = {name: self._entries.get(name) for name in self._stale}
            self._stale.clear()
            for entry in stale.values():
                if entry is not None:
                    entry.device = self._device(entry)
            changed = [entry.device for entry in stale.values() if entry is not None and entry.device is not None]
            gone = stale.keys() - {device.gpu for device in changed}
            self._fleet = self._fleet.with_devices(changed, gone)
        # Nodes are replaced when they change: the comparison looks no further than at which objects they are.
        if nodes != self._fleet.nodes:
            self._fleet = self._fleet.with_nodes(dict(nodes))
        return self._fleet

    def _device(self, entry: Entry) -> Device | None:
        now_ = entry.wanted()
        return None if now_ is None else self.dress(device_of(entry.name, now_, self.resident, entry.spec, self._shown))

    def renew(self, node: str) -> None:
        """Look at the GPUs of a node anew: how pods get them has changed."""
        for name in [name for name, status in self.stored().items() if status.node == node]:
            self._entries[name].device = None
        self._changed()

    def set_resident(self, pod: str, *, resident: bool) -> None:
        """Note whether the driver's figures show a pod's memory."""
        if resident == (pod in self.resident):
            return
        if resident:
            self.resident.add(pod)
        else:
            self.resident.discard(pod)
        if self._changed_at(pod):
            self._changed()

    def set_shown(self, sizes: Mapping[str, int]) -> None:
        """Note what the driver shows for pods: so much of their reservations is missing in free memory already."""
        for pod, size in sizes.items():
            if self._shown.get(pod, 0) != size and self._changed_at(pod):
                self._shown[pod] = size

    def _changed_at(self, pod: str) -> bool:
        """Have the GPUs of a pod looked at anew; tells whether there are any."""
        found = [entry for name in self._places.get(pod, ()) if (entry := self._entries.get(name)) is not None]
        for entry in found:
            entry.device = None
        return bool(found)

    # -- writing -------------------------------------------------------------------------------------------------

    def assume(self, gpu: str, reservation: Reservation) -> None:
        """Count a reservation from now on; `commit` must follow. No await between the decision and this."""
        entry = self._entries[gpu]
        entry.adding[reservation.pod] = reservation
        entry.removing.pop(reservation.pod, None)
        entry.device = None
        self._places.setdefault(reservation.pod, set()).add(gpu)

    async def rebook(self, gpu: str, reservation: Reservation) -> None:
        """Put back the reservation of a pod that exists, whether it fits or not: its memory is in use."""
        if gpu not in self._entries:
            return  # Another operator knows it already; once it is known here, what is on it is looked at.
        self.assume(gpu, reservation)
        self._entries[gpu].facts.add(reservation.pod)
        await self.commit(gpu, reservation.pod)

    async def commit(self, gpu: str, pod: str) -> None:
        """Write what was assumed. Raises ConflictError when the room is gone, ClusterError when the write failed."""
        entry = self._entries[gpu]
        try:
            await self._flush(entry)
        except ClusterError:
            self._drop(entry, pod)
            raise
        if entry.stored is None or all(one.pod != pod for one in entry.stored.reservations):
            self._drop(entry, pod)
            raise ConflictError(f"{gpu} has no room for {pod} any more")

    def _drop(self, entry: Entry, pod: str) -> None:
        entry.adding.pop(pod, None)
        entry.facts.discard(pod)
        entry.device = None
        if pod not in entry.pods:
            self._not_there(pod, entry.name)

    async def release(self, pod: str, keep: str | None = None, since: str | None = None) -> None:
        """Take a pod's reservations off every GPU except `keep`; only those of `since`, if that is given."""
        held = []
        for name in sorted(self._places.get(pod, ())):
            entry = self._entries.get(name)
            found = next((one for one in entry.reservations if one.pod == pod), None) if entry is not None else None
            if entry is None or found is None or name == keep or (since is not None and found.since != since):
                continue
            held.append(entry)
            entry.adding.pop(pod, None)
            entry.removing[pod] = found.since
            entry.device = None
        if keep is None:
            self._shown.pop(pod, None)
            self.resident.discard(pod)
        if held:
            self._changed()
        try:
            for entry in held:
                await self._flush(entry)
        except ClusterError:
            for entry in held:  # Whoever tries again must find it.
                entry.removing.pop(pod, None)
                entry.device = None
            raise

    async def promise(self, gpu: str, promise: Promise) -> None:
        """Promise memory to a pod, before those are disturbed who have it; counts from now on.

        No await between the decision and this. Raises ConflictError when somebody else was quicker.
        """
        entry = self._entries[gpu]
        entry.promising[promise.pod] = promise
        entry.device = None
        self._promised.add(gpu)
        try:
            await self._flush(entry)
        finally:
            if entry.promising.get(promise.pod) is promise:
                del entry.promising[promise.pod]
                entry.device = None
        if entry.stored is None or promise not in entry.stored.promises:
            raise ConflictError(f"{gpu} changed before {promise.pod} was promised its memory")

    async def withdraw(self, pod: str, keep: str | None = None) -> None:
        """Take back what is promised to a pod, on every GPU except `keep`."""
        for gpu, promise in self.promises():
            if promise.pod != pod or gpu == keep:
                continue
            entry = self._entries[gpu]
            entry.promising.pop(pod, None)
            entry.withdrawing[pod] = promise.since
            entry.device = None
            self._changed()
            try:
                await self._flush(entry)
            except ClusterError:
                entry.withdrawing.pop(pod, None)
                entry.device = None
                self._promised.add(gpu)
                raise

    async def observe(self, name: str, status: GPUStatus) -> None:
        """Write what an agent reports of one device, if it differs from what is stored; creates the GPU object."""
        entry = self._entries.setdefault(name, Entry(name, self._stale))
        entry.observed = status
        entry.device = None
        if entry.version == "":
            await self._create(entry)
        await self._flush(entry)
        self._changed()

    async def learn(self, gpu: str, seen: Learned) -> None:
        """Write what a server was seen to take beyond its estimate, where that is more than is known."""
        entry = self._entries.get(gpu)
        if entry is None:
            return
        entry.learned.append(seen)
        try:
            await self._flush(entry)
        finally:
            entry.learned.remove(seen)
            entry.device = None

    def doubt(self, name: str, why: str | None) -> None:
        """Have nothing new placed on a device, or again; its object is written with the next look at its node."""
        entry = self._entries.get(name)
        if entry is not None:
            entry.doubt, entry.device = why, None

    def keep_apart(self, name: str, apart: list[Apart], mismatches: list[str]) -> None:
        """Note who gets nothing on a device for a while, and why; it is written with the next look at its node."""
        if (entry := self._entries.get(name)) is not None:
            entry.apart, entry.mismatches = apart, mismatches

    async def delete(self, name: str) -> None:
        """Remove the GPU object of a device whose node is gone, if it is as it is known: nobody has booked since."""
        entry = self._entries.get(name)
        if entry is None:
            return
        uid = entry.uid  # Meanwhile one of the same name may come to be.
        await self._cluster.delete(f"{GPUS}/{name}", uid, entry.version)
        self.forget(name, uid)

    async def _create(self, entry: Entry) -> None:
        node = entry.observed.node if entry.observed is not None else ""
        meta = {"name": entry.name, "annotations": {Annotation.NODE: node}}
        body: JSON = {"apiVersion": API_VERSION, "kind": "GPU", "metadata": meta}
        try:
            self.apply(await self._cluster.post(GPUS, body))
        except ClusterError as error:
            if not error.already_exists:
                raise
            self.apply(await self._cluster.get(f"{GPUS}/{entry.name}"))

    async def _flush(self, entry: Entry) -> None:
        """Bring the stored object to what it should be; one write serves all who wait."""
        async with entry.lock:
            for _ in range(20):
                wanted = entry.wanted()
                if wanted is None or wanted == entry.stored:
                    entry.adding.clear()
                    entry.facts.clear()
                    entry.promising.clear()
                    entry.removed()
                    return
                added, promised = dict(entry.adding), dict(entry.promising)
                body: JSON = {
                    "apiVersion": API_VERSION,
                    "kind": "GPU",
                    "metadata": {"name": entry.name, "resourceVersion": entry.version},
                    "status": wanted.to_dict(),
                }
                try:
                    self.apply(await self._cluster.put(f"{GPUS}/{entry.name}/status", body))
                except ClusterError as error:
                    await self._after_error(entry, error)
                    continue
                for pod, reservation in added.items():
                    if entry.adding.get(pod) is reservation:
                        del entry.adding[pod]
                        entry.facts.discard(pod)
                for pod, promise in promised.items():
                    if entry.promising.get(pod) is promise:
                        del entry.promising[pod]
                entry.removed()
                entry.device = None
                if not entry.adding and not entry.promising:
                    return
            raise ClusterError(409, "Conflict", f"GPU {entry.name} keeps changing")

    async def _after_error(self, entry: Entry, error: ClusterError) -> None:
        """After a lost race: read the object, and give up what does not fit beside the winner's reservations."""
        if error.not_found:
            self.forget(entry.name, entry.uid)
            raise error
        if not error.conflict:
            raise error
        self.apply(await self._cluster.get(f"{GPUS}/{entry.name}"))
        entry.promising.clear()  # Whoever promised has to look again.
        entry.device = None
        device = self._device(entry)
        while device is not None and device.overbooked(self._reserve):
            pod = next((one for one in reversed(entry.adding) if one not in entry.facts), None)
            if pod is None:
                break
            log.info("%s: another operator was quicker, %s has to look again", entry.name, pod)
            self._drop(entry, pod)
            device = self._device(entry)

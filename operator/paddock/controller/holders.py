"""Holder pods: who makes them, which card each has, and when they go.

All that is known of them is read: the pods from the API server, their cards from the kubelets. A restarted operator
goes on with what it finds. Of each node one holder at a time waits for its card, so that no more cards are taken than
will do.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from paddock.api.binding import Binder
from paddock.api.report import GivenDevices
from paddock.api.vocabulary import Label, Reason
from paddock.controller.cluster import Cluster, ClusterError, namespaced
from paddock.controller.ledger import Ledger
from paddock.controller.settings import Settings
from paddock.controller.store import Latest, World
from paddock.core.fleet import Device, Fleet, Holding
from paddock.core.holding import Holder, holder_name, holder_of, holder_pod, is_holder_of
from paddock.core.placement import Placement, Unplaceable, place
from paddock.core.plan import Plan, Removal
from paddock.core.replica import Replica
from paddock.core.request import Request
from paddock.core.status import Finding

log = logging.getLogger("paddock.holders")
STEP = 2.0
"""Seconds between two looks at what holders are there for."""
PATIENCE = 60.0
"""Seconds after which a holder goes that was given no card."""
LONGEST_PAUSE = 600.0
"""Most seconds for which a node gets no further holder after one that went without having been of use."""
Given = Mapping[str, Mapping[str, GivenDevices]]


class Holders:
    """Makes holders for cards that are wanted, and takes back those that nobody needs."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        world: World,
        ledger: Ledger,
        given: Given,
        look_at: Callable[[str, float], None],
    ) -> None:
        """`given` is what pods were given, by node; only of nodes whose kubelet tells."""
        self._cluster, self._settings, self._world, self._ledger = cluster, settings, world, ledger
        self._given, self._look_at, self.wanted = given, look_at, settings.holder_pods
        self._pods: dict[str, Holder] = {}
        self._latest = Latest()
        self._leaving: set[str] = set()
        """UIDs of holders that are being removed: their cards are not held any more."""
        self._since: dict[str, float] = {}
        """By UID: since when a holder is of no use."""
        self._cards: dict[str, str] = {}
        """By UID: the card that a holder was last told to have."""
        self._used: set[str] = set()
        """UIDs of holders on whose card something was."""
        self._pauses: dict[str, tuple[float, float]] = {}
        """By node: until when it gets no holder, and how long that pause is in all."""
        self._former: set[str] = set()
        """Names that holders had: what the kubelet tells of one that is gone must not be taken for its successor's."""
        self._one_at_a_time = asyncio.Lock()
        """Held from the look at whether a holder is on its way until the next one is made."""

    # -- what is there ---------------------------------------------------------------------------------------------

    def apply(self, type_: str | None, body: Mapping[str, Any]) -> None:
        """Take over the news of a holder's pod."""
        meta = body["metadata"]
        if not self._latest.take(type_, meta["name"], meta):
            return
        before = self._pods.pop(meta["name"], None)
        self._former.add(meta["name"])
        if type_ != "DELETED":
            self._pods[meta["name"]] = holder_of(body)
        if type_ is None and before is None:
            self._used.add(meta["uid"])  # Nobody here saw what it was made for.
        after = self._pods.get(meta["name"])
        if after != before:
            for node in {one.node for one in (before, after) if one is not None}:
                self._ledger.renew(node)

    def missing(self, listed: set[str]) -> list[tuple[str, str]]:
        """Give name and UID of those that are known and not in a list."""
        return self._latest.missing(listed)

    def holding(self, device: Device, resource: str | None) -> Holding | None:
        """Give how a card is held that a vendor's plugin gives; None where servers are given cards themselves."""
        by_us = device.binder in (None, Binder.VENDOR_PLUGIN) and device.offer is None
        if not self.wanted or resource is None or device.backend != "CUDA" or not by_us:
            return None
        who = self.who_has(device)
        if who is not None:
            holder = self._sound(who)
            return Holding(pod=holder.name) if holder is not None else Holding(why=f"the plugin gave it to {who}")
        if (last := self._last_with(device)) is not None:
            return Holding(why=f"the kubelet does not tell now whether holder pod {last.name} has it")
        if not self._are_left(device.node, resource):
            return Holding(why=f"its node has no {resource} left for a holder pod")
        if self._is_paused(device.node):
            return Holding(why="holder pods of its node were given no card that is of use; tried again after a pause")
        return Holding(free=True)

    def _are_left(self, node: str, resource: str) -> bool:
        """Tell whether the plugin of a node has cards left to give."""
        given, known = self._given.get(node, {}), self._world.nodes.get(node)
        taken = sum(len(one.devices) for one in given.values() if one.resource == resource)
        return known is not None and known.resources.get(resource, 0) > taken

    def _is_paused(self, node: str) -> bool:
        return self._pauses.get(node, (0.0, 0.0))[0] > time.monotonic()

    def are_on(self, node: str) -> bool:
        """Tell whether a node has a holder."""
        return any(one.node == node for one in self._pods.values())

    def who_has(self, device: Device) -> str | None:
        """Give the pod (namespace/name) to which the plugin gave a card."""
        name = (device.uuid or device.pci_id or "").lower()
        given = self._given.get(device.node, {})
        return next((pod for pod, one in given.items() if name in map(str.lower, one.devices)), None)

    def _last_with(self, device: Device) -> Holder | None:
        """Give the holder that had a card when the kubelet told of it last, as long as that may be so still."""
        had = (one for one in self._pods.values() if self._cards.get(one.uid) == (device.uuid or "-").lower())
        return next((one for one in had if self._sound(self._key(one)) is not None and not self._has_card(one)), None)

    def _sound(self, pod: str) -> Holder | None:
        """Give the holder of that name (namespace/name), if it has its card for good."""
        namespace, _, name = pod.partition("/")
        one = self._pods.get(name) if namespace == self._settings.namespace else None
        return None if one is None or one.deleting or one.ended or one.uid in self._leaving else one

    def _has_card(self, one: Holder) -> bool:
        """Tell whether the kubelet tells of a card that it has, and note that."""
        told = self._given.get(one.node, {}).get(self._key(one))
        if told is not None and told.devices:
            self._cards[one.uid] = told.devices[0].lower()
        return told is not None

    def _waiting(self, node: str) -> Holder | None:
        """Give the holder of a node that was given no card yet."""
        there = (one for one in self._pods.values() if one.node == node and self._sound(self._key(one)) is not None)
        return next((one for one in there if not self._has_card(one) and one.uid not in self._cards), None)

    def _key(self, one: Holder) -> str:
        return f"{self._settings.namespace}/{one.name}"

    # -- what is wanted --------------------------------------------------------------------------------------------

    def rather_held(self, request: Request, fleet: Fleet, decision: Placement | Unplaceable) -> Placement | Unplaceable:
        """Give a card that is held already, where the one that was chosen is not and none is named."""
        device = decision.device if isinstance(decision, Placement) else None
        if device is None or not device.unheld or request.devices:
            return decision
        there = fleet.with_devices(gone=[one.gpu for one in fleet.devices if one.unheld])
        other = place(replace(request, allow_cpu=False), there)
        return decision if isinstance(other, Unplaceable) else other

    async def wait_for(self, device: Device | None) -> Finding | None:
        """Have a holder for a card that none has, and give what is waited for; nothing is awaited for other cards."""
        return await self.ask(device) if device is not None and device.unheld else None

    async def ask(self, device: Device) -> Finding:
        """Have a holder for a card, if none is on its way; gives what is waited for."""
        node, resource = device.node, device.lent or ""
        async with self._one_at_a_time:
            there = self._waiting(node)
            if there is None:
                name = self._new_name(node)
                problem = await self._make(name, node, resource)
                if problem is not None:
                    return Finding("False", Reason.WAITING_FOR_DEVICE, f"{node} can have no holder pod: {problem}")
                there = Holder(name, "", node, resource)
        words = f"holder pod {there.name} asks for a card of {node}"
        return Finding("False", Reason.WAITING_FOR_DEVICE, f"{words}: {there.problem}" if there.problem else words)

    def _new_name(self, node: str) -> str:
        told = {pod.partition("/")[2] for pod in self._given.get(node, {})}
        return next(name for number in count() if (name := holder_name(node, number)) not in self._former | told)

    async def _make(self, name: str, node: str, resource: str) -> str | None:
        pods = namespaced("pods", self._settings.namespace)
        agents = await self._cluster.list(pods, {"labelSelector": f"{Label.COMPONENT}={Label.NODE_AGENT}"})
        agent = next((one for one in agents if (one.get("spec") or {}).get("nodeName") == node), None)
        if agent is None:
            return "it has no agent"
        body = holder_pod(name, node, resource, agent, self._settings.server_user)
        try:
            self.apply("ADDED", await self._cluster.post(pods, body))
        except ClusterError as error:
            if error.already_exists:
                self._former.add(name)
                return None  # Its news is on the way, or it is none of ours.
            if error.refused:
                return error.message
            raise
        log.info("holder pod %s asks for a card of %s", name, node)
        return None

    # -- what is not any more --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look after holders for ever."""
        while True:
            await asyncio.sleep(STEP)
            try:
                await self.tend()
            except ClusterError as error:
                log.warning("holders: %s", error)
            except Exception:
                log.exception("holders")

    async def tend(self) -> None:
        """Remove holders that are of no use, and have those made anew whose cards servers are on."""
        moment = time.monotonic()
        for one in list(self._pods.values()):
            if not one.deleting and one.uid not in self._leaving:
                await self._or_later(self._look(one, moment))
        for node, (until, length) in list(self._pauses.items()):
            if 0 < until <= moment:
                self._pauses[node] = 0.0, length
                self._ledger.renew(node)
        for device in self._fleet().devices:
            if self._lost(device):
                log.warning("GPU %s has servers and no holder pod any more", device.gpu)
                await self._or_later(self.ask(device))
        there = {one.uid for one in self._pods.values()}
        self._since = {uid: since for uid, since in self._since.items() if uid in there}
        self._cards = {uid: card for uid, card in self._cards.items() if uid in there}
        self._leaving &= there
        self._used &= there
        for server in self._world.replicas.values():
            if self._why_not(server) is not None:
                self._look_at(f"{server.namespace}/{server.deployment}", 0.0)

    async def _or_later(self, step: Awaitable[object]) -> None:
        """Do a step; what the API server does not take of one holder is no reason to leave the others alone."""
        try:
            await step
        except ClusterError as error:
            log.warning("holders: %s", error)

    def _fleet(self) -> Fleet:
        return self._ledger.fleet(self._world.nodes)

    async def _look(self, one: Holder, moment: float) -> None:
        """Remove a holder that ended, that gets no card, or on whose card nothing is any more."""
        told = self._has_card(one)
        card = self._cards.get(one.uid)
        if not one.ended and any((each.uuid or "").lower() == card and each.claims for each in self._fleet().devices):
            self._used.add(one.uid)
            self._pauses.pop(one.node, None)
            self._since.pop(one.uid, None)
            return
        if not one.ended and self._given.get(one.node) is None:
            self._since[one.uid] = moment  # Nobody tells what it has.
            return
        since = self._since.setdefault(one.uid, moment)
        if one.ended or moment - since >= (self._settings.holder_idle_seconds if told else PATIENCE):
            await self._remove(one, moment)

    def _lost(self, device: Device) -> bool:
        """Tell whether servers are on a card that no holder has, and none is on its way."""
        if device.holding is None or device.holding.pod or self._waiting(device.node) is not None:
            return False
        if self._last_with(device) is not None or self._is_paused(device.node):
            return False
        who = self.who_has(device)
        # As long as the kubelet tells of a holder that goes, the next one would be given another card, if there is one.
        if who is not None and (not self._is_ours(who, device.node) or self._are_left(device.node, device.lent or "")):
            return False
        servers = (self._world.replicas.get(claim.pod) for claim in device.claims)
        return any(one is not None and shares(one) for one in servers)

    def _is_ours(self, pod: str, node: str) -> bool:
        """Tell whether a pod is a holder, or was one: the kubelet tells of it for longer than the API server."""
        namespace, _, name = pod.partition("/")
        return namespace == self._settings.namespace and is_holder_of(node, name)

    async def _remove(self, one: Holder, moment: float) -> None:
        before = self._pauses.get(one.node, (0.0, 0.0))
        if one.uid not in self._used:
            pause = min(LONGEST_PAUSE, max(self._settings.holder_idle_seconds, 2 * before[1]))
            self._pauses[one.node] = moment + pause, pause
        # From here on nothing new is placed on its card; no await lies between this and the look at what is on it.
        self._leaving.add(one.uid)
        self._ledger.renew(one.node)
        log.info("holder pod %s goes: nobody needs a card that it has", one.name)
        try:
            await self._cluster.delete(namespaced("pods", self._settings.namespace, one.name), one.uid)
        except ClusterError:
            self._pauses[one.node] = before
            self._leaving.discard(one.uid)
            self._ledger.renew(one.node)
            raise

    # -- servers whose card is somebody else's ---------------------------------------------------------------------

    def replace(self, steps: Plan) -> Plan:
        """Have servers removed whose card the plugin has given to somebody else since its holder went."""
        gone = [(one, why) for one in (*steps.current, *steps.outdated) if (why := self._why_not(one))]
        if not gone:
            return steps
        names = {one.name for one, _ in gone}
        return replace(
            steps,
            removals=(*steps.removals, *(Removal(one, why) for one, why in gone)),
            current=tuple(one for one in steps.current if one.name not in names),
            outdated=tuple(one for one in steps.outdated if one.name not in names),
        )

    def _why_not(self, one: Replica) -> str | None:
        record = one.record
        if not self.wanted or record is None or record.gpu is None or one.deleting or not shares(one):
            return None
        device = self._fleet().device(record.gpu)
        if device is None or device.holding is None:
            return None
        who = self.who_has(device)
        ours = who is None or self._is_ours(who, device.node)
        return None if ours else f"the plugin of its vendor gave its card to {who}"


def shares(one: Replica) -> bool:
    """Tell whether a server is on a card that a holder has, or had."""
    record = one.record
    return record is not None and record.binder == Binder.VENDOR_PLUGIN and record.exact_device is not False

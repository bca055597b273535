"""What the kubelet tells of holder pods comes later than what the API server tells, and requests fail."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from paddock.api.binding import Binder
from paddock.api.gpu import Reservation
from paddock.api.report import GivenDevices
from paddock.api.vocabulary import Label
from paddock.controller.cluster import GPUS, ClusterError, namespaced
from paddock.controller.controller import Controller
from paddock.controller.settings import Settings
from paddock.controller.store import node_of
from paddock.core.deployment import deployment_of
from paddock.core.holding import COMPONENT, holder_name
from paddock.core.plan import Plan
from support.builders import GIB, NOW, READY, body, device, gpu_json, record, replica
from support.memory_cluster import InMemory

if TYPE_CHECKING:
    from paddock.core.fleet import Device
    from paddock.core.replica import Replica

JSON = dict[str, Any]
PODS = namespaced("pods", "p")
RESOURCE = "nvidia.com/gpu"
CARDS = [device(f"node1-{letter}", uuid=f"GPU-{letter}", pci_id=f"0000:0{letter}:00.0") for letter in "abc"]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    """Give a node whose time is told by the test."""
    made = Node()
    monkeypatch.setattr("paddock.controller.holders.time", SimpleNamespace(monotonic=lambda: made.now))
    return made


class Node:
    """A node with three cards that a plugin gives, and an operator that makes holders there."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.cluster = InMemory()
        named = {"NAMESPACE": "p", "POD_NAME": "o", "HOLDER_PODS": "true"}
        settings = Settings.from_environment({f"PADDOCK_{key}": value for key, value in named.items()})
        self.operator = Controller(self.cluster, settings)
        self.holders = self.operator.lent.holders
        self.operator.queue.add = self._look  # type: ignore[method-assign]
        self.looks: list[str] = []
        allocatable = {RESOURCE: "3", "memory": "64Gi"}
        status = {"allocatable": allocatable, "conditions": [READY]}
        self.operator.world.nodes["node1"] = node_of({"metadata": {"name": "node1", "uid": "n"}, "status": status})
        for one in CARDS:
            self.operator.ledger.apply(self.cluster.put_there(GPUS, gpu_json(one)))
        agent = {
            "metadata": {"name": "agent", "labels": {Label.COMPONENT: Label.NODE_AGENT}},
            "spec": {"nodeName": "node1", "containers": [{"name": "agent", "image": "paddock"}]},
        }
        self.cluster.put_there(PODS, agent)
        self.tell()

    def _look(self, key: tuple[str, str]) -> None:
        self.looks.append(key[1])

    def tell(self, **cards: str) -> None:
        """Have the kubelet tell which pod has which card."""
        given = [
            GivenDevices(pod=f"p/{pod}", resource=RESOURCE, devices=[f"GPU-{card}"]) for pod, card in cards.items()
        ]
        self.operator.lent.hear("node1", given)

    def card(self, letter: str) -> Device:
        found = self.operator.ledger.fleet(self.operator.world.nodes).device(f"node1-{letter}")
        assert found is not None
        return found

    def held_by(self, letter: str) -> str:
        holding = self.card(letter).holding
        assert holding is not None
        return holding.pod

    def serve(self, letter: str) -> Replica:
        """Have a server on a card that a holder has."""
        of = deployment_of(body())
        on = next(one for one in CARDS if one.gpu == f"node1-{letter}")
        one = replica(of, record=record(on, binder=Binder.VENDOR_PLUGIN))
        self.operator.world.replicas._all[one.key] = one
        booked = Reservation(pod=one.key, deployment=of.key, uid=of.uid, bytes=GIB, since=NOW)
        path = f"{GPUS}/{on.gpu}"
        there = self.cluster.objects[path]
        there["status"]["reservations"] = [booked.model_dump(by_alias=True, exclude_none=True)]
        self.operator.ledger.apply(self.cluster.put_there(GPUS, there))
        return one

    async def make(self, letter: str) -> str:
        """Have a holder for a card; gives its name."""
        before = set(self.there())
        await self.holders.ask(self.card(letter))
        (made,) = set(self.there()) - before
        return made

    def there(self) -> list[str]:
        objects = [one["metadata"] for path, one in self.cluster.objects.items() if path.startswith(PODS)]
        return [one["name"] for one in objects if one.get("labels", {}).get(Label.COMPONENT) == COMPONENT]

    def remove(self, name: str) -> None:
        """Have somebody delete a holder."""
        self.holders.apply("DELETED", self.cluster.objects.pop(f"{PODS}/{name}"))

    async def tend(self, seconds: float = 0.0) -> None:
        """Have holders looked after now, and again after some seconds."""
        await self.holders.tend()
        if seconds:
            self.now += seconds
            await self.holders.tend()

    def leaves(self, one: Replica) -> bool:
        return bool(self.holders.replace(Plan(current=(one,))).removals)


async def test_a_server_stays_while_the_kubelet_still_tells_of_a_holder_that_is_gone(node: Node) -> None:
    holder = await node.make("a")
    node.tell(**{holder: "a"})
    server = node.serve("a")
    node.remove(holder)
    assert not node.leaves(server), "the kubelet has only not told yet"
    node.tell(other="a")
    assert node.leaves(server)


async def test_what_is_told_of_a_holder_that_is_gone_is_not_taken_for_its_successors(node: Node) -> None:
    holder = await node.make("a")
    node.tell(**{holder: "a"})
    node.remove(holder)
    again = await node.make("b")
    assert again != holder
    assert [node.held_by(letter) for letter in "abc"] == ["", "", ""], "nobody knows yet which card it will have"
    node.tell(**{again: "b"})
    assert [node.held_by(letter) for letter in "abc"] == ["", again, ""]


async def test_a_lost_holder_is_made_anew_once_its_card_may_be_given(node: Node) -> None:
    """As long as it is not given back, the plugin would give another one."""
    holder = await node.make("a")
    node.tell(**{holder: "a"})
    node.serve("a")
    node.remove(holder)
    await node.tend()
    assert node.there() == []
    node.tell()
    await node.tend()
    assert len(node.there()) == 1


async def test_all_who_ask_at_once_get_one_holder(node: Node) -> None:
    asked = await asyncio.gather(*(node.holders.ask(node.card(letter)) for letter in "abcabc"))
    (made,) = node.there()
    assert {one.message for one in asked} == {f"holder pod {made} asks for a card of node1"}


async def test_a_name_that_somebody_else_has_is_passed_over(node: Node) -> None:
    taken = holder_name("node1", 0)
    node.cluster.put_there(PODS, {"metadata": {"name": taken}})
    for _ in range(2):
        await node.holders.ask(node.card("a"))
    (made,) = node.there()
    assert made != taken


async def test_a_holder_that_cannot_be_removed_keeps_nobody_from_what_is_due(node: Node) -> None:
    first = await node.make("a")
    node.tell(**{first: "a"})
    second = await node.make("b")
    node.tell(**{first: "a", second: "b"})
    lost = node.serve("c")
    node.cluster.before[f"DELETE {PODS}/{first}"] = [refuse] * 9
    await node.tend(21)
    assert first in node.there()
    assert second not in node.there()
    assert len(node.there()) == 2, "that of the servers' card is made"
    assert node.held_by("a") == first, "it has its card still"
    assert not node.leaves(lost)


async def test_a_card_that_the_plugin_never_gives_costs_no_node_all_its_cards(node: Node) -> None:
    """Servers are on a card whose holder is lost, and the plugin thinks it is broken: it gives all others."""
    node.serve("c")
    made: set[str] = set()
    given: dict[str, str] = {}
    known: dict[str, JSON] = {}
    taken = 0
    for _ in range(900):
        known |= {name: node.cluster.objects[f"{PODS}/{name}"] for name in node.there()}
        for name in [name for name in known if name not in node.there()]:
            node.holders.apply("DELETED", known.pop(name))
            given.pop(name, None)
        for name in known.keys() - given.keys():
            free = [letter for letter in "ab" if letter not in given.values()]
            given |= dict(zip([name], free, strict=False))
        node.tell(**given)
        made |= known.keys()
        taken += len(given)
        await node.tend(2)
    assert len(made) > 6, "it is tried again and again"
    assert taken < 900 / 2, "but most of the time the cards are there for others"


async def test_a_holder_that_was_there_before_the_operator_and_goes_leaves_no_pause(node: Node) -> None:
    holder = await node.make("a")
    pod = node.cluster.objects[f"{PODS}/{holder}"]
    again = Node()
    again.holders.apply(None, again.cluster.put_there(PODS, pod))
    again.tell(**{holder: "a"})
    await again.holders.tend()
    node.now += 21
    await again.holders.tend()
    assert again.there() == []
    again.holders.apply("DELETED", pod)
    again.tell()
    holding = again.card("a").holding
    assert holding is not None
    assert holding.free


async def test_a_pod_whose_containers_have_cards_has_all_of_them(node: Node) -> None:
    given = [GivenDevices(pod="x/other", resource=RESOURCE, devices=[f"GPU-{card}"]) for card in "ab"]
    node.operator.lent.hear("node1", given)
    assert [node.holders.who_has(node.card(card)) for card in "abc"] == ["x/other", "x/other", None]


def refuse() -> None:
    raise ClusterError(403, "Forbidden", "a webhook does not like it")

"""A user who never stops changing things, while operators are killed: nothing is lost, doubled or overbooked."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from support.client import eventually
from support.overbooking import Watch
from support.pretend_agent import card

if TYPE_CHECKING:
    from support.operator_process import Operator
    from support.site import Site

SECONDS = float(os.environ.get("PADDOCK_SOAK_SECONDS", "180"))
LEADER = {"leader_election": "true", "lease_seconds": 5}
NAMES = [f"m{number}" for number in range(24)]


class User:
    """Does one random thing after another."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site, self.random = site, random.Random(seed)  # noqa: S311 no secret
        self.there: set[str] = set()
        self.operators: list[Operator] = []

    def act(self) -> None:
        """Create, change, scale, suspend, restart or delete a deployment; take a pod, a card or the operator away."""
        self.supervise()
        name = self.random.choice(NAMES)
        if name not in self.there:
            self.site.apply(name, replicas=self.random.randrange(1, 3))
            self.there.add(name)
            return
        action = self.random.choice([self.delete, self.scale, self.suspend, self.change, self.take_pod, self.kill])
        action(name)

    def delete(self, name: str) -> None:
        self.site.client.delete(self.site.path(name))
        self.there.discard(name)

    def scale(self, name: str) -> None:
        self.site.change(name, replicas=self.random.randrange(4))

    def suspend(self, name: str) -> None:
        self.site.change(name, suspend=self.random.random() < 0.5)

    def change(self, name: str) -> None:
        self.site.change(name, serving={"parallel": self.random.randrange(1, 4)})

    def take_pod(self, name: str) -> None:
        for pod in self.site.pods(name)[:1]:
            self.site.client.delete(self.site.path(pod["metadata"]["name"], "pods"), gracePeriodSeconds=0)

    def kill(self, _: str) -> None:
        if self.random.random() < 0.04:
            for one in self.site.plane.operators:
                one.kill()

    def supervise(self) -> None:
        """Start an operator where none runs, as Kubernetes does."""
        if not any(one.running for one in self.site.plane.operators):
            self.site.plane.operators.clear()
            self.operators.append(self.site.another_operator(**LEADER))


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_a_user_does_the_books_are_right(site: Site, seed: int) -> None:
    site.plane.stop_operators()
    user = User(site, seed)
    user.supervise()
    site.node("node1", [card(number, 12) for number in range(3)])
    site.node("node2", [card(number, 24) for number in range(2)])
    watch = Watch(site.plane)
    end, acts = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        user.act()
        acts += 1
    for name in user.there:
        site.change(name, suspend=False, replicas=1, serving={"parallel": 1})

    def right() -> bool:
        user.supervise()
        pods = site.all_pods()
        booked, names = set(site.reservations()), {one["metadata"]["name"] for one in pods}
        assert booked == names, f"without pod: {booked - names}; without reservation: {names - booked}"
        owners = Counter(one["metadata"]["labels"]["paddock.dev/model-deployment"] for one in pods)
        assert not owners - Counter(user.there), owners
        reasons = {name: site.condition("Available", name)["reason"] for name in user.there}
        assert set(reasons.values()) == {"Serving"}, reasons
        return True

    eventually(right, 60, "each has one pod and one reservation")
    site.settle()
    assert right()
    watch.stop()
    assert acts > SECONDS, "it had little to do"
    assert not watch.overbooked, watch.overbooked
    bugs = [line for one in user.operators for _, line in one.lines if "Traceback" in line]
    assert not bugs

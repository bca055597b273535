"""Who waits gets room in the order of priority and age, and is told its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.client import eventually
from support.pretend_agent import card

if TYPE_CHECKING:
    from support.site import Site


def position(site: Site, name: str) -> int | None:
    place: int | None = site.status(name).get("queue", {}).get("position")
    return place


def test_room_goes_to_the_highest_priority_then_the_oldest(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 3)])
    site.serve("now")
    for name, priority in (("older", 0), ("low", -5), ("high", 5), ("younger", 0)):
        site.apply(name, priority=priority)
        site.wait_for("Placed", "False", "WaitingForDevice", name)
    places = {"high": 1, "older": 2, "younger": 3, "low": 4}
    eventually(lambda: {name: position(site, name) for name in places} == places, what=str(places))
    site.client.delete(site.path("now"))
    order = list(places)
    for name in order:
        site.wait_for("Available", "True", "Serving", name, 20)
        assert position(site, name) is None
        assert not any(site.pods(other) for other in order[order.index(name) + 1 :]), f"{name} goes first"
        site.client.delete(site.path(name))


def test_a_newcomer_takes_no_room_that_is_for_one_ahead(site: Site) -> None:
    """The first in the queue leaves it without a device: those behind go on."""
    site.operator()
    site.node(devices=[card(0, 5)])
    site.serve("a")
    site.serve("b")
    site.apply("first", priority=9)
    site.apply("second")
    site.wait_for("Placed", "False", "WaitingForDevice", "first")
    eventually(lambda: position(site, "second") == 2)
    site.client.delete(site.path("first"))
    eventually(lambda: position(site, "second") == 1)
    site.client.delete(site.path("a"))
    site.wait_for("Available", "True", "Serving", "second", 20)

"""Somebody edits the record of a placement on a pod: it is put back or the pod is replaced; nothing is booked twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from support.client import JSON, eventually
from support.pretend_agent import card

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.site import Site

    Hold = Callable[[JSON, bool], None]

RECORD = "paddock.dev/placement"
OTHER = "node1-0000-02-00-0"
"""Name of the second card of node1."""


def two_cards(site: Site, **settings: Any) -> None:
    """Add a node with two cards, of which the first has more room."""
    site.operator(**settings)
    site.node(devices=[card(0, 24), card(1, 16)])


def edited(record: str, how: str) -> str | None:
    """Give what somebody makes of a record."""
    if how == "removed":
        return None
    if how == "garbage":
        return "{"
    changes: JSON = {"another GPU": {"gpu": OTHER}, "no GPU": {"gpu": "node9-none"}, "CPU": {"gpu": None}}[how]
    return json.dumps({**json.loads(record), **changes})


def edit(site: Site, pod: JSON, text: str | None) -> None:
    """Have a user with the right to change pods change the record of one."""
    body = {"metadata": {"annotations": {RECORD: text}, "uid": pod["metadata"]["uid"]}}
    site.client.do("PATCH", site.path(pod["metadata"]["name"], "pods"), body)


def record_of(pod: JSON) -> str:
    text: str = pod["metadata"]["annotations"][RECORD]
    return text


@pytest.fixture
def held(site: Site) -> Iterator[Hold]:
    """Have pods stay while they are removed, until this is taken back or the test ends."""
    paths: list[str] = []

    def hold(pod: JSON, on: bool) -> None:
        paths.append(site.path(pod["metadata"]["name"], "pods"))
        site.client.do("PATCH", paths[-1], {"metadata": {"finalizers": ["test.io/wait"] if on else None}})

    yield hold
    for path in paths:
        site.client.call("PATCH", path, {"metadata": {"finalizers": None}})


def told(site: Site) -> list[str]:
    """Give what Events tell of records."""
    return [one["message"] for one in site.events("gemma") if one["reason"] == "RecordChanged"]


EDITS = ("removed", "garbage", "another GPU", "no GPU", "CPU")


@pytest.mark.parametrize("how", EDITS)
def test_a_record_that_is_edited_is_put_back_and_the_server_goes_on(site: Site, how: str) -> None:
    two_cards(site)
    pod = site.serve()
    booked = site.gpu()["reservations"]
    edit(site, pod, edited(record_of(pod), how))

    def put_back() -> bool:
        (now,) = site.pods()
        assert now["metadata"]["uid"] == pod["metadata"]["uid"], "a healthy server was replaced"
        assert now["metadata"]["annotations"].get(RECORD) == record_of(pod)
        return True

    eventually(put_back, what="the record is put back")
    (text,) = eventually(lambda: told(site), what="an Event tells it")
    assert pod["metadata"]["name"] in text
    assert "spec.placement" in text
    site.settle()
    assert site.gpu()["reservations"] == booked
    assert not site.gpu(OTHER).get("reservations")
    assert site.condition("Available")["status"] == "True"


@pytest.mark.parametrize("how", EDITS)
def test_a_record_that_is_edited_while_no_operator_runs_has_its_pod_replaced(site: Site, held: Hold, how: str) -> None:
    two_cards(site)
    pod = site.serve()
    booked = site.gpu()["reservations"]
    site.plane.stop_operators()
    edit(site, pod, edited(record_of(pod), how))
    held(pod, True)
    site.another_operator()
    message = site.wait_for("Available", "False", "RecordChanged")["message"]
    assert f"{RECORD} was changed by hand" in message, message
    assert site.condition("Placed")["reason"] == "RecordChanged"
    site.settle()
    # Its pod is there still, and its process may be: so is what is booked for it, and nothing elsewhere.
    assert site.gpu()["reservations"] == booked
    assert not site.gpu(OTHER).get("reservations")
    held(pod, False)
    site.wait_for("Available", "True", "Serving")
    (now,) = site.pods()
    assert now["metadata"]["uid"] != pod["metadata"]["uid"]
    assert json.loads(record_of(now))["gpu"] in site.status()["placements"][0]["devices"][0]["gpu"]
    assert list(site.reservations()) == [now["metadata"]["name"]]
    (text,) = eventually(lambda: told(site), what="an Event tells it")
    assert "is replaced" in text


def test_memory_of_a_pod_without_a_record_is_nobody_elses(site: Site, held: Hold) -> None:
    two_cards(site)
    pod = site.serve(placement={"devices": [{"node": "node1", "index": 0}]}, serving={"contextLength": 1024})
    name = pod["metadata"]["name"]
    site.plane.stop_operators()
    edit(site, pod, "{")
    held(pod, True)
    # Orphans are looked for with each resync, and taken back at once after the start: none of that may find this one.
    site.another_operator(resync_seconds=1)
    site.wait_for("Available", "False", "RecordChanged")
    site.settle(quiet=3.0)
    assert list(site.reservations()) == [name]
    held(pod, False)
    site.wait_for("Available", "True", "Serving")


def test_who_edits_a_record_again_and_again_is_answered_with_pauses(site: Site) -> None:
    two_cards(site)
    pod = site.serve()
    mark = site.plane.audit_mark()
    for _ in range(30):
        edit(site, pod, "{")
    eventually(lambda: record_of(site.pods()[0]) == record_of(pod), what="the record is put back at last")
    patches = [
        one
        for one in site.plane.audit()[mark:]
        if (one["verb"], one["objectRef"]["resource"]) == ("patch", "pods")
        and one["objectRef"].get("subresource") == "status"
    ]
    assert 1 <= len(patches) <= 3, len(patches)
    assert site.pods()[0]["metadata"]["uid"] == pod["metadata"]["uid"]

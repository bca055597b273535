"""Claims where the API server refuses, fails, or does not know of them; without a cluster."""

from __future__ import annotations

from typing import Any, cast

from paddock.controller.claims import Claims
from paddock.controller.cluster import Cluster, ClusterError
from paddock.controller.settings import Settings
from support.builders import RTX_4080, deployment, record, replica

SLICE = {
    "spec": {
        "driver": "gpu.nvidia.com",
        "nodeName": RTX_4080.node,
        "pool": {"name": "node1", "generation": 1},
        "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": RTX_4080.uuid}}}],
    }
}
WAITS = replica(deployment(), ready=False, scheduled=False, record=record(RTX_4080, claim="c"))


class Answers:
    """A connection of which each call gives, or raises, what is laid down for it."""

    def __init__(self, slices: Any, created: Any = None) -> None:
        self.slices, self.created = slices, created
        self.lists = self.posts = 0

    async def list(self, _path: str) -> Any:
        self.lists += 1
        if isinstance(self.slices, Exception):
            raise self.slices
        return self.slices

    async def post(self, _path: str, _body: Any) -> Any:
        self.posts += 1
        if isinstance(self.created, Exception):
            raise self.created


def claims(answers: Answers, changed: list[str] | None = None, *, dra: bool = True) -> Claims:
    return Claims(cast("Cluster", answers), Settings(dra=dra), {}, (changed if changed is not None else []).append)


async def test_nothing_is_read_unless_it_is_switched_on() -> None:
    answers = Answers([SLICE])
    await claims(answers, dra=False).refresh(0)
    assert answers.lists == 0


async def test_what_drivers_offer_is_read_once_in_a_while_and_changes_are_told() -> None:
    answers, changed = Answers([SLICE]), list[str]()
    asked = claims(answers, changed)
    await asked.refresh()
    await asked.refresh()
    assert (answers.lists, changed) == (1, [RTX_4080.node])
    await asked.refresh(0)
    assert (answers.lists, changed) == (2, [RTX_4080.node])
    answers.slices = []
    await asked.refresh(0)
    assert changed == [RTX_4080.node, RTX_4080.node]


async def test_an_api_server_without_the_group_offers_nothing() -> None:
    asked = claims(Answers(ClusterError(404, "NotFound", "no such group")))
    await asked.refresh()
    assert "no driver offers" in str(await asked.ensure(WAITS))


async def test_a_claim_is_made_once() -> None:
    answers = Answers([SLICE])
    asked = claims(answers)
    assert await asked.ensure(WAITS) is None
    assert await asked.ensure(WAITS) is None
    assert answers.posts == 1


async def test_a_claim_that_is_there_is_as_good() -> None:
    answers = Answers([SLICE], ClusterError(409, "AlreadyExists", "there"))
    assert await claims(answers).ensure(WAITS) is None


async def test_a_refusal_is_told_and_tried_again() -> None:
    answers = Answers([SLICE], ClusterError(403, "Forbidden", "exceeded quota"))
    asked = claims(answers)
    assert await asked.ensure(WAITS) == "exceeded quota"
    assert await asked.ensure(WAITS) == "exceeded quota"
    assert answers.posts == 2

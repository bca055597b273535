"""Integrated GPUs and the host share one memory: what one of them has is gone from the other."""

from dataclasses import replace

import pytest

from paddock.api.gpu import DeviceType
from paddock.api.modeldeployment import AllowIntegrated, Policy
from paddock.api.vocabulary import Reason, Verdict
from paddock.core.context import Wish, largest
from paddock.core.fleet import Claim, Fleet, Node
from paddock.core.placement import Placement, Unplaceable, place
from paddock.core.quantity import UNLIMITED
from paddock.core.request import Request
from support.builders import GIB, RTX_4080, device, fleet

BOARD = device("board", type=DeviceType.INTEGRATED, description="NVIDIA GB10", total=14 * GIB, free=None)
ANY = AllowIntegrated.ALWAYS


def board(*claims: Claim, memory: int | None = 16, budget: str | None = None) -> Fleet:
    """Give a machine with 16 GiB, of which its GPU sees 14."""
    node = Node("node1", memory=None if memory is None else memory * GIB, budget=budget)
    return fleet(replace(BOARD, claims=claims), node1=node)


def held(need: int, host: int) -> Claim:
    return Claim("default/a-1-0", "default/a", need * GIB, host_bytes=host * GIB)


def asked(need: int, host: int) -> Request:
    return Request(need=need * GIB, host_need=host * GIB, allow_integrated=ANY)


def test_both_needs_come_out_of_the_machine_s_memory() -> None:
    assert isinstance(place(asked(12, 4), board()), Placement)
    found = place(asked(12, 5), board())
    assert isinstance(found, Unplaceable)
    assert (found.reason, found.nearest and found.nearest.verdict) == (Reason.WAITING_FOR_DEVICE, Verdict.HOST_MEMORY)
    assert "needs 17 GiB of host memory, which the device is in, its node has 16 GiB left for models" in found.message
    assert found.nearest is not None
    shortage = found.nearest.shortage
    assert (shortage.memory, shortage.required_bytes, shortage.available_bytes) == ("Host", 17 * GIB, 16 * GIB)


def test_who_is_there_has_both() -> None:
    there = held(8, 2)
    assert isinstance(place(asked(4, 2), board(there)), Placement)
    found = place(asked(4, 3), board(there))
    assert isinstance(found, Unplaceable)
    assert found.nearest is not None
    assert found.nearest.other == (7 * GIB, 6 * GIB)
    assert isinstance(place(asked(4, 3), board(there).without([there.pod])), Placement)


def test_a_discrete_card_s_server_takes_from_the_integrated_one_and_the_other_way_round() -> None:
    card = replace(RTX_4080, claims=(Claim("default/b-1-0", "default/b", GIB, host_bytes=9 * GIB),))
    where = fleet(BOARD, card, node1=Node("node1", memory=16 * GIB))
    only = replace(asked(8, 0), selector=None, policy=Policy.MOST_MEMORY)
    judged = {one.device.gpu: one for one in place(only, where).judged}
    assert judged["board"].verdict is Verdict.HOST_MEMORY
    assert judged[RTX_4080.gpu].verdict is Verdict.CHOSEN, "nothing limits its host memory"
    limited = replace(fleet(replace(BOARD, claims=(held(8, 1),)), RTX_4080), host_budget="10Gi")
    refused = {one.device.gpu: one for one in place(asked(1, 2), limited).judged}[RTX_4080.gpu]
    assert (refused.verdict, refused.other) == (Verdict.HOST_MEMORY, (2 * GIB, GIB))


@pytest.mark.parametrize(
    ("budget", "memory", "fits"),
    [(None, 16, False), ("Unlimited", 16, False), ("20Gi", 16, False), ("20Gi", None, True), (None, None, True)],
)
def test_a_budget_does_not_make_more_memory_than_there_is(
    budget: str | None, memory: int | None, *, fits: bool
) -> None:
    assert isinstance(place(asked(12, 5), board(memory=memory, budget=budget)), Placement) is fits


def test_a_budget_holds_for_both_together() -> None:
    assert isinstance(place(asked(6, 2), board(budget="8Gi")), Placement)
    assert isinstance(place(asked(6, 3), board(budget="8Gi")), Unplaceable)


def test_where_no_figure_is_held_against_a_model_the_owner_answers() -> None:
    free = replace(BOARD, budget=UNLIMITED)
    assert isinstance(place(asked(30, 30), fleet(free, node1=Node("node1", memory=16 * GIB))), Placement)


def test_a_context_grows_within_both() -> None:
    def ask(tokens: int) -> Request:
        return replace(asked(8, 4), need=8 * GIB + tokens // 1024 * GIB)

    assert largest(Wish(1024, 16_384), ask, BOARD, ("default/a",), board()) < 5 * 1024
    assert largest(Wish(1024, 16_384), ask, BOARD, ("default/a",), board(memory=None)) < 7 * 1024

"""What would help is true: asked again with the change, there is a device."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paddock.api.modeldeployment import AllowIntegrated, DeviceRef
from paddock.api.selector import DeviceSelector
from paddock.core.fleet import Fleet
from paddock.core.placement import Placement, Unplaceable, place
from paddock.core.request import Request
from paddock.core.rules import Rule
from paddock.core.whatif import what_ifs
from support.builders import GIB, GTX_1060, INTEL, RTX_4080, claim, device, fleet


def told(request: Request, where: Fleet) -> list[tuple[str, str]]:
    found = place(request, where)
    assert isinstance(found, Unplaceable)
    return [(one.change, one.gpu) for one in what_ifs(request, where, found)]


def test_each_wish_that_stands_in_the_way_is_told() -> None:
    where = fleet(GTX_1060, RTX_4080)
    small = DeviceSelector.model_validate({"maxMemory": "8Gi"})
    only = DeviceRef.model_validate({"uuid": "GPU-1060"})
    assert told(Request(need=8 * GIB, selector=small), where) == [("without placement.selector", RTX_4080.gpu)]
    assert told(Request(need=8 * GIB, devices=(only,)), where) == [("without placement.devices", RTX_4080.gpu)]
    assert told(Request(need=GIB, node_selector={"zone": "a"}), where) == [
        ("without placement.nodeSelector", RTX_4080.gpu)
    ]
    assert told(Request(need=8 * GIB, rules=(Rule("team", gpus=small),)), where) == [
        ("without its PlacementPolicies", RTX_4080.gpu)
    ]
    never = Request(need=14 * GIB, allow_integrated=AllowIntegrated.NEVER)
    assert told(never, fleet(GTX_1060, INTEL)) == [("with allowIntegrated Always", INTEL.gpu)]
    assert told(Request(need=14 * GIB), where) == []


def test_deployments_whose_end_would_do_are_told_least_first_and_never_its_own() -> None:
    mine = claim("default/gemma-a-0", 4 * GIB)
    claims = (claim("default/a-0", 3 * GIB), claim("default/b-0", 2 * GIB), claim("default/c-0", GIB), mine)
    where = fleet(device("gpu", free=None, claims=claims))
    request = Request(need=4 * GIB, siblings=frozenset({mine.pod}))
    assert told(request, where) == [("without default/b (2 GiB)", "gpu"), ("without default/a (3 GiB)", "gpu")]


@given(
    st.lists(st.lists(st.integers(1, 6), max_size=3), min_size=1, max_size=4),
    st.integers(1, 14),
    st.booleans(),
)
def test_what_is_told_is_true(used: list[list[int]], need: int, narrow: bool) -> None:
    cards: list[Any] = [
        device(
            f"gpu-{number}",
            free=None,
            pci_id=None,
            total=(8 + 4 * number) * GIB,
            claims=tuple(claim(f"default/m{number}x{n}-0", size * GIB) for n, size in enumerate(sizes)),
        )
        for number, sizes in enumerate(used)
    ]
    where = fleet(*cards)
    selector = DeviceSelector.model_validate({"maxMemory": "8Gi"}) if narrow else None
    request = Request(need=need * GIB, selector=selector)
    found = place(request, where)
    if isinstance(found, Unplaceable):
        for one in what_ifs(request, where, found):
            then = place(one.request, one.fleet)
            assert isinstance(then, Placement)
            assert then.device is not None
            assert then.device.gpu == one.gpu
            assert replace(one.request, selector=selector) == request

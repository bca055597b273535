"""Preferences on the real cluster: the one that weighs most first, then the next, then whatever fits; and no more."""

import pytest

from e2e import kit
from support.cluster import eventually, kubectl

pytestmark = pytest.mark.e2e
SMALL = {"names": ["*GTX 1060*"]}
LIKED = [{"weight": 50, "selector": SMALL}, {"weight": 10, "selector": {"names": ["*RTX 4080*"]}}]
WISH = {"policy": "MostMemory", "preferences": LIKED}
"""Without a preference this policy takes the card of 96 GB."""


def placed(namespace: str, name: str) -> tuple[str, str]:
    """Wait for its place; give the GPU, and why."""
    told = kit.wait_condition(namespace, name, "Placed", "True")["message"]
    return str(kit.device_of(kit.mdep(namespace, name))["gpu"]), told


def test_what_is_preferred_goes_first_and_what_does_not_fit_falls_back(free_cards: str) -> None:
    """Of these one fits the GTX 1060, and two fit the RTX 4080."""
    namespace = free_cards
    expected = [kit.GPU_1060, kit.GPU_4080, kit.GPU_4080, kit.GPU_6000]
    for number, gpu in enumerate(expected):
        kit.put(namespace, kit.deployment(f"m{number}", serving=kit.MOST, placement=WISH))
        where, why = placed(namespace, f"m{number}")
        assert where == gpu, why
        if number < 2:
            assert f"preferred most (weight {LIKED[number]['weight']})" in why
    kit.wait_available(namespace, *(f"m{number}" for number in range(4)))
    kit.nothing_double_booked()

    kubectl("delete", "mdep", "m0", "-n", namespace, "--wait=false")
    eventually("the preferred card is free again", lambda: not kit.reservations(namespace, kit.GPU_1060), 60)
    # Weights add up: 20 and 20 are more than 30.
    both = [
        {"weight": 30, "selector": {"names": ["*RTX 4080*", "*RTX PRO 6000*"]}},
        {"weight": 20, "selector": SMALL},
        {"weight": 20, "selector": {"maxMemory": "7Gi"}},
    ]
    kit.put(namespace, kit.deployment("sum", serving=kit.THIRD, placement={**WISH, "preferences": both}))
    where, why = placed(namespace, "sum")
    assert where == kit.GPU_1060, why
    assert "preferred most (weight 40)" in why
    for number, gpu in enumerate(expected[1:], start=1):
        found = kit.mdep(namespace, f"m{number}")
        assert kit.device_of(found)["gpu"] == gpu, "a card that became free moves nobody who prefers it"
        assert "lastDisruption" not in found["status"]
    kit.nothing_double_booked()

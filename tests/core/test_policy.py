"""Which of several devices that fit each policy takes, and that nothing but the values decides."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.gpu import DeviceType
from paddock.api.modeldeployment import Policy, ReplicaSpread
from paddock.api.selector import Preference
from paddock.core.fleet import Device, Fleet, Node
from paddock.core.placement import Placement, place
from paddock.core.policy import POLICIES, tokens_per_second
from paddock.core.request import Request
from support.builders import GIB, GTX_1060, INTEL, RTX_4080, RTX_6000, claim, device, fleet

GB = 10**9
GTX, RTX, PRO = (
    replace(GTX_1060, bandwidth=192 * GB),
    replace(RTX_4080, bandwidth=432 * GB),
    replace(RTX_6000, bandwidth=1792 * GB),
)


def card(gpu: str, gib: int, speed: int | None = None, used: int = 0, **fields: Any) -> Device:
    """Give a card by size in GiB, bandwidth in GB/s, and GiB that somebody else has there."""
    claims = (claim(f"default/{gpu}-x", used * GIB),) if used else ()
    given = {"total": gib * GIB, "free": None, "claims": claims, "pci_id": None, **fields}
    return device(gpu, bandwidth=speed * GB if speed is not None else None, **given)


def taken(where: Fleet, policy: Policy = Policy.AUTO, need: int = 1, **fields: Any) -> tuple[str, str]:
    """Give the chosen GPU, and why."""
    found = place(Request(need=need * GIB, policy=policy, **fields), where)
    assert isinstance(found, Placement), found
    assert found.device is not None
    return found.device.gpu, found.reason.partition(": ")[2].partition(";")[0]


def test_there_is_one_rule_for_each_policy() -> None:
    assert set(POLICIES) == set(Policy)
    assert len(set(POLICIES.values())) == len(Policy)


# Auto


def test_auto_gives_the_laptop_its_rtx_4080() -> None:
    assert taken(fleet(GTX, RTX, INTEL)) == (RTX.gpu, "fastest of 2 devices that fit (policy Auto)")
    assert taken(fleet(GTX_1060, RTX_4080, INTEL)) == (
        RTX.gpu,
        "most memory of 2 devices that fit (policy Auto)",
    )


def test_auto_leaves_the_large_card_empty_while_an_equally_fast_smaller_one_is_free() -> None:
    where = fleet(card("large", 96, 1000), card("small", 24, 800), card("slow", 12, 740))
    assert taken(where) == ("small", "smallest of the 2 fastest of 3 devices that fit (policy Auto)")
    full = fleet(card("large", 96, 1000), card("small", 24, 800, used=24))
    assert taken(full) == ("large", "the only device that fits")


def test_auto_calls_fast_what_is_within_a_quarter_of_the_fastest_that_fits() -> None:
    assert taken(fleet(card("large", 96, 1000), card("small", 24, 750)))[0] == "small"
    assert taken(fleet(card("large", 96, 1000), card("small", 24, 749)))[0] == "large"
    # The fastest of all is too small: it is no measure.
    assert taken(fleet(card("tiny", 8, 4000), card("large", 96, 1000), card("small", 24, 750)), need=9)[0] == "small"


def test_auto_takes_the_tightest_of_equals_and_then_the_first_by_name() -> None:
    where = fleet(card("a", 24, 900), card("b", 24, 900, used=10), card("c", 24, 900, used=10))
    assert (
        taken(where)
        == (
            "b",
            "smallest of the 3 fastest of 3 devices that fit (policy Auto), least room left over among equals",
        )
        or taken(where)[0] == "b"
    )


def test_auto_without_any_known_speed_takes_the_largest_and_unknown_ones_last() -> None:
    assert taken(fleet(card("small", 8), card("large", 24)))[0] == "large"
    assert taken(fleet(card("unknown", 96), card("slow", 8, 100)))[0] == "slow"
    assert taken(fleet(card("unknown", 96), card("slow", 8, 100)), need=20)[0] == "unknown"


def test_auto_with_a_wanted_speed_takes_the_smallest_that_reaches_it() -> None:
    where = fleet(card("large", 96, 1800), card("middle", 24, 900), card("small", 12, 100))
    wish: dict[str, Any] = {"token_bytes": 6 * GB, "min_tokens_per_second": 50}
    assert taken(where, **wish) == ("middle", "smallest that reaches 50 tokens/s of 3 devices that fit (policy Auto)")
    assert taken(where, token_bytes=6 * GB)[0] == "large"


# The others


def test_most_memory_takes_the_largest_and_integrated_ones_last() -> None:
    where = fleet(GTX, RTX, replace(INTEL, total=128 * GIB, free=128 * GIB), PRO)
    assert taken(where, Policy.MOST_MEMORY)[0] == PRO.gpu


def test_best_fit_takes_the_tightest_then_the_faster_one() -> None:
    where = fleet(card("a", 24, 900), card("b", 48, 900, used=30), card("c", 48, 950, used=30))
    assert taken(where, Policy.BEST_FIT) == (
        "c",
        "least room left over of 3 devices that fit (policy BestFit), the faster one among equals",
    )


def test_fastest_takes_the_tightest_of_those_within_five_per_cent() -> None:
    where = fleet(card("a", 96, 1000), card("b", 24, 951), card("c", 12, 949))
    assert taken(where, Policy.FASTEST)[0] == "b"
    assert taken(fleet(card("a", 8), card("b", 24)), Policy.FASTEST)[0] == "b"


def test_just_fast_enough_falls_back_to_the_fastest() -> None:
    where = fleet(card("large", 96, 1800), card("small", 12, 100), card("unknown", 8))
    wish: dict[str, Any] = {"policy": Policy.JUST_FAST_ENOUGH, "token_bytes": 6 * GB}
    assert taken(where, min_tokens_per_second=10, **wish)[0] == "small"
    assert taken(where, min_tokens_per_second=11, **wish)[0] == "large"
    assert taken(where, min_tokens_per_second=900, **wish) == (
        "large",
        "fastest, though none is known to reach 900 tokens/s, of 3 devices that fit (policy JustFastEnough)",
    )
    assert taken(fleet(card("a", 8), card("b", 24)), min_tokens_per_second=1, **wish)[0] == "b"


def test_spread_takes_the_largest_share_left_then_the_fewest_servers() -> None:
    where = fleet(card("a", 96, used=60), card("b", 24, used=6), card("c", 8))
    assert taken(where, Policy.SPREAD)[0] == "c"
    assert taken(fleet(card("a", 96, used=60), card("b", 24, used=6)), Policy.SPREAD)[0] == "b"
    two = card("a", 24, claims=(claim("default/x-0"), claim("default/y-0")))
    assert taken(fleet(two, card("b", 24, used=2)), Policy.SPREAD)[0] == "b"


def test_spread_does_not_fill_equal_cards_from_the_first_one() -> None:
    where = fleet(*(card(f"gpu-{number}", 24) for number in range(8)))
    first = {taken(where, Policy.SPREAD, seed=f"uid {number}")[0] for number in range(16)}
    assert len(first) > 3
    assert taken(where, Policy.SPREAD, seed="uid 1") == taken(where, Policy.SPREAD, seed="uid 1")


def test_tokens_per_second_come_from_bandwidth_and_what_a_token_reads() -> None:
    assert tokens_per_second(RTX, 4 * GB) == 64
    assert tokens_per_second(RTX_4080, 4 * GB) is None
    assert tokens_per_second(RTX, 0) is None


# Preferences and spreading


def liked(weight: int, **selector: Any) -> Preference:
    return Preference.model_validate({"weight": weight, "selector": selector})


def test_a_preferred_device_goes_before_the_policy_and_others_are_the_fall_back() -> None:
    wish: dict[str, Any] = {"preferences": (liked(10, names=["*1060*"]), liked(5, names=["*4080*"]))}
    where = fleet(GTX, RTX, PRO)
    assert taken(where, **wish) == (
        GTX.gpu,
        "the one of 3 devices that fit preferred most (weight 10) (policy Auto)",
    )
    assert taken(where, need=8, **wish)[0] == RTX.gpu
    assert taken(where, need=20, **wish) == (PRO.gpu, "the only device that fits")


def test_weights_of_several_preferences_add_up() -> None:
    wish = (liked(10, names=["*1060*"]), liked(6, vendors=["NVIDIA"], minMemory="8Gi"), liked(6, names=["*4080*"]))
    assert taken(fleet(GTX, RTX, PRO), preferences=wish)[0] == RTX.gpu


def test_replicas_keep_apart_before_they_follow_a_preference() -> None:
    mine = "default/gemma-a-0"
    where = fleet(GTX, replace(RTX, claims=(claim(mine),)), PRO)
    wish: dict[str, Any] = {"siblings": frozenset({mine}), "preferences": (liked(100, names=["*4080*"]),)}
    gpu, why = taken(where, **wish)
    assert gpu == PRO.gpu
    assert why == "fastest of 3 devices that fit with the fewest replicas of this deployment (policy Auto)"


ZONES = {
    "n1": Node("n1", labels={"topology.kubernetes.io/zone": "a"}),
    "n2": Node("n2", labels={"topology.kubernetes.io/zone": "a"}),
    "n3": Node("n3", labels={"topology.kubernetes.io/zone": "b"}),
    "n4": Node("n4"),
}


@pytest.mark.parametrize(
    ("spread", "expected"),
    [(ReplicaSpread.DEVICE, "b1"), (ReplicaSpread.NODE, "c2"), (ReplicaSpread.ZONE, "d3")],
)
def test_replicas_are_kept_apart_on_what_is_asked(spread: ReplicaSpread, expected: str) -> None:
    mine = claim("default/gemma-a-0")
    where = fleet(
        card("a1", 24, 900, node="n1", claims=(mine,)),
        card("b1", 24, 900, node="n1", used=3),
        card("c2", 24, 900, node="n2", used=2),
        card("d3", 24, 900, node="n3", used=1),
        **{name: ZONES[name] for name in ("n1", "n2", "n3")},
    )
    assert taken(where, siblings=frozenset({mine.pod}), replica_spread=spread)[0] == expected


def test_a_node_without_a_zone_is_a_zone_of_its_own() -> None:
    mine = claim("default/gemma-a-0")
    where = fleet(
        card("a3", 24, 900, node="n3", claims=(mine,)),
        card("b4", 48, 900, node="n4"),
        card("c5", 96, 900, node="n5", claims=(claim("default/gemma-a-1"),)),
        n3=ZONES["n3"],
    )
    wish: dict[str, Any] = {
        "siblings": frozenset({mine.pod, "default/gemma-a-1"}),
        "replica_spread": ReplicaSpread.ZONE,
    }
    assert taken(where, **wish)[0] == "b4"


# Laws


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    devices = [
        card(
            f"gpu-{number}",
            draw(st.sampled_from([6, 12, 24, 24, 96])),
            draw(st.sampled_from([None, 192, 432, 900, 1000])),
            draw(st.integers(0, 6)),
            node=f"n{draw(st.integers(1, 4))}",
            type=draw(st.sampled_from([DeviceType.DISCRETE, DeviceType.DISCRETE, DeviceType.INTEGRATED])),
        )
        for number in range(draw(st.integers(1, 6)))
    ]
    return fleet(*devices, **ZONES)


REQUESTS = st.builds(
    Request,
    need=st.integers(1, 24).map(lambda size: size * GIB),
    policy=st.sampled_from(Policy),
    min_tokens_per_second=st.sampled_from([None, 5, 60]),
    token_bytes=st.sampled_from([0, 4 * GB]),
    seed=st.sampled_from(["uid 0", "uid 1"]),
    siblings=st.sampled_from([frozenset(), frozenset({"default/gpu-0-x", "default/gpu-1-x"})]),
    replica_spread=st.sampled_from(ReplicaSpread),
    preferences=st.sampled_from([(), (liked(3, minMemory="20Gi"), liked(2, nodeLabels=ZONES["n3"].labels))]),
)


@given(fleets(), REQUESTS, st.randoms(use_true_random=False))
def test_the_same_values_give_the_same_answer_in_any_order(where: Fleet, request: Request, random: Any) -> None:
    mixed = list(where.devices)
    random.shuffle(mixed)
    nodes = dict(sorted(where.nodes.items(), key=lambda _: random.random()))
    one, other = place(request, where), place(request, Fleet(nodes, tuple(mixed)))
    assert one == other


@given(fleets(), REQUESTS)
def test_every_policy_places_what_any_policy_places(where: Fleet, request: Request) -> None:
    """A policy ranks; it never refuses what fits."""
    found = {isinstance(place(replace(request, policy=policy), where), Placement) for policy in Policy}
    assert len(found) == 1

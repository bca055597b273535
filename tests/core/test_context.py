"""The context of a spec that leaves it open: how far it grows, what it leaves room for, what is kept."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.context import ContextChoice
from paddock.api.modeldeployment import Policy, ServingSpec
from paddock.core.context import AUTO_LEAST, UNTRAINED, Wish, choice_of, largest, largest_on_cpu, told, wish_of
from paddock.core.deployment import placement_hash, revision
from paddock.core.fleet import Fleet, Node
from paddock.core.placement import Placement, place
from paddock.core.request import Request
from paddock.core.rules import Rule
from paddock.core.selector import DeviceSelector
from support.builders import claim, deployment, device, fleet, replica

GIB = 1024**3
MOST = 131_072


def ask(tokens: int) -> Request:
    """Give the request of a model of 1 GiB; 16384 tokens take 1 GiB more, and a tenth of that on the host."""
    size = GIB + tokens * GIB // 16_384
    return Request(need=-(-size // (GIB // 4)) * (GIB // 4), host_need=tokens * GIB // 163_840, policy=Policy.BEST_FIT)


def chosen(wish: Wish, *pods: str, within: Fleet) -> int:
    decision = place(ask(wish.least), within)
    assert isinstance(decision, Placement)
    assert decision.device is not None
    return largest(wish, ask, decision.device, pods or ("default/a",), within)


@pytest.mark.parametrize(
    ("asked", "trained", "wish"),
    [
        (5000, 4096, Wish(5120, 5120)),
        ("Auto", MOST, Wish(AUTO_LEAST, MOST)),
        ("Auto", 2048, Wish(2048, 2048)),
        ("Auto", 300, Wish(256, 256)),
        ("Auto", 10, Wish(256, 256)),
        ("Auto", None, Wish(AUTO_LEAST, UNTRAINED)),
        ({"min": 1000, "preferred": 20_000}, MOST, Wish(1024, 20_224)),
        ({"min": 1000, "preferred": 20_000}, 8192, Wish(1024, 8192)),
        ({"min": 9000, "preferred": 20_000}, 8192, Wish(9216, 9216)),
    ],
)
def test_what_is_asked_for(asked: Any, trained: int | None, wish: Wish) -> None:
    assert wish_of(ServingSpec(context_length=asked), trained) == wish


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("auto", "a number of tokens from 1 to 16777216, Auto, or {min, preferred}"),
        (True, "a number of tokens"),
        (1.5, "a number of tokens"),
        ({"min": 5}, "preferred: Field required"),
        ({"min": 0, "preferred": 5}, "min: Input should be greater than or equal to 1"),
        ({"min": 6, "preferred": 5}, "min is 6, more than preferred, which is 5"),
    ],
)
def test_what_is_no_context_is_told_in_words(value: Any, words: str) -> None:
    found = deployment(serving={"contextLength": value})
    assert found.spec is None
    assert words in found.problem
    assert found.problem.startswith("spec.serving.contextLength: ")


def test_it_grows_to_what_the_device_has_left() -> None:
    twelve = fleet(device(total=12 * GIB, free=12 * GIB))
    assert chosen(Wish(4096, 2 * MOST), within=twelve) == 11 * 16_384
    assert chosen(Wish(4096, MOST), within=twelve) == MOST
    taken = fleet(device(total=12 * GIB, free=12 * GIB, claims=(claim("other/b", 8 * GIB),)))
    assert chosen(Wish(4096, MOST), within=taken) == 3 * 16_384
    foreign = fleet(device(total=12 * GIB, free=5 * GIB))
    assert chosen(Wish(4096, MOST), within=foreign) == 4 * 16_384


def test_reserve_and_budget_of_the_device_are_left_alone() -> None:
    one = device(total=12 * GIB, free=12 * GIB)
    assert chosen(Wish(4096, MOST), within=fleet(replace(one, reserve=6 * GIB))) == 5 * 16_384
    assert chosen(Wish(4096, MOST), within=fleet(replace(one, budget=3 * GIB))) == 2 * 16_384


def test_the_other_replicas_find_room_for_the_same_context() -> None:
    pods = [f"default/{name}" for name in "abc"]
    one = fleet(device(total=12 * GIB, free=12 * GIB))
    assert chosen(Wish(4096, MOST), *pods, within=one) == 3 * 16_384
    small = device("node1-small", total=3 * GIB, free=3 * GIB)
    large = device("node1-zlarge", total=48 * GIB, free=48 * GIB, pci_id="0000:02:00.0")
    apart = chosen(Wish(4096, MOST), *pods[:2], within=fleet(small, large))
    assert apart == 2 * 16_384  # one is on the small card by the policy, and both get the same


def test_one_that_finds_no_room_at_all_takes_nothing_from_the_others() -> None:
    pods = [f"default/{number}" for number in range(9)]
    tight = fleet(device(total=3 * GIB, free=3 * GIB))
    assert chosen(Wish(4096, MOST), *pods, within=tight) == 8192


def test_host_memory_bounds_it_too() -> None:
    one = device(total=96 * GIB, free=96 * GIB)
    nodes = {"node1": Node("node1", memory=GIB // 2)}
    found = chosen(Wish(4096, MOST), within=Fleet(nodes, (one,), 0, "Auto"))
    assert found == 81_920
    assert ask(found).host_need <= GIB // 2 < ask(found + 256).host_need


def test_quotas_of_policies_bound_it_over_all_replicas() -> None:
    cards = [
        device(f"node1-{number}", pci_id=f"0000:0{number}:00.0", total=48 * GIB, free=48 * GIB) for number in (1, 2)
    ]
    rule = Rule(name="team", namespaces=("*",), quota=10 * GIB)

    def limited(tokens: int) -> Request:
        return replace(ask(tokens), rules=(rule,))

    within = fleet(*cards)
    first = within.devices[0]
    assert largest(Wish(4096, MOST), limited, first, ("default/a",), within) == MOST
    assert largest(Wish(4096, MOST), limited, first, ("default/a", "default/b"), within) == 4 * 16_384
    budget = replace(rule, quota=None, budgets=((DeviceSelector(), 3 * GIB),))
    assert (
        largest(Wish(4096, MOST), lambda n: replace(ask(n), rules=(budget,)), first, ("default/a",), within) == 32_768
    )


@given(st.integers(2, 64), st.integers(1, 12), st.sampled_from([4096, 8192, 30_208, MOST]), st.integers(0, 40))
def test_what_is_chosen_fits_and_a_step_more_does_not(total: int, replicas: int, most: int, used: int) -> None:
    cards = [
        device(
            f"node1-{number}",
            pci_id=f"0000:0{number}:00.0",
            total=total * GIB,
            free=max(total - used * number, 0) * GIB,
        )
        for number in (1, 2)
    ]
    within = fleet(*cards)
    wish = Wish(4096, most)
    decision = place(ask(wish.least), within)
    if not isinstance(decision, Placement) or decision.device is None:
        return
    pods = [f"default/{number}" for number in range(replicas)]

    def placed(tokens: int) -> int:
        now = within.with_claim(decision.device.gpu, claim(pods[0], ask(tokens).need))  # type: ignore[union-attr]
        count = 1
        for pod in pods[1:]:
            found = place(replace(ask(tokens), siblings=frozenset(pods)), now)
            if not isinstance(found, Placement) or found.device is None:
                break
            now = now.with_claim(found.device.gpu, claim(pod, ask(tokens).need))
            count += 1
        return count

    found = largest(wish, ask, decision.device, pods, within)
    assert wish.least <= found <= wish.most
    assert found % 256 == 0
    assert ask(found).need <= decision.device.available(0)
    assert placed(found) >= placed(wish.least)


@pytest.mark.parametrize(
    ("memory", "tokens"), [(None, 4096), (0, 4096), (5 * GIB, 5120), (6 * GIB - 1, 5888), (2**40, 16_384)]
)
def test_on_the_cpu_it_grows_to_the_memory_that_the_spec_gives(memory: int | None, tokens: int) -> None:
    assert largest_on_cpu(Wish(4096, 16_384), memory, lambda context: context * 2**20) == tokens


def test_the_decision_names_the_context() -> None:
    within = fleet(device(total=12 * GIB, free=12 * GIB))
    decision = place(ask(4096), within)
    assert isinstance(decision, Placement)
    found = told(decision, ask(MOST).need, MOST, within)
    assert found.need == 9 * GIB
    assert found.reason.endswith("; needs 9 GiB of 12 GiB left, with a context of 131072 tokens")
    assert found.reason.count("needs") == 1
    on_cpu = told(replace(decision, device=None, reason="on the CPU: gpuLayers is 0"), 0, 4096, within)
    assert on_cpu.reason == "on the CPU: gpuLayers is 0; context of 4096 tokens"


def test_a_choice_is_kept_for_its_spec_and_taken_from_pods_first() -> None:
    auto = deployment(serving={"contextLength": "Auto"}, replicas=2)
    spec = f"{revision(auto)}-{placement_hash(auto)}"
    assert choice_of(auto, ()) is None
    kept = replace(auto, status={"context": {"length": 8192, "spec": spec}})
    assert choice_of(kept, ()) == ContextChoice(length=8192, spec=spec)
    made = replica(auto, 0)
    assert made.record is not None
    made = replace(made, record=replace(made.record, context=12_288))
    assert choice_of(kept, (made,)) == ContextChoice(length=12_288, spec=spec)
    assert choice_of(kept, (replace(made, record=None),)) == ContextChoice(length=8192, spec=spec)


@pytest.mark.parametrize(
    "status", [{"context": {"length": "x", "spec": None}}, {"context": 5}, {"context": {"length": 8192, "spec": "old"}}]
)
def test_a_choice_for_another_spec_is_none(status: dict[str, Any]) -> None:
    assert choice_of(replace(deployment(serving={"contextLength": "Auto"}), status=status), ()) is None


def test_a_number_is_no_choice() -> None:
    fixed = deployment(serving={"contextLength": 4096})
    spec = f"{revision(fixed)}-{placement_hash(fixed)}"
    assert choice_of(replace(fixed, status={"context": {"length": 8192, "spec": spec}}), ()) is None
    changed = deployment(serving={"contextLength": "Auto"}, placement={"policy": "BestFit"})
    assert placement_hash(changed) == placement_hash(fixed)  # a wish moves nothing, and chooses nothing anew

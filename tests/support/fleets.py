"""Random fleets and requests: what placement looks at, each now and then, with few values, so that much is alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from paddock.api.binding import Binder, DevicePlugin
from paddock.api.gpu import DeviceType
from paddock.api.modeldeployment import AllowIntegrated, DeviceRef, Policy, ReplicaSpread, Toleration
from paddock.api.selector import DeviceSelector, Preference
from paddock.api.vocabulary import Label
from paddock.core.dra import SliceDevice
from paddock.core.fleet import Claim, Counted, Device, Fleet, Holding, Node, Taint
from paddock.core.quantity import UNLIMITED
from paddock.core.request import Request
from paddock.core.rules import Rule
from paddock.core.survey import ZONE
from support.builders import GIB, MIB, device

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

T = TypeVar("T")
STEP = 512 * MIB
NODES = [f"node{number}" for number in range(6)]
PODS = [f"{namespace}/{name}-{number}" for namespace in ("default", "team") for name in "ab" for number in range(4)]
PCI_IDS = ["0000:01:00.0", "0000:02:00.0"]
SELECTORS = [
    DeviceSelector(names=["*one*"]),
    DeviceSelector(min_memory="12Gi"),
    DeviceSelector(min_compute_capability="8.0"),
    DeviceSelector(pci_ids=PCI_IDS[:1]),
    DeviceSelector(node_labels={"pool": "a"}),
    DeviceSelector(gpu_labels={"team": "x"}),
]


PLUGINS = [
    DevicePlugin(resource="gpu.paddock.dev/x", granules=40, hands=hands, registered=registered)
    for hands, registered in (("Cdi", True), ("Environment", True), ("Cdi", False))
]


def mostly(chance: Random, usual: T, others: Sequence[T], share: float = 0.2) -> T:
    """Give the usual, or now and then one of the others."""
    return chance.choice(others) if chance.random() < share else usual


def some(chance: Random, values: Sequence[T], most: int) -> list[T]:
    """Give a few different values."""
    return chance.sample(values, chance.randint(0, min(most, len(values))))


def a_node(chance: Random, name: str) -> Node:
    """Give a node, most often one that takes everything."""
    return Node(
        name,
        ready=mostly(chance, True, [False], 0.1),
        schedulable=mostly(chance, True, [False], 0.1),
        labels={key: chance.choice("ab") for key in some(chance, [ZONE, "pool"], 2)}
        | mostly(chance, {}, [{Label.DEDICATED: "true"}], 0.1),
        taints=mostly(
            chance, (), [(Taint("gpu", "yes", "NoSchedule"),), (Taint("soft", "", "PreferNoSchedule"),)], 0.1
        ),
        memory=chance.choice([None, 6 * GIB, 16 * GIB]),
        budget=mostly(chance, None, ["Auto", "3Gi", "Unlimited"]),
        resources=mostly(chance, {}, [{"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 0, "amd.com/gpu": 2}], 0.1),
    )


def a_claim(chance: Random) -> Claim:
    """Give a claim of one of a few pods."""
    pod = chance.choice(PODS)
    size = chance.randint(0, 10) * STEP
    return Claim(pod, pod.rpartition("-")[0], size, chance.random() < 0.5, chance.randint(0, 2) * GIB)


HOLDINGS = [Holding(pod="held-1"), Holding(pod="held-2"), Holding(free=True), Holding(why="a pod of others has it")]


def a_device(chance: Random, number: int) -> Device:
    """Give one device, much like others."""
    return device(
        # Names of which one begins with another, for the order of names is not that of names with what follows.
        f"gpu-{number}" if number % 3 else f"gpu-{number}-x",
        node=chance.choice(NODES),
        uuid=mostly(chance, f"GPU-{number}", [None], 0.05),
        pci_id=chance.choice(PCI_IDS),
        index=number,
        name=f"CUDA{number % 2}",
        type=mostly(
            chance, DeviceType.DISCRETE, [DeviceType.INTEGRATED, DeviceType.INTEGRATED, DeviceType.REMOTE], 0.15
        ),
        description=chance.choice(["Card one", "Card two"]),
        backend=mostly(chance, "CUDA", ["Vulkan", "ROCm"], 0.1),
        total=mostly(chance, 12 * GIB, [8 * GIB, 24 * GIB, None], 0.5),
        free=mostly(chance, None, [size * STEP for size in range(0, 48, 5)], 0.5),
        bandwidth=chance.choice([None, 200 * 10**9, 400 * 10**9, 410 * 10**9]),
        compute_capability=chance.choice([None, "7.5", "8.9"]),
        ready=mostly(chance, True, [False], 0.05),
        why_not=f"lost {number}",
        ambiguous=mostly(chance, False, [True], 0.05),
        budget=mostly(chance, None, [6 * GIB, UNLIMITED], 0.1),
        reserve=mostly(chance, None, [GIB], 0.1),
        foreign=mostly(chance, 0, [2 * GIB], 0.1),
        labels=mostly(chance, {}, [{"team": "x"}, {"serial": str(number)}]),
        plugin=mostly(chance, None, PLUGINS, 0.2),
        binder=mostly(chance, None, [Binder.RUNTIME_CLASS, Binder.DRA], 0.05),
        more=mostly(chance, 0, [300 * MIB, -200 * MIB], 0.1),
        offer=mostly(chance, None, [SliceDevice("gpu.nvidia.com", "pool", "gpu-0")], 0.1),
        lent=mostly(chance, None, ["nvidia.com/gpu"], 0.1),
        holding=mostly(chance, None, HOLDINGS, 0.1),
        counted=mostly(
            chance, None, [Counted("gpu.paddock.dev/x", shown=True), Counted("gpu.paddock.dev/x", shown=False)], 0.1
        ),
        claims=tuple(a_claim(chance) for _ in range(chance.randint(0, 3))),
    )


def a_fleet(chance: Random, most: int = 24) -> Fleet:
    """Give a fleet; now and then a node is missing."""
    nodes = {name: a_node(chance, name) for name in mostly(chance, NODES, [NODES[:3]], 0.1)}
    found = [a_device(chance, number) for number in range(chance.randint(0, most))]
    if chance.random() < 0.3:
        # Of one kind, and nobody knows how fast: what is left decides alone.
        found = [replace(one, bandwidth=None, compute_capability=None, total=12 * GIB) for one in found]
    if chance.random() < 0.3:
        # With as much left on several of them.
        small = [tuple(replace(each, bytes=min(each.bytes, STEP)) for each in one.claims) for one in found]
        found = [replace(one, free=None, claims=claims) for one, claims in zip(found, small, strict=True)]
    return Fleet(
        nodes,
        tuple(sorted(found, key=lambda one: one.gpu)),
        mostly(chance, 0, [STEP]),
        mostly(chance, "Unlimited", ["Auto", "3Gi"], 0.4),
    )


def a_rule(chance: Random, name: str) -> Rule:
    """Give what a PlacementPolicy says."""
    budgets = [(one, chance.randint(1, 8) * GIB) for one in some(chance, [DeviceSelector(), *SELECTORS], 2)]
    return Rule(
        name,
        namespaces=chance.choice([(), ("team",), ("default",)]),
        gpus=mostly(chance, None, SELECTORS),
        quota=mostly(chance, None, [size * GIB for size in (6, 20, 50)], 0.4),
        budgets=tuple(budgets),
    )


def a_request(chance: Random) -> Request:
    """Give a request; what it asks for beside memory is seldom all at once."""
    references = [DeviceRef(uuid=f"gpu-{number}") for number in range(0, 12, 3)]
    references += [DeviceRef(node=NODES[0], pci_id=PCI_IDS[0]), DeviceRef(node=NODES[1], name="CUDA1")]
    references += [DeviceRef(node=NODES[0], index=3), DeviceRef(uuid="GPU-none")]
    wishes: dict[str, Any] = {
        "devices": tuple(some(chance, references, 3)),
        "selector": chance.choice(SELECTORS),
        "preferences": tuple(
            Preference(weight=chance.randint(1, 3), selector=one) for one in some(chance, SELECTORS, 2)
        ),
        "rules": tuple(a_rule(chance, name) for name in some(chance, ["one", "two"], 2)),
        "node_selector": {"pool": "a"},
        "tolerations": (Toleration(key="gpu", operator="Exists"),),
        "allow_cpu": True,
        "allow_integrated": chance.choice(list(AllowIntegrated)),
        "siblings": frozenset(some(chance, PODS, 5)),
        "file_nodes": frozenset(some(chance, NODES, 6)),
        "volume_nodes": frozenset(some(chance, NODES, 6)),
        "near_nodes": frozenset(some(chance, NODES, 6)),
        "last": chance.choice(["gpu-1", "gpu-2", "gpu-3-x", "gpu-unknown"]),
        "backends": frozenset({"CUDA"}),
        "runtime_classes": {"CUDA": chance.random() < 0.8},
        "needs": chance.choice([{"CUDA": 3 * GIB - 1}, {"CUDA": GIB, "Vulkan": 9 * GIB}]),
        "host_need": chance.choice([STEP, 3 * GIB]),
    }
    chosen = {name: value for name, value in wishes.items() if chance.random() < 0.2}
    return Request(
        need=chance.choice([1, 1, 2, 4, 8, 15, 20, 24, 50]) * STEP,
        policy=chance.choice(list(Policy)),
        min_tokens_per_second=mostly(chance, None, [20, 35, 100], 0.4),
        token_bytes=chance.choice([0, 6 * 10**9]),
        replica_spread=chance.choice(list(ReplicaSpread)),
        seed=chance.choice(["uid 0", "uid 1"]),
        **chosen,
    )

"""Which device a replica gets, and what its owner is told when it gets none."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.binding import Binder
from paddock.api.gpu import DeviceType
from paddock.api.modeldeployment import AllowIntegrated, DeviceRef, PlacementSpec, Policy, Toleration
from paddock.api.selector import DeviceSelector, Vendor
from paddock.api.vocabulary import Reason, Verdict
from paddock.core.filters import allows, names
from paddock.core.fleet import Device, Fleet, Node, Taint
from paddock.core.placement import Placement, Unplaceable, place
from paddock.core.quantity import UNLIMITED
from paddock.core.request import Request
from paddock.core.rules import Rule
from support.builders import GIB, GTX_1060, INTEL, MIB, RTX_4080, RTX_6000, claim, device, fleet, laptop

SMALL = Request(need=GIB)


def ref(**fields: Any) -> DeviceRef:
    return DeviceRef.model_validate(fields)


def chosen(request: Request, where: Fleet) -> str | None:
    found = place(request, where)
    assert isinstance(found, Placement), found
    return found.device.gpu if found.device else None


def refused(request: Request, where: Fleet) -> Unplaceable:
    found = place(request, where)
    assert isinstance(found, Unplaceable), found
    return found


def verdict_of(request: Request, where: Fleet, gpu: str) -> tuple[Verdict, str]:
    found = next(one for one in place(request, where).judged if one.device.gpu == gpu)
    return found.verdict, found.detail


# The rule


def test_the_laptop_serves_from_the_rtx_4080() -> None:
    found = place(SMALL, laptop())
    assert isinstance(found, Placement)
    assert found.device == RTX_4080
    assert found.node == "node1"
    assert found.reason == (
        "NVIDIA GeForce RTX 4080 Laptop GPU (0000:02:00.0) on node1: most memory of 2 devices that fit (policy Auto); "
        "needs 1 GiB of 11.75 GiB left"
    )
    assert {one.device.gpu: one.verdict for one in found.judged} == {
        GTX_1060.gpu: Verdict.FITS,
        RTX_4080.gpu: Verdict.CHOSEN,
        INTEL.gpu: Verdict.TYPE_NOT_ALLOWED,
    }


def test_an_integrated_gpu_never_outranks_a_discrete_one_however_large() -> None:
    assert chosen(SMALL, fleet(GTX_1060, INTEL)) == GTX_1060.gpu


def test_an_integrated_gpu_serves_what_no_discrete_one_can_hold() -> None:
    assert chosen(Request(need=14 * GIB), laptop()) == INTEL.gpu
    assert chosen(SMALL, fleet(INTEL)) == INTEL.gpu


def test_an_integrated_gpu_serves_while_the_discrete_ones_are_full() -> None:
    full = [replace(one, claims=(claim(size=one.total or 0),)) for one in (GTX_1060, RTX_4080)]
    assert chosen(SMALL, fleet(*full, INTEL)) == INTEL.gpu


def test_allow_integrated_always_treats_it_alike() -> None:
    request = Request(need=GIB, allow_integrated=AllowIntegrated.ALWAYS)
    assert chosen(request, laptop()) == INTEL.gpu


def test_allow_integrated_never_waits_instead() -> None:
    request = Request(need=14 * GIB, allow_integrated=AllowIntegrated.NEVER)
    found = refused(request, laptop())
    assert found.reason is Reason.INSUFFICIENT_MEMORY
    assert verdict_of(request, laptop(), INTEL.gpu) == (Verdict.TYPE_NOT_ALLOWED, "allowIntegrated is Never")


def test_among_equals_the_emptier_one_is_taken_then_the_first_by_name() -> None:
    first, second = device("a"), device("b", pci_id="0000:02:00.0")
    assert chosen(SMALL, fleet(first, second)) == "a"
    held = replace(first, claims=(claim(),))
    assert chosen(SMALL, fleet(held, second)) == "b"
    found = place(SMALL, fleet(held, second))
    assert isinstance(found, Placement)
    assert "most room left among equals" in found.reason


def test_replicas_of_one_deployment_go_to_distinct_devices() -> None:
    large = replace(RTX_6000, claims=(claim("default/gemma-a-0"),))
    request = Request(need=GIB, siblings=frozenset({"default/gemma-a-0"}))
    where = fleet(large, RTX_4080)
    assert chosen(request, where) == RTX_4080.gpu
    found = place(request, where)
    assert isinstance(found, Placement)
    assert "the fewest replicas of this deployment" in found.reason
    assert chosen(SMALL, where) == RTX_6000.gpu


def test_replicas_share_a_device_rather_than_wait() -> None:
    large = replace(RTX_6000, claims=(claim("default/gemma-a-0"),))
    assert chosen(Request(need=GIB, siblings=frozenset({"default/gemma-a-0"})), fleet(large)) == RTX_6000.gpu


# Properties

SIZES = st.integers(1, 16).map(lambda steps: steps * GIB)
FREE = st.none() | st.integers(0, 16 * 1024).map(lambda size: size * MIB)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    devices = []
    for number in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from([DeviceType.DISCRETE, DeviceType.DISCRETE, DeviceType.INTEGRATED]))
        claims = draw(st.lists(st.tuples(st.sampled_from("abc"), SIZES, st.booleans()), max_size=2))
        devices.append(
            device(
                f"gpu-{number}",
                node=draw(st.sampled_from(["node1", "node2"])),
                uuid=f"GPU-{number}",
                index=number,
                name=f"CUDA{number}",
                type=kind,
                total=draw(SIZES),
                free=draw(FREE),
                ready=draw(st.sampled_from([True, True, True, False])),
                claims=tuple(
                    claim(f"default/{name}-{number}-{i}", size, resident=there)
                    for i, (name, size, there) in enumerate(claims)
                ),
            )
        )
    return fleet(*devices, reserve=draw(st.sampled_from([0, 512 * MIB])))


REQUESTS = st.builds(
    Request,
    need=SIZES,
    devices=st.lists(
        st.sampled_from(
            [ref(uuid="GPU-0"), ref(uuid="gpu-1"), ref(node="node1", index=2), ref(node="node2", name="CUDA3")]
        ),
        max_size=3,
    ).map(tuple),
    allow_integrated=st.sampled_from(list(AllowIntegrated)),
    allow_cpu=st.booleans(),
    siblings=st.frozensets(st.sampled_from([f"default/{name}-{i}-0" for name in "abc" for i in range(6)]), max_size=4),
)


@given(fleets(), REQUESTS, st.randoms(use_true_random=False))
def test_the_answer_does_not_depend_on_the_order_of_devices(where: Fleet, request: Request, random: Any) -> None:
    mixed = list(where.devices)
    random.shuffle(mixed)
    one, other = place(request, where), place(request, replace(where, devices=tuple(mixed)))
    by_name = sorted(one.judged, key=lambda judged: judged.device.gpu)
    assert by_name == sorted(other.judged, key=lambda judged: judged.device.gpu)
    assert one == other


@given(fleets(), REQUESTS)
def test_no_placement_overbooks_or_goes_where_it_must_not(where: Fleet, request: Request) -> None:
    found = place(request, where)
    assert len(found.judged) == len(where.devices)
    assert 0 < len(found.reason if isinstance(found, Placement) else found.message) < 700
    if not isinstance(found, Placement):
        return
    if found.device is None:
        assert request.allow_cpu
        assert not request.devices
        return
    one = found.device
    assert one.ready
    assert one.reserved + request.need <= (one.total or 0) - where.reserve
    assert one.free is None or request.need <= one.free - where.reserve
    assert not request.devices or any(names(each, one) for each in request.devices)
    if request.allow_integrated is AllowIntegrated.AUTO and not request.devices and one.type is DeviceType.INTEGRATED:
        discrete = [judged for judged in found.judged if judged.device.type is DeviceType.DISCRETE]
        assert all(judged.verdict is not Verdict.FITS for judged in discrete)
    assert [judged.device for judged in found.judged if judged.verdict is Verdict.CHOSEN] == [one]


def test_one_byte_decides_whether_a_model_fits() -> None:
    where = fleet(device("gpu", total=4 * GIB, free=None, claims=(claim(size=GIB),)))
    assert chosen(Request(need=3 * GIB), where) == "gpu"
    assert refused(Request(need=3 * GIB + 1), where).reason is Reason.WAITING_FOR_DEVICE
    assert refused(Request(need=4 * GIB), where).reason is Reason.WAITING_FOR_DEVICE
    assert refused(Request(need=4 * GIB + 1), where).reason is Reason.INSUFFICIENT_MEMORY


# Named devices


@pytest.mark.parametrize(
    "reference",
    [
        {"uuid": "GPU-1060"},
        {"uuid": "gpu-1060"},
        {"node": "node1", "pciId": "0000:01:00.0"},
        {"node": "node1", "pciId": "00000000:01:00.0"},
        {"node": "node1", "index": 0},
        {"node": "node1", "name": "CUDA0"},
    ],
)
def test_a_named_device_is_taken_verbatim(reference: dict[str, Any]) -> None:
    request = Request(need=GIB, devices=(ref(**reference),))
    found = place(request, fleet(GTX_1060, RTX_4080, INTEL, RTX_6000))
    assert isinstance(found, Placement)
    assert found.device == GTX_1060
    assert "named in placement.devices; needs 1 GiB of 6 GiB left" in found.reason


def test_a_named_integrated_gpu_is_taken_although_discrete_ones_fit() -> None:
    assert chosen(Request(need=GIB, devices=(ref(node="node1", name="Vulkan2"),)), laptop()) == INTEL.gpu


@pytest.mark.parametrize("domain", ["00010000", "10000"])
def test_a_pci_domain_beyond_four_digits_is_no_other_card(domain: str) -> None:
    far = device("far", pci_id="10000:01:00.0")
    request = Request(need=GIB, devices=(ref(node="node1", pciId=f"{domain}:01:00.0"),))
    assert chosen(request, fleet(far, GTX_1060)) == "far"
    assert refused(request, fleet(GTX_1060)).reason is Reason.DEVICE_NOT_FOUND


def test_alternatives_are_tried_in_their_order() -> None:
    wanted = (ref(uuid="GPU-1060"), ref(uuid="GPU-6000"))
    where = fleet(GTX_1060, RTX_4080, RTX_6000)
    assert chosen(Request(need=GIB, devices=wanted), where) == GTX_1060.gpu
    found = place(Request(need=8 * GIB, devices=wanted), where)
    assert isinstance(found, Placement)
    assert found.device == RTX_6000
    assert "alternative 2 of 2" in found.reason


def test_a_full_named_device_is_waited_for_and_no_other_is_taken() -> None:
    held = replace(GTX_1060, claims=(claim("default/gemma-a-0", 4 * GIB),), free=5 * GIB)
    request = Request(need=3 * GIB, devices=(ref(uuid="GPU-1060"),), allow_cpu=True)
    found = refused(request, fleet(held, RTX_4080, RTX_6000))
    assert found.reason is Reason.WAITING_FOR_DEVICE
    assert found.message == (
        "0 of 1 named devices fit: 1 NoRoom. Nearest is NVIDIA GeForce GTX 1060 (0000:01:00.0) on node1: needs 3 GiB, "
        "has 1 GiB left of 6 GiB (4 GiB for default/gemma, 1 GiB used by others than Paddock), 2 GiB short"
    )


def test_an_unknown_device_is_refused_and_not_moved() -> None:
    request = Request(need=GIB, devices=(ref(uuid="GPU-gone"), ref(node="node9", index=0)), allow_cpu=True)
    found = refused(request, laptop())
    assert found.reason is Reason.DEVICE_NOT_FOUND
    assert found.message == (
        "placement.devices names uuid GPU-gone or index 0 on node9, but none of the 3 known GPUs is that; "
        "compare with `kubectl get gpus -o wide`"
    )


def test_troubles_of_devices_that_are_not_named_are_not_told() -> None:
    request = Request(need=GIB, devices=(ref(uuid="GPU-1060"),), file_nodes=frozenset({"node3"}))
    found = refused(request, fleet(GTX_1060, RTX_6000, node2=Node("node2", ready=False)))
    assert found.reason is Reason.MODEL_NOT_FOUND
    assert found.message == "0 of 1 named devices fit: 1 ModelMissing. The model file is not on node1"


# Verdicts

CASES: dict[Verdict, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    # verdict: fields of the device, of the request, of the node; the detail
    Verdict.NOT_READY: ({"ready": False, "why_not": "agent silent for 40 s"}, {}, {}, "agent silent for 40 s"),
    Verdict.NODE_NOT_READY: ({}, {}, {"ready": False}, "the node is not Ready"),
    Verdict.NODE_UNSCHEDULABLE: ({}, {}, {"schedulable": False}, "the node is cordoned"),
    Verdict.NODE_NOT_SELECTED: (
        {},
        {"node_selector": {"zone": "b", "disk": "fast"}},
        {"labels": {"zone": "a"}},
        "the node lacks disk=fast, zone=b",
    ),
    Verdict.NODE_TAINTED: (
        {},
        {"tolerations": (Toleration(key="other", operator="Exists"),)},
        {"taints": (Taint("gpu", "yes", "NoSchedule"),)},
        "taint gpu=yes:NoSchedule is not tolerated",
    ),
    Verdict.VENDOR_PLUGIN_PRESENT: (
        {},
        {},
        {"resources": {"nvidia.com/gpu": 1}},
        "the node advertises nvidia.com/gpu and is not declared dedicated",
    ),
    Verdict.BINDER_MISSING: (
        {"backend": "ROCm", "binder": Binder.RUNTIME_CLASS},
        {},
        {},
        "the GPU's spec.binder is RuntimeClass, which its node does not have",
    ),
    Verdict.BACKEND_MISSING: ({}, {"backends": frozenset({"ROCm"})}, {}, "no server image for backend CUDA"),
    Verdict.RUNTIME_CLASS_MISSING: (
        {},
        {"runtime_classes": {"CUDA": False}},
        {},
        "RuntimeClass nvidia does not exist, and a pod gets a CUDA device by one",
    ),
    Verdict.TYPE_NOT_ALLOWED: ({"type": DeviceType.REMOTE}, {}, {}, "an RPC device belongs to another machine"),
    Verdict.NOT_SELECTED: ({}, {"devices": (ref(uuid="GPU-other"),)}, {}, "not named in placement.devices"),
    Verdict.AMBIGUOUS: ({"ambiguous": True}, {}, {}, "another device looks alike and neither has an identifier"),
    Verdict.MODEL_MISSING: ({}, {"file_nodes": frozenset({"node2"})}, {}, "the model file is not on the node"),
    Verdict.VOLUME_ELSEWHERE: (
        {},
        {"volume_nodes": frozenset({"node2"})},
        {},
        "the claim's volume cannot be mounted there",
    ),
    Verdict.MODEL_TOO_BIG: ({}, {"need": 13 * GIB}, {}, "needs 13 GiB, has 11.5 GiB when empty"),
    Verdict.NO_ROOM: (
        {"free": 3 * GIB},
        {"need": 4 * GIB},
        {},
        "needs 4 GiB, has 2.5 GiB left of 11.5 GiB (9 GiB used by others than Paddock)",
    ),
    Verdict.HOST_MEMORY: (
        {"claims": (replace(claim(), host_bytes=3 * GIB),)},
        {"host_need": 2 * GIB},
        {"budget": "4Gi"},
        "needs 2 GiB of host memory, its node has 1 GiB left for models",
    ),
    Verdict.NOT_ALLOWED: (
        {},
        {"rules": (Rule("team", gpus=DeviceSelector(vendors=[Vendor.AMD])),)},
        {},
        "PlacementPolicy team: vendor NVIDIA is not one of AMD",
    ),
    Verdict.OVER_QUOTA: (
        {},
        {"rules": (Rule("team", quota=512 * MIB),)},
        {},
        "needs 1 GiB, PlacementPolicy team has 512 MiB left of 512 MiB that it allows over all GPUs",
    ),
    Verdict.CHOSEN: ({}, {}, {}, "11.5 GiB left of 11.5 GiB"),
}


@pytest.mark.parametrize("verdict", list(CASES))
def test_every_verdict_is_reached_with_a_readable_detail(verdict: Verdict) -> None:
    of_device, of_request, of_node, detail = CASES[verdict]
    where = fleet(device("gpu", **of_device), reserve=512 * MIB, node1=Node("node1", **of_node))
    request = Request(**{"need": GIB, **of_request})
    assert verdict_of(request, where, "gpu") == (verdict, detail)


def test_no_verdict_is_left_without_a_test() -> None:
    assert set(CASES) | {Verdict.FITS} == set(Verdict)


@pytest.mark.parametrize(
    "fields",
    [
        {"uuid": None},
        {"backend": "Vulkan", "raw_index": None},
        {"backend": "ROCm", "uuid": None, "raw_index": None},
        {"backend": "OpenCL"},
    ],
)
def test_a_device_that_no_pod_can_be_given_alone_is_refused(fields: dict[str, Any]) -> None:
    where = fleet(device("gpu", **fields))
    verdict, detail = verdict_of(SMALL, where, "gpu")
    assert verdict is Verdict.NOT_READY
    assert detail == "CUDA0 has no identifier by which a pod could be given it alone"


def test_a_ready_device_of_unknown_memory_is_refused() -> None:
    where = fleet(device("gpu", total=None, free=None, why_not="Listed"))
    assert verdict_of(SMALL, where, "gpu") == (Verdict.NOT_READY, "its memory is unknown")


def test_taints_of_the_nodes_own_state_are_told_by_its_state() -> None:
    cordoned = Node("node1", taints=(Taint("node.kubernetes.io/unschedulable", "", "NoSchedule"),))
    assert chosen(SMALL, fleet(device("gpu"), node1=cordoned)) == "gpu"


def test_a_device_of_a_node_that_is_gone_is_refused() -> None:
    where = Fleet({}, (device("gpu"),))
    assert verdict_of(SMALL, where, "gpu") == (Verdict.NODE_NOT_READY, "the node does not exist")


# Nothing fits


def test_nothing_listed_means_no_agent_also_when_devices_are_named() -> None:
    for request in (SMALL, Request(need=GIB, devices=(ref(uuid="GPU-1"),))):
        found = refused(request, fleet())
        assert found.reason is Reason.NO_NODE_AGENT
        assert found.message == "no node agent has reported a device yet"


def test_a_model_larger_than_every_card_says_by_how_much() -> None:
    found = refused(Request(need=20 * GIB), laptop())
    assert found.reason is Reason.INSUFFICIENT_MEMORY
    assert found.message == (
        "0 of 3 devices fit: 3 ModelTooBig. The largest is Intel UHD Graphics (0000:00:02.0) on node1: "
        "needs 20 GiB, has 16 GiB when empty, 4 GiB too small"
    )


def test_a_card_that_could_serve_later_is_waited_for_even_if_another_never_can() -> None:
    held = replace(
        RTX_4080,
        claims=(claim("default/a-0", 6 * GIB), claim("default/b-0", 4 * GIB)),
    )
    found = refused(Request(need=7 * GIB), fleet(GTX_1060, held))
    assert found.reason is Reason.WAITING_FOR_DEVICE
    assert found.message == (
        "0 of 2 devices fit: 1 ModelTooBig, 1 NoRoom. Nearest is NVIDIA GeForce RTX 4080 Laptop GPU (0000:02:00.0) on "
        "node1: needs 7 GiB, has 1.75 GiB left of 11.99 GiB (6 GiB for default/a, 4 GiB for default/b), 5.25 GiB short"
    )


def test_many_holders_are_summed_up() -> None:
    claims = tuple(claim(f"default/m{number}-0", GIB) for number in range(12))
    assert (
        "1 GiB for default/m0, 1 GiB for default/m1, 1 GiB for default/m10, 9 more"
        in refused(SMALL, fleet(device(claims=claims))).message
    )


def test_a_mixture_of_refusals_names_some_devices_and_counts_the_rest() -> None:
    devices = [device(f"gpu-{number}", ready=False, why_not="agent silent") for number in range(6)]
    found = refused(SMALL, fleet(*devices))
    assert found.reason is Reason.NO_DEVICE
    assert found.message == (
        "0 of 6 devices fit: 6 NotReady. gpu-0: agent silent; gpu-1: agent silent; gpu-2: agent silent; "
        "gpu-3: agent silent; and 2 more"
    )


def test_a_file_on_no_node_with_a_device_is_told_with_the_nodes() -> None:
    found = refused(Request(need=GIB, file_nodes=frozenset()), fleet(GTX_1060, RTX_6000))
    assert found.reason is Reason.MODEL_NOT_FOUND
    assert found.message == "0 of 2 devices fit: 2 ModelMissing. The model file is not on node1, node2"


# The CPU


def test_no_gpu_layers_need_permission() -> None:
    found = refused(Request(need=0, on_cpu=True), laptop())
    assert found.reason is Reason.CPU_NOT_ALLOWED
    assert "placement.allowCPU" in found.message
    permitted = place(Request(need=0, on_cpu=True, allow_cpu=True), laptop())
    assert permitted == Placement(None, 0, "on the CPU: gpuLayers is 0")


def test_the_cpu_serves_what_no_device_can_only_when_allowed() -> None:
    assert chosen(Request(need=GIB, allow_cpu=True), laptop()) == RTX_4080.gpu
    found = place(Request(need=20 * GIB, allow_cpu=True), laptop())
    assert isinstance(found, Placement)
    assert (found.device, found.node, found.need) == (None, None, 0)
    assert found.reason == "on the CPU: placement.allowCPU is true and 0 of 3 devices fit: 3 ModelTooBig"


def test_on_the_cpu_a_file_decides_the_node_and_replicas_go_round() -> None:
    where = fleet(GTX_1060, RTX_6000, node3=Node("node3"), node4=Node("node4", schedulable=False), node5=Node("node5"))
    files = frozenset({"node5", "node3", "node4"})
    nodes = []
    for number in range(3):
        siblings = frozenset(f"default/gemma-{i}" for i in range(number))
        found = place(Request(need=0, on_cpu=True, allow_cpu=True, file_nodes=files, siblings=siblings), where)
        assert isinstance(found, Placement)
        nodes.append(found.node)
    assert nodes == ["node3", "node5", "node3"]


def test_on_the_cpu_a_file_on_no_usable_node_is_told() -> None:
    where = fleet(node1=Node("node1", schedulable=False))
    request = Request(need=0, on_cpu=True, allow_cpu=True)
    assert refused(replace(request, file_nodes=frozenset()), where).reason is Reason.MODEL_NOT_FOUND
    found = refused(replace(request, file_nodes=frozenset({"node1"})), where)
    assert found.message == "no node with the model file can be used: node1: the node is cordoned"


def test_fleet_builder_keeps_devices_apart() -> None:
    every: list[Device] = [GTX_1060, RTX_4080, INTEL, RTX_6000]
    assert len({one.gpu for one in every}) == len({(one.node, one.pci_id) for one in every}) == 4


@pytest.mark.parametrize(
    ("wish", "on", "labels", "allowed"),
    [
        ({}, RTX_4080, {}, True),
        ({"allowIntegrated": "Never"}, RTX_4080, {}, True),
        ({"allowIntegrated": "Never"}, INTEL, {}, False),
        ({"allowIntegrated": "Auto"}, INTEL, {}, True),
        ({"policy": "MostMemory"}, INTEL, {}, True),
        ({"nodeSelector": {"zone": "a"}}, RTX_4080, {"zone": "a"}, True),
        ({"nodeSelector": {"zone": "a"}}, RTX_4080, {"zone": "b"}, False),
        ({"nodeSelector": {"zone": "a"}}, RTX_4080, None, False),
        ({"devices": [{"uuid": RTX_4080.uuid}]}, RTX_4080, {}, True),
        ({"devices": [{"uuid": "GPU-other"}]}, RTX_4080, {}, False),
        ({"devices": [{"uuid": "GPU-other"}], "allowCPU": True}, None, {}, False),
        ({"allowCPU": True}, None, {}, True),
        ({}, None, {}, False),
    ],
)
def test_a_changed_wish_allows_what_runs_or_not(
    wish: dict[str, object], on: Device | None, labels: dict[str, str] | None, allowed: bool
) -> None:
    node = None if labels is None else Node("node1", labels=labels)
    assert allows(PlacementSpec.model_validate(wish), on, node) is allowed


# Budgets


def test_a_refusal_names_the_device_with_what_is_needed_and_what_is_left() -> None:
    limited = replace(RTX_4080, budget=4 * GIB, claims=(claim("default/a-0", 3 * GIB),), free=None)
    found = refused(Request(need=2 * GIB), fleet(limited))
    assert found.message == (
        "0 of 1 devices fit: 1 NoRoom. Nearest is NVIDIA GeForce RTX 4080 Laptop GPU (0000:02:00.0) on node1: "
        "needs 2 GiB, has 1 GiB left of 4 GiB (3 GiB for default/a), 1 GiB short"
    )
    assert found.nearest is not None
    assert found.nearest.shortage.to_dict() == {
        "gpu": RTX_4080.gpu,
        "node": "node1",
        "memory": "Device",
        "requiredBytes": 2 * GIB,
        "availableBytes": GIB,
        "holders": [{"deployment": "default/a", "bytes": 3 * GIB}],
    }
    small = refused(Request(need=5 * GIB), fleet(limited))
    assert small.reason is Reason.INSUFFICIENT_MEMORY
    assert small.nearest is not None
    assert (small.nearest.shortage.required_bytes, small.nearest.shortage.available_bytes) == (5 * GIB, 4 * GIB)
    assert small.nearest.shortage.holders == []


def test_host_memory_that_is_missing_is_told_as_such() -> None:
    held = replace(RTX_4080, claims=(replace(claim(), host_bytes=3 * GIB),))
    where = replace(fleet(held, RTX_6000), host_budget="4Gi")
    request = Request(need=GIB, host_need=2 * GIB)
    assert chosen(request, where) == RTX_6000.gpu
    only = refused(replace(request, node_selector={"kubernetes.io/hostname": "node1"}), where)
    assert only.reason is Reason.NO_DEVICE
    alone = refused(request, replace(fleet(held), host_budget="4Gi"))
    assert alone.reason is Reason.WAITING_FOR_DEVICE
    assert alone.nearest is not None
    shortage = alone.nearest.shortage
    assert (shortage.memory, shortage.required_bytes, shortage.available_bytes) == ("Host", 2 * GIB, GIB)


def test_a_device_without_limit_takes_whatever_its_owner_answers_for() -> None:
    where = fleet(replace(GTX_1060, budget=UNLIMITED, claims=(claim(size=9 * GIB),)))
    found = place(Request(need=20 * GIB), where)
    assert isinstance(found, Placement)
    assert found.reason.endswith("the only device that fits; needs 20 GiB of no limit left")


# Where the file is


def test_among_devices_that_are_alike_one_on_a_node_that_has_the_file_is_taken() -> None:
    where = fleet(device("a-card", node="a"), device("b-card", node="b"), device("c-card", node="c"))
    assert chosen(SMALL, where) == "a-card"
    found = place(replace(SMALL, near_nodes=frozenset({"b", "c"})), where)
    assert isinstance(found, Placement)
    assert found.node == "b"
    assert "one whose node has the model file among equals" in found.reason


def test_a_file_on_the_node_does_not_outweigh_the_policy() -> None:
    where = fleet(device("a-card", node="a", free=8 * GIB, total=8 * GIB), device("b-card", node="b"))
    request = replace(SMALL, near_nodes=frozenset({"b"}), policy=Policy.BEST_FIT)
    assert chosen(request, where) == "a-card"

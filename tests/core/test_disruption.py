"""Who may be disturbed and how often, what that is called, and what a promise counts for."""

from dataclasses import replace

import pytest

from paddock.api.disruption import Disruption, Leaving, Promise
from paddock.api.gpu import GPUStatus, Reservation
from paddock.api.placementpolicy import PlacementPolicySpec
from paddock.api.vocabulary import ConditionType, Reason
from paddock.core.deployment import Deployment
from paddock.core.disruption import Crew, due, last_of, left_of_minute, on_one_device, told
from paddock.core.fleet import device_of
from paddock.core.moves import Limits, Tenant, rearrange
from paddock.core.placement import Placement, place
from paddock.core.plan import Plan
from paddock.core.request import Request
from paddock.core.rules import Rule, rule_of
from paddock.core.status import Finding, Outcome, last_devices, last_disruption, status_of
from support.builders import GIB, claim, deployment, device, fleet, replica

NOW = "2026-01-01T12:00:00Z"
ACCEPTED = Finding("True", Reason.VALID, "fine")
FULL = Finding("False", Reason.WAITING_FOR_DEVICE, "0 of 1 devices fit")
LOW = deployment("low")


def promise(
    *asked: str, of: str = "default/high", since: str = NOW, moves: bool | None = None, size: int = GIB
) -> Promise:
    leaving = [Leaving(pod=f"{one}-0", uid="u", deployment=one, moves=moves) for one in asked]
    return Promise(pod=f"{of}-0", deployment=of, uid="u", bytes=size, since=since, leaving=leaving, message="why")


def rule(**disruption: object) -> Rule:
    spec = {"namespaces": ["team-*"], "disruption": disruption}
    return rule_of("rule", PlacementPolicySpec.model_validate(spec))


@pytest.mark.parametrize(
    ("wanted", "serving", "most", "spare"), [(1, 1, 1, 1), (3, 2, 1, 0), (3, 2, 2, 1), (3, 3, 0, 0), (0, 1, 1, 1)]
)
def test_those_that_are_down_count(wanted: int, serving: int, most: int, spare: int) -> None:
    assert Crew(wanted, serving, most).spare == spare


def test_a_minute_has_room_for_so_many_of_the_namespaces_of_a_rule() -> None:
    recent = [promise("team-a/x", "team-b/y"), promise("other/z")]
    assert left_of_minute([rule(maxPerMinute=3)], recent) == 1
    assert left_of_minute([rule(maxPerMinute=2)], recent) == 0
    assert left_of_minute([rule(maxPerMinute=1)], recent) == 0
    assert left_of_minute([], recent) > 0


def test_an_interval_is_counted_from_the_latest() -> None:
    assert due(60, [10, 50, 70]) == 50
    assert due(60, [60, 90]) == due(0, [0]) == due(60, []) == 0


def test_words_tell_what_is_done_and_what_it_costs() -> None:
    where = fleet(
        device("gpu-0", total=4 * GIB, free=None, claims=(claim("default/low-0", 3 * GIB),), pci_id=None),
    )
    tenant = Tenant("default/low-0", "gpu-0", 3 * GIB, "default/low", evictable=True)
    found = rearrange(Request(need=2 * GIB, priority=5), where, [tenant], Limits(evictions=1))
    assert found is not None
    text = told(found)
    assert "evicts default/low" in text
    assert text.endswith("(before: 1 waiting with 2 GiB of priority 5; after: 1 waiting with 3 GiB of priority 0)")
    assert on_one_device(found)
    assert not on_one_device(replace(found, evictions=(replace(tenant, device="gpu-1"),)))


def test_the_last_disruption_is_the_latest_that_asked_this_very_deployment() -> None:
    of = replace(LOW, created="2026-01-01T11:00:00Z")
    before, later = promise(of.key, since="2026-01-01T10:00:00Z"), promise(of.key, moves=True)
    assert last_of(of, [("gpu-0", before), ("gpu-1", promise("default/other"))], None) is None
    last = last_of(of, [("gpu-0", later), ("gpu-1", promise("default/other"))], None)
    assert last is not None
    assert (last.kind, last.gpu, last.by, last.pod_name, last.waiting) == (
        "Moved",
        "gpu-0",
        "default/high",
        "low-0",
        True,
    )
    stored = last.model_copy(update={"waiting": None})
    assert last_of(of, [("gpu-0", later)], stored) is stored, "told already"
    evicted = promise(of.key, since="2026-01-01T13:00:00Z")
    newest = last_of(of, [("gpu-0", evicted), ("gpu-1", later)], stored)
    assert newest is not None
    assert newest.kind == "Evicted"


def evicted(*, waiting: bool | None = True) -> Disruption:
    return Disruption(
        kind="Evicted", by="default/high", gpu="gpu-0", pod_name="low-0", at=NOW, message="why", waiting=waiting
    )


def findings(of: Deployment, outcome: Outcome) -> dict[str, tuple[str, str]]:
    return {one.type: (one.reason, one.message) for one in status_of(of, outcome, NOW).conditions}


def test_one_that_was_evicted_says_for_whom_until_it_has_a_server() -> None:
    found = status_of(LOW, Outcome(ACCEPTED, Plan(), FULL, disruption=evicted()), NOW)
    placed = next(one for one in found.conditions if one.type == ConditionType.PLACED)
    assert placed.reason == "Displaced"
    assert placed.message == "low-0 left gpu-0 for default/high: why; 0 of 1 devices fit"
    assert found.last_disruption == evicted()
    served = status_of(LOW, Outcome(ACCEPTED, Plan(current=(replica(LOW),)), disruption=evicted()), NOW)
    assert served.last_disruption == evicted(waiting=None)
    later = findings(LOW, Outcome(ACCEPTED, Plan(), FULL, disruption=evicted(waiting=None)))
    assert later["Placed"] == ("WaitingForDevice", "0 of 1 devices fit"), "that is another story"


def test_one_that_moves_says_so() -> None:
    old = replica(LOW, name="low-0")
    last = evicted().model_copy(update={"kind": "Moved"})
    told_ = findings(LOW, Outcome(ACCEPTED, Plan(outdated=(old,)), disruption=last))
    assert told_["Progressing"] == ("Moving", "low-0 leaves gpu-0 for default/high: why")
    assert told_["Available"][0] == "Serving"


def test_what_another_version_wrote_is_passed_over() -> None:
    odd = replace(LOW, status={"lastDisruption": {"kind": "Teleported"}, "lastDevices": [{"gpu": 1}]})
    assert last_disruption(odd) is None
    assert last_devices(odd) == {}


def test_a_sticky_deployment_remembers_where_its_replicas_were() -> None:
    of = deployment("low", replicas=2, placement={"sticky": True})
    known = replace(of, status={"lastDevices": [{"replica": 1, "gpu": "gpu-9"}]})
    found = status_of(known, Outcome(ACCEPTED, Plan(current=(replica(of),))), NOW)
    assert [(one.replica, one.gpu) for one in found.last_devices or ()] == [(0, "node1-0000-02-00-0"), (1, "gpu-9")]
    assert status_of(LOW, Outcome(ACCEPTED, Plan(current=(replica(LOW),))), NOW).last_devices is None


def test_a_sticky_replica_prefers_its_last_device_to_all_others() -> None:
    where = fleet(*(device(f"gpu-{n}", total=(8 + n) * GIB, free=None, pci_id=None) for n in range(3)))
    for gpu in ("gpu-0", "gpu-1", "gpu-2"):
        found = place(Request(need=GIB, last=gpu), where)
        assert isinstance(found, Placement)
        assert found.device is not None
        assert found.device.gpu == gpu
        assert "where it was before (sticky)" in found.reason
    elsewhere = place(Request(need=9 * GIB, last="gpu-0"), where)
    assert isinstance(elsewhere, Placement), "it waits for no device"


def test_a_promise_counts_against_others_until_it_is_a_reservation() -> None:
    booked = Reservation(pod="default/old-0", deployment="default/old", uid="u", bytes=3 * GIB, since=NOW)
    made = promise(size=2 * GIB)
    status = GPUStatus.model_validate(
        {
            "node": "node1",
            "name": "CUDA0",
            "type": "Discrete",
            "backends": ["CUDA"],
            "uuid": "GPU-1",
            "memory": {"total": "4096Mi"},
            "reservations": [booked],
            "promises": [made],
        }
    )
    one = device_of("gpu-0", status)
    assert one.available(0) == 0
    assert fleet(one).without(["default/old-0"]).devices[0].available(0) == 2 * GIB
    assert fleet(one).without(["default/old-0", made.pod]).devices[0].available(0) == 4 * GIB
    mine = booked.model_copy(update={"pod": made.pod})
    assert len(device_of("gpu-0", status.model_copy(update={"reservations": [mine]})).claims) == 1

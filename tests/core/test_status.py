"""Statuses: every condition with every reason, times of flips, and nothing claimed that was not seen."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.modeldeployment import ModelDeploymentStatus, Need
from paddock.api.queue import Shortage
from paddock.api.vocabulary import ConditionType, Reason
from paddock.core.deployment import Deployment, revision
from paddock.core.plan import plan
from paddock.core.replica import Replica
from paddock.core.status import MESSAGE_LIMIT, Finding, Outcome, changes, status_of
from support.builders import GIB, LATER, NOW, deployment, older, record, replica

ACCEPTED = Finding("True", Reason.VALID, "the spec is valid")
READING = Finding("Unknown", Reason.READING_HEADER, "reading the header")
REFUSED = Finding("False", Reason.ARGUMENT_REFUSED, "'--rpc' is not allowed")
FULL = Finding("False", Reason.WAITING_FOR_DEVICE, "0 of 1 devices fit")
NEED = Need(
    device_bytes=GIB,
    host_bytes=0,
    weights_bytes=1,
    kv_cache_bytes=1,
    compute_bytes=1,
    margin_bytes=1,
    source="Estimate",
)


def outcome(of: Deployment, *replicas: Replica, accepted: Finding = ACCEPTED, **fields: Any) -> Outcome:
    steps = plan(of, replicas, lambda _: True)
    return Outcome(accepted, steps, **fields)


def status(of: Deployment, *replicas: Replica, **fields: Any) -> ModelDeploymentStatus:
    return status_of(of, outcome(of, *replicas, **fields), NOW)


def told(found: ModelDeploymentStatus) -> dict[str, tuple[str, str]]:
    return {one.type: (one.status, one.reason) for one in found.conditions}


def message(found: ModelDeploymentStatus, of: ConditionType) -> str:
    return next(one.message for one in found.conditions if one.type == of)


ONE, TWO = deployment(), deployment(replicas=2)
STARTING = replica(ONE, ready=False)
SERVING = replica(ONE)
WRONG = replica(ONE, ready=False, gate="False", gate_reason="WrongDevice", gate_message="it is elsewhere")
WRONG = replace(WRONG, container_id="containerd://one", gate_container="containerd://one", container_ready=True)
CRASHING = replica(
    ONE, ready=False, waiting=Reason.SERVER_FAILED, waiting_message="the server exited with code 1 (4 restarts)"
)
UNJUDGED = replica(ONE, gate="", gate_container="", ready=False, container_ready=True, container_id="containerd://one")
STALE = replace(SERVING, container_id="containerd://two")

CASES: dict[str, tuple[Deployment, list[Replica], dict[str, Any], list[str]]] = {
    # deployment, pods, what else was found; Accepted, Placed, Verified, Available, Progressing
    "reading": (
        ONE,
        [],
        {"accepted": READING},
        [
            "Unknown ReadingHeader reading the header",
            "Unknown ReadingHeader nothing is placed before this: reading the header",
            "Unknown AwaitingEvidence nothing runs",
            "False ReadingHeader 0 of 1 replicas ready; reading the header",
            "True ReadingHeader 0 of 1 replicas ready; reading the header",
        ],
    ),
    "refused": (
        ONE,
        [],
        {"accepted": REFUSED},
        [
            "False ArgumentRefused '--rpc' is not allowed",
            "False ArgumentRefused nothing is placed before this: '--rpc' is not allowed",
            "Unknown AwaitingEvidence nothing runs",
            "False ArgumentRefused 0 of 1 replicas ready; '--rpc' is not allowed",
            "False ArgumentRefused '--rpc' is not allowed",
        ],
    ),
    "refused-while-the-old-serves": (
        ONE,
        [older(SERVING)],
        {"accepted": REFUSED},
        [
            "False ArgumentRefused '--rpc' is not allowed",
            "True Placed NVIDIA GeForce RTX 4080 Laptop GPU: because",
            "True BuffersOnDevice its buffers are there",
            "True Serving 1 of 1 replicas ready",
            "False ArgumentRefused '--rpc' is not allowed; 1 replica kept as before",
        ],
    ),
    "unreadable-while-the-old-serves": (
        deployment(replicas=-1),
        [SERVING],
        {"accepted": Finding("False", Reason.INVALID_SPEC, "spec.replicas: wrong")},
        [
            "False InvalidSpec spec.replicas: wrong",
            "False InvalidSpec nothing is placed before this: spec.replicas: wrong",
            "True BuffersOnDevice its buffers are there",
            "False InvalidSpec spec.replicas: wrong",
            "False InvalidSpec spec.replicas: wrong; 1 replica kept as before",
        ],
    ),
    "no-room": (
        TWO,
        [replica(TWO)],
        {"unplaced": FULL},
        [
            "True Valid the spec is valid",
            "False WaitingForDevice 0 of 1 devices fit",
            "True BuffersOnDevice its buffers are there",
            "False WaitingForDevice 1 of 2 replicas ready; 0 of 1 devices fit",
            "True WaitingForDevice 1 of 2 replicas ready; 0 of 1 devices fit",
        ],
    ),
    "not-yet-made": (
        ONE,
        [],
        {},
        [
            "True Valid the spec is valid",
            "Unknown Starting 0 of 1 replicas placed",
            "Unknown AwaitingEvidence nothing runs",
            "False Starting 0 of 1 replicas ready",
            "True Starting 0 of 1 replicas ready",
        ],
    ),
    "starting": (
        ONE,
        [STARTING],
        {},
        [
            "True Valid the spec is valid",
            "True Placed NVIDIA GeForce RTX 4080 Laptop GPU: because",
            "Unknown AwaitingEvidence 0 of 1 replicas verified",
            "False Starting 0 of 1 replicas ready",
            "True Starting 0 of 1 replicas ready",
        ],
    ),
    "unjudged": (
        ONE,
        [UNJUDGED],
        {},
        [
            "True Valid the spec is valid",
            "True Placed NVIDIA GeForce RTX 4080 Laptop GPU: because",
            "Unknown AwaitingEvidence 0 of 1 replicas verified",
            "False AwaitingEvidence 0 of 1 replicas ready",
            "True AwaitingEvidence 0 of 1 replicas ready",
        ],
    ),
    "stale-evidence": (
        ONE,
        [STALE],
        {},
        [
            "True Valid the spec is valid",
            "True Placed NVIDIA GeForce RTX 4080 Laptop GPU: because",
            "Unknown AwaitingEvidence 0 of 1 replicas verified",
            "False AwaitingEvidence 0 of 1 replicas ready",
            "True AwaitingEvidence 0 of 1 replicas ready",
        ],
    ),
    "serving": (
        ONE,
        [SERVING],
        {},
        [
            "True Valid the spec is valid",
            "True Placed NVIDIA GeForce RTX 4080 Laptop GPU: because",
            "True BuffersOnDevice its buffers are there",
            "True Serving 1 of 1 replicas ready",
            "False Complete what runs is what the spec asks for",
        ],
    ),
    "wrong-device": (
        ONE,
        [WRONG],
        {},
        [
            "True Valid the spec is valid",
            "True Placed NVIDIA GeForce RTX 4080 Laptop GPU: because",
            f"False WrongDevice {WRONG.name}: it is elsewhere",
            f"False WrongDevice 0 of 1 replicas ready; {WRONG.name}: it is elsewhere",
            f"False WrongDevice 0 of 1 replicas ready; {WRONG.name}: it is elsewhere",
        ],
    ),
    "crashing": (
        ONE,
        [CRASHING],
        {},
        [
            "True Valid the spec is valid",
            "True Placed NVIDIA GeForce RTX 4080 Laptop GPU: because",
            "Unknown AwaitingEvidence 0 of 1 replicas verified",
            f"False ServerFailed 0 of 1 replicas ready; {CRASHING.name}: the server exited with code 1 (4 restarts)",
            f"False ServerFailed 0 of 1 replicas ready; {CRASHING.name}: the server exited with code 1 (4 restarts)",
        ],
    ),
    "rolling-out": (
        ONE,
        [older(SERVING), STARTING],
        {},
        [
            "True Valid the spec is valid",
            "True Placed NVIDIA GeForce RTX 4080 Laptop GPU: because",
            "Unknown AwaitingEvidence 1 of 2 replicas verified",
            "True Serving 1 of 1 replicas ready",
            "True RollingOut 1 replica of an older spec to replace",
        ],
    ),
    "rollout-stuck": (
        ONE,
        [older(SERVING), CRASHING],
        {},
        [
            "True Valid the spec is valid",
            "True Placed NVIDIA GeForce RTX 4080 Laptop GPU: because",
            "Unknown AwaitingEvidence 1 of 2 replicas verified",
            "True Serving 1 of 1 replicas ready",
            (
                "True RollingOut 1 replica of an older spec to replace; "
                f"{CRASHING.name}: the server exited with code 1 (4 restarts)"
            ),
        ],
    ),
    "released": (
        ONE,
        [older(SERVING, deleting=True)],
        {},
        [
            "True Valid the spec is valid",
            "False WaitingForDevice 0 of 1 replicas placed; waiting until gemma-older-0 is gone",
            "Unknown AwaitingEvidence nothing runs",
            "False Starting 0 of 1 replicas ready",
            "True Scaling 1 pod on the way out",
        ],
    ),
    "scaling-down": (
        ONE,
        [SERVING, replica(ONE, 1)],
        {},
        [
            "True Valid the spec is valid",
            "True Placed NVIDIA GeForce RTX 4080 Laptop GPU: because",
            "True BuffersOnDevice its buffers are there",
            "True Serving 1 of 1 replicas ready",
            "True Scaling 1 pod on the way out",
        ],
    ),
    "suspended": (
        deployment(suspend=True),
        [],
        {},
        [
            "True Valid the spec is valid",
            "False Suspended spec.suspend is true",
            "Unknown AwaitingEvidence nothing runs",
            "False Suspended spec.suspend is true",
            "False Suspended spec.suspend is true",
        ],
    ),
    "none-wanted": (
        deployment(replicas=0),
        [],
        {},
        [
            "True Valid the spec is valid",
            "True Placed no replica is wanted",
            "Unknown AwaitingEvidence nothing runs",
            "True Serving no replica is wanted",
            "False Complete what runs is what the spec asks for",
        ],
    ),
    "both-serve": (
        TWO,
        [replica(TWO, 0), replica(TWO, 1, gate_message="so are its buffers")],
        {},
        [
            "True Valid the spec is valid",
            (
                "True Placed replica 0: NVIDIA GeForce RTX 4080 Laptop GPU: because; "
                "replica 1: NVIDIA GeForce RTX 4080 Laptop GPU: because"
            ),
            (
                f"True BuffersOnDevice {replica(TWO, 0).name}: its buffers are there; "
                f"{replica(TWO, 1).name}: so are its buffers"
            ),
            "True Serving 2 of 2 replicas ready",
            "False Complete what runs is what the spec asks for",
        ],
    ),
}


@pytest.mark.parametrize("case", list(CASES))
def test_conditions(case: str) -> None:
    of, replicas, fields, expected = CASES[case]
    found = status(of, *replicas, **fields)
    assert [one.type for one in found.conditions] == ["Accepted", "Placed", "Verified", "Available", "Progressing"]
    assert [f"{one.status} {one.reason} {one.message}" for one in found.conditions] == expected


@pytest.mark.parametrize(
    "reason",
    [Reason.WRONG_DEVICE, Reason.CPU_FALLBACK, Reason.SECOND_DEVICE, Reason.NO_EVIDENCE, Reason.OUT_OF_MEMORY],
)
def test_each_finding_of_evidence_is_told_by_its_own_reason(reason: Reason) -> None:
    found = told(status(ONE, replace(WRONG, gate_reason=str(reason))))
    assert found["Verified"] == found["Available"] == found["Progressing"] == ("False", str(reason))


def test_a_reason_that_is_not_in_the_table_is_not_repeated() -> None:
    assert told(status(ONE, replace(WRONG, gate_reason="Invented")))["Verified"] == ("False", "NoEvidence")


@pytest.mark.parametrize(
    "reason", [Reason.UNSCHEDULABLE, Reason.IMAGE_PULL_FAILED, Reason.STARTUP_TIMEOUT, Reason.OUT_OF_MEMORY]
)
def test_what_kubernetes_says_is_told(reason: Reason) -> None:
    found = status(ONE, replace(CRASHING, waiting=reason, waiting_message="why"))
    assert told(found)["Available"] == ("False", str(reason))
    assert message(found, ConditionType.AVAILABLE).endswith(": why")


def test_numbers_and_places() -> None:
    found = status(TWO, replica(TWO, 0), replica(TWO, 1, ready=False, record=record(None)), need=NEED)
    assert (found.replicas, found.ready_replicas, found.observed_generation) == (2, 1, 1)
    assert found.endpoint == "http://gemma.default.svc:8080/v1"
    assert found.selector == "app.kubernetes.io/component=model-server,paddock.dev/model-deployment=gemma"
    assert [(one.replica, one.node, len(one.devices)) for one in found.placements] == [(0, "node1", 1), (1, "node1", 0)]
    assert found.placements[0].devices[0].name_in_pod == "CUDA0"
    assert found.need == NEED


def test_two_servers_of_one_number_are_one_replica() -> None:
    found = status(TWO, older(replica(TWO, 0)), replica(TWO, 0))
    assert told(found)["Available"] == ("False", "Starting")
    assert "1 of 2 replicas ready" in message(found, ConditionType.AVAILABLE)


def test_a_pod_without_record_is_counted_and_not_placed() -> None:
    found = status(ONE, replica(ONE, record=None))
    assert found.placements == []
    assert told(found)["Placed"] == ("Unknown", "Starting")


@pytest.mark.parametrize("deleting", [False, True])
def test_a_pod_that_is_replaced_for_its_record_is_told_until_it_is_gone(deleting: bool) -> None:
    found = status(ONE, replica(ONE, record=None, altered="it was removed", deleting=deleting))
    assert told(found)["Placed"] == told(found)["Available"] == ("False", "RecordChanged")
    assert "paddock.dev/placement was changed by hand: it was removed" in message(found, ConditionType.AVAILABLE)
    assert told(found)["Progressing"][0] == "True"


def applied(of: Deployment, found: ModelDeploymentStatus) -> Deployment:
    return replace(of, status=found.to_dict())


@pytest.mark.parametrize("case", list(CASES))
def test_the_same_look_again_writes_nothing(case: str) -> None:
    of, replicas, fields, _ = CASES[case]
    seen = outcome(of, *replicas, **fields, need=NEED)
    first = status_of(of, seen, NOW)
    assert status_of(applied(of, first), replace(seen, need=None), LATER) == first


def test_times_change_only_with_the_status_of_a_condition() -> None:
    before = applied(ONE, status(ONE, STARTING))
    after = status_of(before, outcome(before, SERVING), LATER)
    times = {one.type: one.last_transition_time for one in after.conditions}
    assert times == {"Accepted": NOW, "Placed": NOW, "Verified": LATER, "Available": LATER, "Progressing": LATER}
    # Another reason and message with the same status are no flip.
    crashed = status_of(before, outcome(before, CRASHING), LATER)
    assert {one.type: one.last_transition_time for one in crashed.conditions} == {
        **dict.fromkeys(["Accepted", "Placed", "Verified", "Available"], NOW),
        "Progressing": LATER,
    }


@pytest.mark.parametrize(
    "stored",
    [
        {"need": {"invented": 1}},
        {"need": None},
        {"need": "much"},
        {"conditions": None},
        {"conditions": [{"type": "Accepted", "status": "True"}]},
        {"conditions": [{"type": "Invented", "status": "True"}]},
    ],
)
def test_a_status_of_another_version_is_no_obstacle(stored: dict[str, Any]) -> None:
    found = status_of(replace(ONE, status=stored), outcome(ONE, SERVING), LATER)
    assert found.need is None
    assert {one.last_transition_time for one in found.conditions} == {LATER}


def test_many_replicas_make_no_endless_message() -> None:
    many = deployment(replicas=100)
    pods = [replica(many, number, gate_message="x" * 900) for number in range(100)]
    found = status(many, *pods)
    assert all(len(one.message) <= MESSAGE_LIMIT for one in found.conditions)
    assert message(found, ConditionType.PLACED).endswith("; and 95 more")
    assert message(found, ConditionType.VERIFIED).endswith("…")


REPLICAS = st.builds(
    lambda number, ready, gate, same, waiting, old: (older if old else replace)(
        replica(
            TWO,
            number,
            ready=ready,
            gate=gate,
            container_id="containerd://one",
            gate_container="containerd://one" if same else "containerd://zero",
            gate_reason="WrongDevice" if gate == "False" else "BuffersOnDevice",
            waiting=waiting,
        )
    ),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from(["True", "False", ""]),
    st.booleans(),
    st.sampled_from([None, Reason.SERVER_FAILED]),
    st.booleans(),
)


@given(
    st.lists(REPLICAS, max_size=4, unique_by=lambda one: one.name),
    st.sampled_from([ACCEPTED, READING, REFUSED]),
    st.sampled_from([None, FULL]),
)
def test_nothing_is_claimed_that_was_not_seen(
    replicas: list[Replica], accepted: Finding, unplaced: Finding | None
) -> None:
    found = status(TWO, *replicas, accepted=accepted, unplaced=unplaced)
    says = told(found)
    proven = {one.number for one in replicas if one.verified and one.ready}
    assert (found.ready_replicas or 0) <= len([one for one in replicas if one.verified and one.ready])
    if says["Available"][0] == "True":
        assert proven >= {0, 1}
    if says["Verified"][0] == "True":
        assert proven | {one.number for one in replicas if one.verified}
        assert not any(one.unverified for one in replicas if one.number < 2 and one.revision == revision(TWO))
    if says["Placed"][0] == "True":
        assert {one.number for one in replicas} >= {0, 1}
        assert unplaced is None
    if says["Progressing"] == ("False", "Complete"):
        assert says["Available"][0] == "True"
    again = status_of(applied(TWO, found), outcome(TWO, *replicas, accepted=accepted, unplaced=unplaced), LATER)
    assert again == found


def test_what_is_missing_is_told_while_it_is_missing() -> None:
    shortage = Shortage(gpu="gpu-a", node="node1", memory="Device", required_bytes=2, available_bytes=1)
    waits = Finding("False", Reason.WAITING_FOR_DEVICE, "no room", shortage)
    assert status(ONE, unplaced=waits).shortage == shortage
    assert status(ONE).shortage is None


def test_a_patch_takes_off_what_is_absent_now_also_inside_objects() -> None:
    before = {"a": 1, "b": {"c": 1, "d": 2}, "e": [1, 2], "f": {"g": 1}}
    after = {"a": 1, "b": {"d": 3}, "e": [1], "h": {}}
    assert changes(after, before) == {"f": None, "b": {"c": None, "d": 3}, "e": [1], "h": {}}


VALUES = st.recursive(
    st.integers(0, 3), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def merged(target: Any, patch: Any) -> Any:
    """Apply a merge patch, as RFC 7396 has it."""
    if not isinstance(patch, dict):
        return patch
    kept = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            kept.pop(name, None)
        else:
            kept[name] = merged(kept.get(name), value)
    return kept


@given(OBJECTS, OBJECTS, st.sets(st.sampled_from("abc")))
def test_a_patch_gives_whole_objects_though_somebody_took_them_off_meanwhile(
    before: dict[str, Any], after: dict[str, Any], taken: set[str]
) -> None:
    patch = changes(after, before)
    assert merged(before, patch) == after
    stored = merged({name: value for name, value in before.items() if name not in taken}, patch)
    assert all(stored[name] == after[name] for name in patch if name in after)
    assert changes(after, after) == {}

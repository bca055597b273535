"""Pods as the operator sees them, and the record of a placement on them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.vocabulary import Annotation, Label, Reason
from paddock.core.replica import LONGEST_ALTERED, NO_CONTAINER, Record, Replica, replica_of, trusted
from support.builders import CONTAINER_ID, RTX_4080, deployment, pod_json, record, replica, serving_status


def read(status: dict[str, Any] | None = None, **meta: Any) -> Replica:
    found = replica_of(pod_json(deployment(), status=status, **meta))
    assert found is not None
    return found


def container(**fields: Any) -> dict[str, Any]:
    return {"phase": "Running", "containerStatuses": [{"name": "server", "restartCount": 0, **fields}]}


@pytest.mark.parametrize("on", [RTX_4080, None])
def test_a_record_is_read_back_as_it_was_written(on: Any) -> None:
    assert Record.loads(record(on).dumps()) == record(on)


def test_fields_of_a_newer_operator_are_passed_over_and_missing_ones_have_defaults() -> None:
    raw = json.loads(record().dumps())
    del raw["description"], raw["host_weights"], raw["device_weights"]
    raw["invented_later"] = {"a": [1]}
    assert Record.loads(json.dumps(raw)) == record(description="")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "3",
        "{}",
        "[" * 100_000,
        record().dumps().replace('"need": 1073741824', '"need": "many"'),
        record().dumps().replace('"need": 1073741824', '"need": true'),
        record().dumps().replace('"need": 1073741824', '"need": -1'),
        record().dumps().replace('"need": 1073741824', '"need": 1.5'),
        record().dumps().replace('"policy": "Auto"', '"policy": null'),
        record().dumps().replace('"uuid": "GPU-4080"', '"uuid": ["GPU-4080"]'),
    ],
)
def test_what_is_no_record_is_refused_and_the_pod_is_read_without_one(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Record.loads(text)
    found = read(annotations={Annotation.PLACEMENT: text})
    assert found.record is None
    assert found.spoiled
    assert len(found.altered) <= LONGEST_ALTERED


def test_a_record_that_is_not_of_its_pod_is_not_believed() -> None:
    pod = pod_json(deployment())
    pod["spec"]["containers"][0]["args"] = ["-m", "x", "--device", "none"]
    found = replica_of(pod)
    assert found is not None
    assert found.spoiled
    assert "--device none" in found.altered


def test_a_record_that_was_edited_is_taken_as_it_was_and_the_difference_is_told() -> None:
    known, edited = replica(deployment()), replica(deployment(), record=replace(record(), need=1))
    found = trusted(known, edited)
    assert (found.record, found.spoiled) == (known.record, False)
    assert found.altered == "need was 1073741824 and became 1"
    assert trusted(found, known).altered == ""
    assert trusted(None, edited) == edited
    assert trusted(replace(known, uid="an earlier pod"), edited) == edited


def test_what_was_learned_of_a_card_is_no_edit_and_is_learned_once() -> None:
    planned = replica(deployment(), record=replace(record(), exact_device=False))
    learned = replica(
        deployment(), record=replace(record(), exact_device=False, gpu="node1-b", uuid="GPU-b", learned=True)
    )
    assert trusted(planned, learned) == learned
    moved = replica(
        deployment(), record=replace(record(), exact_device=False, gpu="node1-c", uuid="GPU-c", learned=True)
    )
    assert trusted(learned, moved).record == learned.record


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=4))
def test_any_value_in_the_annotation_is_survived(value: object) -> None:
    for text in (json.dumps(value), json.dumps({"gpu": value, "need": value}), str(value)):
        read(annotations={Annotation.PLACEMENT: text})


@pytest.mark.parametrize(
    "labels", [{}, None, {Label.DEPLOYMENT: "gemma"}, {Label.DEPLOYMENT: "gemma", Label.COMPONENT: Label.INSPECT}]
)
def test_other_pods_are_no_replicas(labels: Any) -> None:
    assert replica_of(pod_json(deployment(), labels=labels)) is None


@pytest.mark.parametrize(
    ("text", "number"), [("7", 7), ("x", 0), ("-1", 0), ("²", 0), ("٣", 0), ("9" * 5000, 0), ("", 0)]
)
def test_numbers(text: str, number: int) -> None:
    assert read(annotations={Annotation.REPLICA: text}).number == number


def test_a_fresh_pod_is_nothing_yet() -> None:
    found = read()
    assert not any((found.ready, found.scheduled, found.running, found.verified, found.unverified, found.failed))
    assert (found.waiting, found.needs_evidence, found.gate_is_stale) == (None, False, False)
    assert found.owner_uid == "uid-1"


def test_a_pod_without_owner_belongs_to_nobody() -> None:
    assert read(ownerReferences=[]).owner_uid == ""


def test_a_server_that_answers_waits_for_evidence() -> None:
    found = read(serving_status(gate_for=None))
    assert (found.needs_evidence, found.verified, found.serving) == (True, False, False)


def test_a_verified_server_serves() -> None:
    found = read(serving_status())
    assert (found.needs_evidence, found.verified, found.serving) == (False, True, True)
    assert found.gate_message == "all is well"


def test_evidence_about_a_container_that_ended_is_worth_nothing() -> None:
    found = read(serving_status(container_id="containerd://two", gate_for=CONTAINER_ID))
    assert found.ready
    assert (found.verified, found.serving, found.gate_is_stale, found.needs_evidence) == (False, False, True, True)


def test_a_gate_without_container_opens_nothing() -> None:
    status = serving_status(container_id="")
    status["conditions"][2]["message"] = ""
    found = read(status)
    assert (found.verified, found.unverified, found.serving) == (False, False, False)


def test_a_server_found_wanting_stays_so_until_it_restarts() -> None:
    status = serving_status()
    status["conditions"][2] |= {
        "status": "False",
        "reason": "WrongDevice",
        "message": f"{CONTAINER_ID} it is elsewhere",
    }
    found = read(status)
    assert (found.unverified, found.needs_evidence) == (True, False)
    assert (found.gate_reason, found.gate_message) == ("WrongDevice", "it is elsewhere")
    status["containerStatuses"][0]["containerID"] = "containerd://two"
    assert not read(status).unverified
    assert read(status).needs_evidence


def test_a_pod_may_be_found_wanting_before_it_has_a_container() -> None:
    wrong = replica(deployment(), ready=False, scheduled=True, gate="False", gate_reason="WrongDevice")
    assert replace(wrong, gate_container=NO_CONTAINER).unverified
    assert not replace(wrong, gate_container=NO_CONTAINER, container_id="containerd://one").unverified
    assert not replace(wrong, gate_container=NO_CONTAINER, gate_reason="AwaitingEvidence").unverified
    assert not replace(wrong, gate_container="containerd://one").unverified


def test_a_gate_that_was_shut_for_a_new_container_awaits_its_evidence() -> None:
    status = serving_status()
    status["conditions"][2] |= {"status": "False", "reason": "AwaitingEvidence"}
    found = read(status)
    assert (found.unverified, found.verified, found.needs_evidence) == (False, False, True)


WAITING: dict[str, tuple[dict[str, Any], Reason | None, str]] = {
    "unschedulable": (
        {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes: Insufficient memory"}],
        },
        Reason.UNSCHEDULABLE,
        "0/2 nodes: Insufficient memory",
    ),
    "pull": (
        container(state={"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}),
        Reason.IMAGE_PULL_FAILED,
        "Back-off pulling image",
    ),
    "pull-without-message": (
        container(state={"waiting": {"reason": "ErrImagePull"}}),
        Reason.IMAGE_PULL_FAILED,
        "ErrImagePull",
    ),
    "creating": (container(state={"waiting": {"reason": "ContainerCreating"}}), None, ""),
    "no-secret": (
        container(state={"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "key" not found'}}),
        Reason.SERVER_FAILED,
        'CreateContainerConfigError: secret "key" not found',
    ),
    "runtime": (
        container(state={"waiting": {"reason": "RunContainerError", "message": "no such device"}}),
        Reason.SERVER_FAILED,
        "RunContainerError: no such device",
    ),
    "exit": (
        container(state={"terminated": {"exitCode": 1, "reason": "Error"}}),
        Reason.SERVER_FAILED,
        "the server exited with code 1",
    ),
    "crash-loop": (
        container(
            restartCount=4,
            state={"waiting": {"reason": "CrashLoopBackOff"}},
            lastState={"terminated": {"exitCode": 134, "reason": "Error"}},
        ),
        Reason.SERVER_FAILED,
        "the server exited with code 134 (4 restarts)",
    ),
    "out-of-memory": (
        container(state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
        Reason.OUT_OF_MEMORY,
        "the container was ended for exceeding its memory limit",
    ),
    "too-slow": (
        container(
            restartCount=1,
            state={"running": {}},
            lastState={"terminated": {"exitCode": 143, "reason": "Error"}},
        ),
        Reason.STARTUP_TIMEOUT,
        "the server did not finish loading within 120 seconds",
    ),
    "recovered": (
        container(
            ready=True,
            restartCount=1,
            state={"running": {}},
            lastState={"terminated": {"exitCode": 1, "reason": "Error"}},
        ),
        None,
        "",
    ),
    "admission": (
        {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"},
        Reason.ADMISSION_FAILED,
        "UnexpectedAdmissionError: Allocate failed",
    ),
    "no-cpu-left": ({"phase": "Failed", "reason": "OutOfcpu"}, Reason.ADMISSION_FAILED, "OutOfcpu"),
    "evicted": (
        {"phase": "Failed", "reason": "Evicted", "message": "disk pressure"},
        Reason.SERVER_FAILED,
        "Evicted: disk pressure",
    ),
    "failed": ({"phase": "Failed"}, Reason.SERVER_FAILED, ""),
}


@pytest.mark.parametrize("case", list(WAITING))
def test_what_keeps_a_pod_from_serving(case: str) -> None:
    status, reason, message = WAITING[case]
    found = read(status)
    assert (found.waiting, found.waiting_message) == (reason, message)
    assert found.failed is (status["phase"] == "Failed")


def test_kubernetes_own_messages_are_bounded() -> None:
    found = read(container(state={"waiting": {"reason": "ErrImagePull", "message": "x" * 9999}}))
    assert len(found.waiting_message) == 1000

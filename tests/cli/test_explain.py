"""`paddock explain`: what was recorded stays as it was, what is computed now says so."""

import json

import pytest

from cli.fake import GROUP, GTX, MIB, PRO, RTX, FakeApi, Shell, condition, node, pod, reservation, serving, waiting
from paddock.cli.problem import ApiError


def explain(shell: Shell, name: str = "gemma", *more: str) -> dict[str, object]:
    status, text = shell.run("explain", name, "-o", "json", *more)
    assert status == 0
    value: dict[str, object] = json.loads(text)
    return value


def verdicts(value: dict[str, object]) -> dict[str, str]:
    now = value["now"]
    assert isinstance(now, dict)
    return {one["gpu"]: one["verdict"] for one in now["devices"]}


def test_the_sentence_is_the_recorded_one(shell: Shell, api: FakeApi) -> None:
    recorded = "Some GPU (0000:99:00.0) on a-node: a reason of long ago; needs 1 GiB of 2 GiB left"
    api.deployments[0]["status"]["placements"][0]["reason"] = recorded
    assert shell.run("explain", "gemma", "--brief") == (0, f"gemma is on {recorded}.\n")
    assert shell.run("explain", "gemma")[1].startswith(f"gemma is on {recorded}.\n")
    assert explain(shell)["recorded"]["sentences"] == [f"gemma is on {recorded}."]  # type: ignore[index]


def test_brief_asks_for_one_object_only(shell: Shell, api: FakeApi) -> None:
    for path in (f"{GROUP}/gpus", "/api/v1/nodes", "/api/v1/pods"):
        api.failures[path] = ApiError(500, "", "must not be read")
    assert shell.run("explain", "gemma", "--brief")[0] == 0


def test_its_own_memory_counts_as_free(shell: Shell) -> None:
    value = explain(shell)
    assert verdicts(value) == {PRO: "Chosen", RTX: "Fits", GTX: "Fits", "node1-0000-00-02-0": "TypeNotAllowed"}
    now = value["now"]
    assert now["held"] == PRO  # type: ignore[index]
    assert now["devices"][0]["availableBytes"] == (96256 + 1024) * MIB  # type: ignore[index]


def test_memory_of_a_server_that_still_loads_is_not_counted_twice(shell: Shell, api: FakeApi) -> None:
    api.pods = [pod("gemma", ready=False)]
    now = explain(shell)["now"]
    assert now["devices"][0]["availableBytes"] == 96256 * MIB  # type: ignore[index]


def test_a_full_card_names_who_holds_it(shell: Shell, api: FakeApi) -> None:
    held = [
        reservation("default", "gemma", "gemma-1a2b3c4d-0", 30 * 1024),
        reservation("team", "other", "other-1a2b3c4d-0", 40 * 1024),
    ]
    api.gpus[3]["status"]["reservations"] = held
    api.pods = [pod("gemma"), pod("other", namespace="team")]
    api.gpus[3]["status"]["memory"]["free"] = "26112Mi"
    api.deployments[1] = waiting(gib=40)
    value = explain(shell, "large")
    assert value["pending"] is True
    now = value["now"]
    assert now["held"] is None  # type: ignore[index]
    assert [(one["deployment"], one["bytes"]) for one in now["holders"] if one["gpu"] == PRO] == [  # type: ignore[index]
        ("team/other", 40 * 1024 * MIB),
        ("default/gemma", 30 * 1024 * MIB),
    ]
    assert now["devices"][0]["verdict"] == "NoRoom"  # type: ignore[index]
    assert now["devices"][0]["shortfallBytes"] == (40 * 1024 - 26112) * MIB  # type: ignore[index]
    text = shell.run("explain", "large")[1]
    assert "Who holds the memory" in text
    assert "node2 CUDA0   team/other" in text


def test_a_stranger_on_the_card_is_told(shell: Shell, api: FakeApi) -> None:
    api.gpus[3]["status"]["memory"]["free"] = "51200Mi"
    now = explain(shell, "large")["now"]
    foreign = [one["bytes"] for one in now["holders"] if one["gpu"] == PRO and one["deployment"] is None]  # type: ignore[index]
    assert foreign == [(97887 - 1024 - 51200) * MIB]
    assert "not placed by Paddock" in shell.run("explain", "large")[1]


def test_a_cordoned_or_broken_node_changes_now_and_not_the_record(shell: Shell, api: FakeApi) -> None:
    before = explain(shell)["recorded"]
    api.nodes = [{**node("node1"), "spec": {"unschedulable": True}}, node("node2", ready=False)]
    value = explain(shell)
    assert value["recorded"] == before
    assert set(verdicts(value).values()) == {"NodeNotReady", "NodeUnschedulable"}
    assert "Asked now, no GPU would be found; what runs is not moved" in shell.run("explain", "gemma")[1]


def test_a_better_card_of_today_moves_nothing_but_is_told(shell: Shell, api: FakeApi) -> None:
    api.deployments[0]["status"]["placements"][0]["devices"][0]["gpu"] = GTX
    assert (
        "Asked now, it would go elsewhere; what runs is not moved: NVIDIA RTX PRO 6000"
        in shell.run("explain", "gemma")[1]
    )


@pytest.mark.parametrize(
    ("path", "assumption"),
    [("/api/v1/nodes", "you may not list nodes"), ("/api/v1/pods", "you may not list pods of all namespaces")],
)
def test_what_may_not_be_read_is_taken_for_granted_and_said(
    shell: Shell, api: FakeApi, path: str, assumption: str
) -> None:
    api.failures[path] = ApiError(403, "Forbidden", "forbidden")
    now = explain(shell)["now"]
    assert any(assumption in one for one in now["assumptions"])  # type: ignore[index]
    assert verdicts(explain(shell))[PRO] == "Chosen"


def test_without_the_right_to_list_gpus_the_record_is_still_told(shell: Shell, api: FakeApi) -> None:
    api.failures[f"{GROUP}/gpus"] = ApiError(403, "Forbidden", "forbidden")
    status, text = shell.run("explain", "gemma")
    assert status == 0
    assert text.startswith("gemma is on NVIDIA RTX PRO 6000")
    assert "you may not list them" in text


def test_siblings_are_avoided_as_in_placement(shell: Shell, api: FakeApi) -> None:
    two = serving("gemma", replicas=2)
    two["status"]["placements"] = two["status"]["placements"][:1]
    api.deployments = [two]
    value = explain(shell)
    assert value["now"]["replica"] == 1  # type: ignore[index]
    assert verdicts(value)[RTX] == "Chosen"


def test_a_failure_is_told_once_with_its_remedy(shell: Shell, api: FakeApi) -> None:
    liar = serving("liar")
    liar["status"]["conditions"][2:4] = [
        condition("Verified", "False", "CpuFallback", "liar-0: weights are in host memory"),
        condition("Available", "False", "CpuFallback", "0 of 1 replicas ready; liar-0: weights are in host memory"),
    ]
    api.deployments = [liar]
    text = shell.run("explain", "liar")[1]
    assert text.count("weights are in host memory") == 1
    assert "see `paddock logs liar`" in text


@pytest.mark.parametrize(("spec", "said"), [({"suspend": True}, "is suspended"), ({"replicas": 0}, "has no replicas")])
def test_nothing_wanted_is_no_failure(shell: Shell, api: FakeApi, spec: dict[str, object], said: str) -> None:
    idle = serving("idle", replicas=0)
    idle["spec"].update(spec)
    api.deployments = [idle]
    status, text = shell.run("explain", "idle")
    assert status == 0
    assert said in text
    assert "none is judged" in text


def test_on_the_cpu(shell: Shell, api: FakeApi) -> None:
    slow = serving("slow", serving={"gpuLayers": 0}, placement={"allowCPU": True})
    slow["status"]["placements"][0].update(devices=[], reason="on the CPU: gpuLayers is 0", node="node1")
    slow["status"]["need"].update(deviceBytes=0)
    api.deployments = [slow]
    text = shell.run("explain", "slow")[1]
    assert text.startswith("slow is on the CPU: gpuLayers is 0.")
    assert "480 MiB of host memory (estimate)" in text
    assert "Asked now: on the CPU" in text
    assert "CPU" in shell.run("get")[1]


def test_a_replica_that_does_not_exist(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run("explain", "gemma", "--replica", "3")[0] == 1
    assert capsys.readouterr().err == "error: gemma has no replica 3; it has 1, counted from 0\n"


def test_the_place_in_the_queue_is_told(shell: Shell, api: FakeApi) -> None:
    assert "Queue" not in shell.run("explain", "large")[1]
    api.deployments[1]["status"]["queue"] = {"position": 3}
    api.deployments[1]["spec"]["priority"] = 7
    assert "Queue      place 3 (priority 7, then age)" in shell.run("explain", "large")[1]
    assert explain(shell, "large")["recorded"]["queue"] == {"position": 3}  # type: ignore[index]


def test_who_made_room_for_whom_is_told_with_its_cost(shell: Shell, api: FakeApi) -> None:
    last = {"kind": "Evicted", "by": "default/high", "gpu": "gpu-1", "podName": "large-0", "at": "2026-01-01T00:00:00Z"}
    last["message"] = "evicts it (before: 1 waiting; after: 2 waiting)"
    api.deployments[1]["status"]["lastDisruption"] = last
    text = " ".join(shell.run("explain", "large")[1].split())
    assert "from gpu-1 for default/high: evicts it (before: 1 waiting; after: 2 waiting)" in text
    assert explain(shell, "large")["recorded"]["lastDisruption"] == last  # type: ignore[index]


def test_policies_of_the_namespace_are_part_of_the_answer(shell: Shell, api: FakeApi) -> None:
    only_small = {"namespaces": ["default"], "gpus": {"maxMemory": "8Gi"}}
    api.policies = [
        {"metadata": {"name": "team"}, "spec": only_small},
        {"metadata": {"name": "x"}, "spec": {"gpus": 3}},
    ]
    assert verdicts(explain(shell))[PRO] == "NotAllowed"
    api.failures[f"{GROUP}/placementpolicies"] = ApiError(403, "Forbidden", "no")
    assert verdicts(explain(shell))[PRO] == "Chosen"
    assert "no PlacementPolicy holds here (you may not list them)" in shell.run("explain", "gemma", width=400)[1]


def test_a_card_that_was_learned_afterwards_is_said_to_be(shell: Shell, api: FakeApi) -> None:
    lent = {"binder": "VendorPlugin", "reason": "the GPU's spec.binder says so", "exactDevice": False}
    api.deployments[0]["status"]["placements"][0]["binding"] = lent
    told = " ".join(shell.run("explain", "gemma")[1].split())
    assert "Given by VendorPlugin: the GPU's spec.binder says so; which card it is was learned afterwards" in told

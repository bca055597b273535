"""Memory of devices: nothing is booked twice, nothing is lost, and who waits starts when there is room."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from support.client import eventually, stays
from support.harness import GPUS
from support.overbooking import Watch
from support.pretend_agent import card
from support.site import GPU

if TYPE_CHECKING:
    from support.site import Site


def test_a_third_model_waits_for_room_and_starts_when_there_is_some(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 5)])
    site.serve("a")
    site.serve("b")
    site.apply("c")
    message = site.wait_for("Placed", "False", "WaitingForDevice", "c")["message"]
    assert "needs 2 GiB, has 1 GiB left of 5 GiB" in message
    assert "1 GiB short" in message
    assert f"2 GiB for {site.namespace}/a" in message
    assert len(site.reservations()) == 2
    assert site.gpu()["usedBy"] == f"{site.namespace}/a, {site.namespace}/b"
    mark = site.settle()
    stays(lambda: not site.plane.written(mark), 1.5)
    site.client.delete(site.path("a"))
    site.wait_for("Available", "True", "Serving", "c", 20)
    assert len(site.reservations()) == 2


def test_two_operators_at_once_never_book_a_byte_twice(site: Site) -> None:
    site.operator()
    site.another_operator()
    site.node(devices=[card(number, 9) for number in range(4)])
    watch = Watch(site.plane)
    count = 60
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: site.apply(f"m{number}"), range(count)))

    def served() -> bool:
        return sum(bool(site.pods(f"m{number}")) for number in range(count)) == 16

    eventually(served, 20, "four models on each of four cards")
    site.settle()
    assert len(site.reservations()) == 16
    assert len(site.all_pods()) == 16
    assert all(site.kubelet.created[key] == 1 for key in site.kubelet.created if key.startswith(f"{site.namespace}/"))
    for number in range(0, count, 2):
        site.client.delete(site.path(f"m{number}"))

    def left() -> bool:
        pods = site.all_pods()
        owners = {one["metadata"]["labels"]["paddock.dev/model-deployment"] for one in pods}
        booked = site.reservations()
        return len(owners) == len(pods) == 16 and set(booked) == {one["metadata"]["name"] for one in pods}

    eventually(left, 30, "the room of deleted models goes to others")
    watch.stop()
    assert watch.states > 16
    assert not watch.overbooked, watch.overbooked


def test_a_webhook_that_does_not_answer_is_told_and_tried_again(site: Site) -> None:
    site.operator()
    site.node()
    nowhere = {"url": "https://127.0.0.1:1/", "caBundle": ""}
    here = {"matchLabels": {"kubernetes.io/metadata.name": site.namespace}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    hook = {"name": "a.broken.webhook", "clientConfig": nowhere, "rules": [rule], "namespaceSelector": here}
    hook |= {"sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 1}
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    site.client.do("POST", hooks, {**kind, "metadata": {"name": "broken"}, "webhooks": [hook]})
    try:
        site.apply()
        message = site.wait_for("Placed", "False", "PodRefused")["message"]
        assert 'failed calling webhook "a.broken.webhook"' in message
        site.settle(0.5)
        assert site.reservations() == {}, "its memory is for others meanwhile"
        assert not site.all_pods()
    finally:
        site.client.delete(f"{hooks}/broken")
    site.wait_for("Available", "True", "Serving")


def test_gpu_object_that_a_user_edits_is_put_right(site: Site) -> None:
    site.operator()
    site.node()
    pod = site.serve()
    before = site.settle() and site.gpu()
    lie = {"status": {"reservations": [], "deployments": [], "memory": {"total": "1Mi", "reserved": "0Mi"}}}
    site.client.do("PATCH", f"{GPUS}/{GPU}/status", lie)
    eventually(lambda: site.gpu() == before, what="the object is as it was")
    assert [one["metadata"]["uid"] for one in site.pods()] == [pod["metadata"]["uid"]]


def test_gpu_object_that_a_user_deletes_comes_back_with_its_reservations(site: Site) -> None:
    site.operator()
    site.node()
    pod = site.serve()
    before = site.reservations()
    site.client.delete(f"{GPUS}/{GPU}")
    eventually(lambda: site.reservations() == before, what="the reservation is back")
    assert site.gpu_ready()["status"] == "True"
    assert [one["metadata"]["uid"] for one in site.pods()] == [pod["metadata"]["uid"]]


def test_rollout_makes_room_first_where_there_is_none(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 3)])
    old = site.serve()
    site.change("gemma", serving={"parallel": 2})
    site.wait_for("Progressing", "False", "Complete")
    (new,) = site.pods()
    assert new["metadata"]["name"] != old["metadata"]["name"]
    assert list(site.reservations()) == [new["metadata"]["name"]]


def test_rollout_keeps_the_old_server_where_there_is_room_for_both(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 16)])
    old = site.serve()["metadata"]["uid"]
    site.kubelet.paused = True
    site.change("gemma", serving={"parallel": 2})
    eventually(lambda: len(site.pods()) == 2)
    pods = site.pods()
    assert old in {one["metadata"]["uid"] for one in pods}
    site.wait_for("Available", "True", "Serving")
    site.wait_for("Progressing", "True", "RollingOut")
    assert len(site.reservations()) == 2
    site.kubelet.paused = False
    new = next(one["metadata"]["name"] for one in pods if one["metadata"]["uid"] != old)
    site.plane.background.loop.call_soon_threadsafe(site.kubelet.look, f"{site.namespace}/{new}")
    site.wait_for("Progressing", "False", "Complete")
    assert old not in {one["metadata"]["uid"] for one in site.pods()}
    assert list(site.reservations()) == [new]


def test_replicas_are_replaced_one_at_a_time(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 16), card(1, 16), card(2, 16)])
    site.serve(replicas=3)
    low = []
    site.change("gemma", serving={"parallel": 2})

    def done() -> bool:
        ready = sum(
            any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))
            for pod in site.pods()
        )
        low.append(ready)
        progressing = site.condition("Progressing")
        return (progressing["reason"], progressing["observedGeneration"]) == ("Complete", 2)

    eventually(done, 20)
    assert min(low) >= 2, "never more than one is out at a time"
    assert len(site.reservations()) == 3


def test_bad_new_spec_keeps_the_old_server(site: Site) -> None:
    site.operator()
    site.node()
    old = site.serve()
    site.change("gemma", model={"source": "file:///models/other.gguf"})
    message = site.wait_for("Accepted", "False", "ModelNotFound")["message"]
    assert "node1" in message
    site.change("gemma", model={"source": "file:///models/gemma.gguf"}, serving={"args": ["--rpc", "x"]})
    site.wait_for("Accepted", "False", "ArgumentRefused")
    assert site.condition("Available")["status"] == "True"
    assert [one["metadata"]["uid"] for one in site.pods()] == [old["metadata"]["uid"]]
    site.change("gemma", serving={"args": []})
    site.wait_for("Progressing", "False", "Complete")
    assert [one["metadata"]["uid"] for one in site.pods()] == [old["metadata"]["uid"]], "the same spec: the same pod"


def test_change_of_policy_moves_nothing(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 16), card(1, 24)])
    old = site.serve()
    mark = site.settle()
    site.change("gemma", placement={"policy": "MostMemory"})
    eventually(lambda: site.status()["observedGeneration"] == 2)
    site.settle()
    assert [one["metadata"]["uid"] for one in site.pods()] == [old["metadata"]["uid"]]
    assert site.plane.written(mark)["create /pods"] == 0


def test_named_devices_move_it_only_if_it_is_on_none_of_them(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 16), card(1, 24)])
    old = site.serve()
    assert site.status()["placements"][0]["devices"][0]["pciId"] == "0000:02:00.0"
    site.change("gemma", placement={"devices": [{"node": "node1", "pciId": "0000:02:00.0"}]})
    eventually(lambda: site.status()["observedGeneration"] == 2)
    site.settle()
    assert [one["metadata"]["uid"] for one in site.pods()] == [old["metadata"]["uid"]]
    site.change("gemma", placement={"devices": [{"node": "node1", "name": "CUDA0"}]})
    site.wait_for("Progressing", "False", "Complete")
    assert site.status()["placements"][0]["devices"][0]["pciId"] == "0000:01:00.0"
    assert list(site.reservations()) == [site.pods()[0]["metadata"]["name"]]

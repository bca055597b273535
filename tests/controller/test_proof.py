"""The readiness gate: no server gets traffic before its own log shows that it is where it should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paddock.controller.proof import GLANCES
from support.client import eventually, stays
from support.pretend_agent import card
from support.pretend_kubelet import Behaviour, honest_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.pretend_kubelet import Pod
    from support.site import Site


def elsewhere(pod: Pod) -> str:
    return honest_log(pod).replace("0000:01:00.0", "0000:02:00.0")


def on_the_cpu(pod: Pod) -> str:
    kept = [line for line in honest_log(pod).splitlines() if "using device" not in line]
    return "\n".join(kept).replace("CUDA0", "CPU")


def on_two(pod: Pod) -> str:
    text = honest_log(pod)
    line = next(line for line in text.splitlines() if "using device" in line)
    return text + line.replace("CUDA0", "CUDA1").replace("0000:01:00.0", "0000:02:00.0") + "\n"


def silent(_: Pod) -> str:
    return "0.00.001.000 I main: server is listening\n"


def ready(pod: Pod) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))


@pytest.mark.parametrize(
    ("log", "reason", "words"),
    [
        (elsewhere, "WrongDevice", "0000:02:00.0"),
        (on_the_cpu, "CpuFallback", "opened no device"),
        (on_two, "SecondDevice", "0000:02:00.0"),
        (silent, "NoEvidence", "does not say"),
    ],
)
def test_a_server_that_is_elsewhere_never_gets_traffic(site: Site, log: object, reason: str, words: str) -> None:
    site.operator()
    site.node(devices=[card(0, 16)])
    site.kubelet.behave("gemma", Behaviour(log=log))  # type: ignore[arg-type]
    site.apply("gemma")
    assert words in site.wait_for("Verified", "False", reason)["message"]
    site.wait_for("Available", "False", reason)
    stays(lambda: not any(ready(one) for one in site.pods()), 0.7)
    mark = site.settle()
    stays(lambda: not site.plane.written(mark), 0.5)
    assert site.status()["readyReplicas"] == 0


def loaded(pod: Pod) -> str:
    return honest_log(pod) + "0.00.500.000 I srv  llama_server: model loaded\n"


def test_a_server_is_proven_as_soon_as_it_is_up_and_not_only_when_the_kubelet_says_so(site: Site) -> None:
    site.operator()
    site.node()
    site.kubelet.behave("gemma", Behaviour(log=loaded, up=False))
    site.apply("gemma")
    site.wait_for("Verified", "True", "BuffersOnDevice")
    assert site.condition("Available")["status"] == "False"
    (pod,) = site.pods()
    key = f"{site.namespace}/{pod['metadata']['name']}"
    reads = site.kubelet.log_reads[key]
    site.plane.background.call(site.kubelet.restart(key))
    site.wait_for("Available", "True", "Serving")
    assert reads <= 1 + len(GLANCES)


@pytest.mark.parametrize(
    "log",
    [
        honest_log,
        lambda pod: elsewhere(pod) + "0.00.500.000 I srv  llama_server: model loaded\n",
        lambda pod: "0.00.500.000 I srv  llama_server: model loaded\n",  # noqa: ARG005 as if all before it were lost
    ],
    ids=["not loaded yet", "elsewhere", "says nothing"],
)
def test_before_the_kubelet_says_so_nothing_but_a_full_proof_is_concluded(
    site: Site, log: Callable[[Pod], str]
) -> None:
    site.operator()
    site.node()
    site.kubelet.behave("gemma", Behaviour(log=log, up=False))
    site.apply("gemma")
    pod = eventually(lambda: site.pods()[0])
    key = f"{site.namespace}/{pod['metadata']['name']}"
    eventually(lambda: site.kubelet.log_reads[key] >= len(GLANCES), what="it was looked at")
    stays(lambda: site.condition("Verified")["status"] == "Unknown", 0.5)
    assert [one["metadata"]["uid"] for one in site.pods()] == [pod["metadata"]["uid"]]


def test_a_restarted_container_is_proven_anew(site: Site) -> None:
    site.operator()
    site.node()
    pod = site.serve()
    key = f"{site.namespace}/{pod['metadata']['name']}"
    site.plane.background.call(site.kubelet.restart(key))
    eventually(lambda: site.kubelet.log_reads[key] == 2, what="once for each container")
    site.wait_for("Available", "True", "Serving")
    site.wait_for("Verified", "True", "BuffersOnDevice")
    assert site.pods()[0]["metadata"]["uid"] == pod["metadata"]["uid"]
    site.kubelet.behave("gemma", Behaviour(log=elsewhere))
    site.plane.background.call(site.kubelet.restart(key))
    site.wait_for("Verified", "False", "WrongDevice")
    eventually(lambda: not any(ready(one) for one in site.pods()))


def test_a_server_that_exits_is_told_with_its_last_error(site: Site) -> None:
    site.operator()
    site.node()
    site.kubelet.behave("gemma", Behaviour(up=False))
    site.apply("gemma")
    (pod,) = eventually(lambda: [one for one in site.pods() if one["status"].get("containerStatuses")])
    error = "0.01.000.000 E ggml_backend_cuda_buffer_type_alloc_buffer: 900.00 MiB: cudaMalloc failed: out of memory"
    site.kubelet.behave("gemma", Behaviour(log=lambda _: f"0.00.1 I load\n{error}\n"))
    site.plane.background.call(site.kubelet.crash(f"{site.namespace}/{pod['metadata']['name']}"))
    assert "cudaMalloc failed" in site.wait_for("Available", "False", "OutOfMemory")["message"]
    assert site.reservations(), "its memory stays its own while the kubelet restarts it"


def test_last_words_that_the_kubelet_does_not_have_yet_are_read_later(site: Site) -> None:
    site.operator()
    site.node()
    site.kubelet.behave("gemma", Behaviour(up=False))
    site.apply("gemma")
    (pod,) = eventually(lambda: [one for one in site.pods() if one["status"].get("containerStatuses")])
    answers = ["unable to retrieve container logs for containerd://x\n"] * 2
    words = "0.01.000.000 E llama_model_load: error loading model: no vocabulary\n"
    site.kubelet.behave("gemma", Behaviour(log=lambda _: answers.pop() if answers else words))
    site.plane.background.call(site.kubelet.crash(f"{site.namespace}/{pod['metadata']['name']}"))
    eventually(lambda: "no vocabulary" in site.condition("Available")["message"])
    assert site.condition("Available")["reason"] == "ServerFailed"


def test_a_log_that_cannot_be_read_yet_is_read_later(site: Site) -> None:
    site.operator()
    site.node()
    site.kubelet.behave("gemma", Behaviour(log_errors=1))
    site.apply("gemma")
    site.wait_for("Available", "True", "Serving")
    site.kubelet.behave("other", Behaviour(log_errors=1000))
    site.apply("other")
    site.wait_for("Available", "False", "AwaitingEvidence", "other")
    site.kubelet.behaviours.clear()
    site.wait_for("Available", "True", "Serving", "other")

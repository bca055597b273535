"""A server that takes more than was estimated teaches the next ones: their device is asked for more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.client import eventually
from support.pretend_agent import card
from support.pretend_kubelet import MIB, Behaviour, honest_log, record_of

if TYPE_CHECKING:
    from support.site import Site


def greedy_log(pod: dict[str, Any]) -> str:
    """Give the log of a server whose compute buffer makes its buffers 300 MiB larger than estimated."""
    record = record_of(pod)
    compute = record["device_buffers"] / MIB - record["device_weights"] / MIB - 2 + 300
    return honest_log(pod).replace("compute buffer size =     3.00 MiB", f"compute buffer size = {compute:.2f} MiB")


def test_the_next_server_on_the_device_is_planned_with_what_was_seen(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 16)])
    site.serve("before")
    assert site.gpu()["learned"] == []
    site.kubelet.behave("greedy", Behaviour(log=greedy_log))
    site.serve("greedy")
    (learned,) = eventually(lambda: site.gpu()["learned"])
    assert (learned["backend"], learned["build"]) == ("CUDA", "b11434")
    assert 299 * MIB <= learned["buffersBytes"] <= 301 * MIB
    site.serve("after")
    booked = {pod.rpartition("-")[0].rpartition("-")[0]: size for pod, size in site.reservations().items()}
    assert booked["greedy"] == booked["before"]
    assert booked["after"] - booked["before"] in (256 * MIB, 512 * MIB)
    site.operator(agent_ttl=3)  # another operator reads it from the GPU object
    site.serve("later")
    booked = {pod.rpartition("-")[0].rpartition("-")[0]: size for pod, size in site.reservations().items()}
    assert booked["later"] == booked["after"]
    assert len(site.gpu()["learned"]) == 1

"""A context that the spec leaves open: chosen once on the chosen card, kept by every pod, chosen anew with the spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.client import eventually
from support.harness import MODEL
from support.pretend_agent import card, summary

if TYPE_CHECKING:
    from support.site import Site

TRAINED = 131_072


def node(site: Site, *sizes: float) -> None:
    shape = summary().model_copy(update={"context_train": TRAINED})
    site.node(devices=[card(number, size) for number, size in enumerate(sizes)]).agent.headers[MODEL] = shape


def context_of(site: Site, name: str = "gemma") -> int:
    """Give the context that a deployment serves with, after a check that everything says the same."""
    status = site.status(name)
    length: int = status["context"]["length"]
    for pod in site.pods(name):
        arguments = pod["spec"]["containers"][0]["args"]
        assert arguments[arguments.index("-c") + 1] == str(length)
    assert {one["contextLength"] for one in status["placements"]} == {length}
    booked = [one["bytes"] for one in (site.gpu()["reservations"])]
    assert -(-status["need"]["deviceBytes"] // 2**28) * 2**28 in booked
    return length


def serve(site: Site, context: Any, **spec: Any) -> int:
    site.serve(serving={"contextLength": context}, **spec)
    return context_of(site)


def test_auto_grows_on_its_card_and_a_remade_pod_keeps_it(site: Site) -> None:
    site.operator()
    node(site, 5)
    site.serve("fixed", serving={"contextLength": 4096})
    assert site.status("fixed")["placements"][0]["contextLength"] == 4096
    assert "context" not in site.status("fixed")
    chosen = serve(site, "Auto")
    assert 4096 <= chosen < TRAINED
    message = site.condition("Placed")["message"]
    assert message.endswith(f", with a context of {chosen} tokens")
    site.client.delete(site.path("fixed"))
    eventually(lambda: len(site.reservations()) == 1)
    old = site.pods()[0]
    site.client.delete(site.path(old["metadata"]["name"], "pods"))
    eventually(lambda: [one["metadata"]["uid"] for one in site.pods()] not in ([], [old["metadata"]["uid"]]))
    site.wait_for("Available", "True", "Serving")
    assert context_of(site) == chosen  # although there is room for more now
    site.change("gemma", replicas=0)
    eventually(lambda: not site.all_pods())
    site.change("gemma", replicas=1)
    site.wait_for("Available", "True", "Serving")
    assert context_of(site) == chosen
    site.change("gemma", serving={"ubatch": 256})
    site.wait_for("Progressing", "False", "Complete")
    assert context_of(site) > chosen


def test_a_range_takes_what_it_prefers_or_less(site: Site) -> None:
    site.operator()
    node(site, 5)
    assert serve(site, {"min": 2048, "preferred": 20_000}) == 20_224
    site.change("gemma", serving={"contextLength": {"min": 2048, "preferred": 999_999}})
    site.wait_for("Progressing", "False", "Complete")
    assert 20_224 < context_of(site) < TRAINED  # it was told that its predecessor's room is its own
    site.change("gemma", serving={"contextLength": {"min": 2_000_000, "preferred": 2_000_000}})
    message = site.wait_for("Placed", "False", "InsufficientMemory")["message"]
    assert "too small" in message
    assert len(site.pods()) == 1  # what runs is kept


def test_all_replicas_get_the_same_and_leave_room_for_each_other(site: Site) -> None:
    site.operator()
    node(site, 6)
    site.apply(serving={"contextLength": "Auto"}, replicas=2)
    site.wait_for("Available", "True", "Serving")
    both = context_of(site)
    assert len(site.reservations()) == 2
    site.change("gemma", replicas=3)
    message = site.wait_for("Placed", "False", "WaitingForDevice")["message"]
    assert f"a context of {both} tokens was chosen and is kept; paddock restart gemma chooses anew" in message
    assert context_of(site) == both


def test_an_operator_that_was_away_keeps_what_was_chosen(site: Site) -> None:
    site.operator()
    node(site, 5)
    chosen = serve(site, "Auto")
    site.plane.stop_operators()
    site.client.do("PATCH", site.path("gemma") + "/status", {"status": {"context": None}})
    site.operator()
    eventually(lambda: context_of(site) == chosen)


def test_a_min_above_preferred_is_told(site: Site) -> None:
    site.operator()
    node(site, 5)
    site.apply(serving={"contextLength": {"min": 9, "preferred": 8}})
    message = site.wait_for("Accepted", "False", "InvalidSpec")["message"]
    assert "spec.serving.contextLength: min is 9, more than preferred, which is 8" in message


def test_on_the_cpu_auto_takes_what_the_limit_has_room_for(site: Site) -> None:
    site.operator()
    node(site, 5)

    def chosen(**resources: Any) -> int:
        site.serve(
            serving={"contextLength": "Auto", "gpuLayers": 0},
            placement={"allowCPU": True},
            server={"resources": resources},
        )
        length: int = site.status("gemma")["context"]["length"]
        site.client.delete(site.path("gemma"))
        eventually(lambda: not site.all_pods())
        return length

    small, large = chosen(limits={"memory": "2Gi"}), chosen(limits={"memory": "3Gi"})
    assert 4096 < small < large < TRAINED
    assert chosen() == 4096

"""Which card a deployment gets, and what a change of its wishes moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.pretend_agent import card

if TYPE_CHECKING:
    from support.site import Site

SMALL, LARGE = "node1-0000-01-00-0", "node1-0000-02-00-0"


def gpus_of(site: Site, name: str = "gemma") -> list[str]:
    return [placed["devices"][0]["gpu"] for placed in site.status(name)["placements"]]


def test_wishes_move_nothing_and_a_selector_moves_what_it_excludes(site: Site) -> None:
    site.operator()
    site.node(devices=[card(0, 6), card(1, 16)])
    old = site.serve(placement={"policy": "BestFit"})
    assert gpus_of(site) == [SMALL]
    liked = [{"weight": 9, "selector": {"minMemory": "12Gi"}}]
    site.change("gemma", placement={"policy": "MostMemory", "preferences": liked, "replicaSpread": "Zone"})
    site.wait_for("Progressing", "False", "Complete")
    assert [pod["metadata"]["uid"] for pod in site.pods()] == [old["metadata"]["uid"]]
    site.change("gemma", replicas=2)
    site.wait_for("Available", "True", "Serving")
    assert sorted(gpus_of(site)) == [SMALL, LARGE]
    site.change("gemma", replicas=1)
    site.wait_for("Progressing", "False", "Complete")
    site.change("gemma", placement={"selector": {"minMemory": "12Gi"}})
    site.wait_for("Progressing", "False", "Complete")
    assert gpus_of(site) == [LARGE]

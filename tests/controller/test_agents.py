"""Whom the operator follows: agents that are gone are left for good, whichever news of them comes last."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from paddock.controller.agents import Agents
from paddock.controller.credentials import Credentials

if TYPE_CHECKING:
    from paddock.api.report import NodeReport


def pod(name: str, address: str = "127.0.0.1") -> dict[str, Any]:
    meta = {"namespace": "paddock-system", "name": name, "uid": f"uid-of-{name}"}
    return {"metadata": meta, "spec": {"nodeName": "node1"}, "status": {"podIP": address, "phase": "Running"}}


async def nothing(*_: str | NodeReport) -> None:
    """Nobody listens."""


async def follow(*events: tuple[str | None, dict[str, Any]]) -> list[str]:
    """Give the pods that are followed after these events."""
    agents = Agents(Credentials("", "t"), 1, 1.0, nothing, nothing)
    for type_, body in events:
        agents.apply(type_, body)
    found = agents.pods()
    await agents.close()
    return found


def test_a_list_older_than_the_end_of_an_agent_does_not_bring_it_back() -> None:
    """The list was asked for before the pod was deleted, and answered after the news of it."""
    old, new = pod("old"), pod("new", "127.0.0.2")
    events = (("ADDED", old), ("DELETED", old), ("ADDED", new), (None, old), ("MODIFIED", old))
    assert asyncio.run(follow(*events)) == ["paddock-system/new"]


def test_another_pod_of_the_same_name_is_followed() -> None:
    again = pod("agent")
    again["metadata"] = again["metadata"] | {"uid": "another"}
    events = (("ADDED", pod("agent")), ("DELETED", pod("agent")), ("ADDED", again))
    assert asyncio.run(follow(*events)) == ["paddock-system/agent"]

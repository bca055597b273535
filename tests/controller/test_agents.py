"""Whom the operator follows: agents that are gone are left for good, whichever news of them comes last."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from paddock.controller.agents import Agents
from paddock.controller.credentials import Credentials
from support.agent_credentials import TOKEN, make_certificate
from support.harness import free_port
from support.pretend_agent import PretendAgent, card

if TYPE_CHECKING:
    from pathlib import Path

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


def test_a_pod_without_the_key_of_the_secret_is_not_believed(tmp_path: Path) -> None:
    """One that answers like an agent, with a certificate of its own; then one with the right one."""

    async def heard(folder: Path) -> list[str]:
        agent = PretendAgent("node1", "127.0.0.1", free_port(), folder)
        agent.report([card(0, 16)])
        await agent.start()
        told: asyncio.Queue[str] = asyncio.Queue()

        async def report(node: str, _: NodeReport) -> None:
            told.put_nowait(f"report of {node}")

        async def silent(node: str, why: str) -> None:
            told.put_nowait(f"{node}: {why}")

        class Listener(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                told.put_nowait(record.getMessage())

        listener = Listener()
        logging.getLogger("paddock.agents").addHandler(listener)
        authority = (tmp_path / "real" / "tls.crt").read_text()
        agents = Agents(Credentials(authority, TOKEN), agent._port, 1.0, report, silent)
        agents.nodes_known = {"node1"}
        agents.apply("ADDED", pod("a"))
        try:
            async with asyncio.timeout(15):
                first = await told.get()
            return [first, *(["it is believed"] if agents.report("node1") is not None else [])]
        finally:
            logging.getLogger("paddock.agents").removeHandler(listener)
            await agents.close()
            await agent.stop()

    for name in ("real", "forged"):
        (tmp_path / name).mkdir()
        make_certificate(tmp_path / name)
        (tmp_path / name / "token").write_text(TOKEN)
    (forged,) = asyncio.run(heard(tmp_path / "forged"))
    assert "CERTIFICATE_VERIFY_FAILED" in forged
    assert asyncio.run(heard(tmp_path / "real")) == ["report of node1", "it is believed"]


def test_with_another_key_an_agent_is_heard_again(tmp_path: Path) -> None:
    """The Secret was made anew, and the agent has the new one already."""

    async def heard() -> str:
        agent = PretendAgent("node1", "127.0.0.1", free_port(), tmp_path)
        agent.report([card(0, 16)])
        await agent.start()
        refused, told = asyncio.Event(), asyncio.Queue[str]()

        async def report(node: str, _: NodeReport) -> None:
            told.put_nowait(node)

        class Listener(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if " 401" in record.getMessage():
                    refused.set()

        listener = Listener()
        logging.getLogger("paddock.agents").addHandler(listener)
        authority = (tmp_path / "tls.crt").read_text()
        agents = Agents(Credentials(authority, "the key before"), agent._port, 60.0, report, nothing)
        agents.apply("ADDED", pod("a"))
        try:
            async with asyncio.timeout(15):
                await refused.wait()
                await agents.trust(Credentials(authority, TOKEN))
                return await told.get()
        finally:
            logging.getLogger("paddock.agents").removeHandler(listener)
            await agents.close()
            await agent.stop()

    make_certificate(tmp_path)
    (tmp_path / "token").write_text(TOKEN)
    assert asyncio.run(heard()) == "node1"

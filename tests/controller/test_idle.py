"""Who answers nobody goes first: servers are asked, and what they do not say counts as busy."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from paddock.controller.asking import MOST_ASKED, idle_among
from paddock.core.pod import PORT
from support.builders import deployment, replica
from support.pretend_agent import card

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from paddock.core.replica import Replica
    from support.site import Site

IDLE = "llamacpp:tokens_predicted_total 12\nllamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"
ANSWERS = {
    "127.9.9.1": IDLE,
    "127.9.9.2": IDLE.replace("processing 0", "processing 1"),
    "127.9.9.3": IDLE.replace("deferred 0", "deferred 2"),
    "127.9.9.4": "not what llama-server says",
    "127.9.9.5": None,
    "127.9.9.6": "hangs",
}
"""By address; None: it wants a key."""


@asynccontextmanager
async def servers(answers: dict[str, str | None]) -> AsyncIterator[list[str]]:
    """Serve /metrics at these addresses; gives who was asked."""
    asked: list[str] = []

    async def metrics(request: web.Request) -> web.Response:
        host = request.host.partition(":")[0]
        asked.append(host)
        text = answers[host]
        if text == "hangs":
            await asyncio.sleep(30)
        return web.Response(text=text or "", status=200 if text is not None else 401)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        for address in answers:
            await web.TCPSite(runner, address, PORT).start()
        yield asked
    finally:
        await runner.cleanup()


def at(number: int, address: str) -> Replica:
    return replica(deployment(), number, name=f"gemma-{number}", address=address)


async def test_only_who_says_that_it_has_no_request_is_idle() -> None:
    async with servers(ANSWERS) as asked:
        some = [at(number, address) for number, address in enumerate([*ANSWERS, "127.9.9.7", "", "no address"])]
        found = await idle_among(some, seconds=0.5)
        assert found == {some[0].key}, "those that hang, or are not there, keep nobody from being believed"
        assert sorted(asked) == sorted(ANSWERS)


async def test_no_more_are_asked_than_a_search_waits_for() -> None:
    async with servers({"127.9.9.1": IDLE}) as asked:
        many = [at(number, "127.9.9.1") for number in range(MOST_ASKED + 5)]
        assert len(await idle_among(many, seconds=10)) == len(asked) == MOST_ASKED


@pytest.mark.parametrize("idle", ["first", "second"])
async def test_of_two_the_one_that_answers_nobody_is_evicted(site: Site, idle: str) -> None:
    def begin() -> dict[str, str | None]:
        site.operator()
        site.rule(disruption={"eviction": True, "minInterval": "0s"})
        addresses: dict[str, str | None] = {}
        for number, name in enumerate(("first", "second"), start=1):
            node = site.node(f"node{number}", devices=[card(0, 3)])
            site.serve(name)
            addresses[node.address] = IDLE if name == idle else IDLE.replace("processing 0", "processing 1")
        return addresses

    def end() -> None:
        site.apply("high", priority=5)
        site.wait_for("Placed", "False", "Displaced", idle)
        site.wait_for("Available", "True", "Serving", "high")
        (busy,) = {"first", "second"} - {idle}
        assert site.condition("Available", busy)["status"] == "True"

    async with servers(await asyncio.to_thread(begin)) as asked:
        await asyncio.to_thread(end)
        assert len(set(asked)) == 2

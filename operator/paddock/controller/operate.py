"""The operator process: leadership, kopf, and a clean end."""

import asyncio
import contextlib
import gc
import logging

from paddock import __version__
from paddock.controller.cluster import Cluster, ClusterError
from paddock.controller.leader import Leader
from paddock.controller.serve import Face, import_kopf, listen, serve, stop_on_signals
from paddock.controller.settings import Settings
from paddock.logs import set_up_logging

log = logging.getLogger("paddock")
FIRST_TRY = 0.2
"""Seconds in which a Lease that nobody holds is usually taken."""


async def nothing() -> None:
    """Without election there is no Lease to give back."""


async def operate(settings: Settings) -> int:
    """Run until SIGTERM or loss of leadership; gives the exit code."""
    stop = asyncio.Event()
    stop_on_signals(stop)
    try:
        cluster = await Cluster.connect()
    except ClusterError as error:
        log.error("%s", error)  # noqa: TRY400 one line is enough for a user
        return 1
    face = Face()
    async with cluster:
        try:
            server = await listen(settings, face)
        except OSError as error:
            log.error("cannot listen on %s: %s", settings.listen, error)  # noqa: TRY400 one line is enough for a user
            return 1
        if not settings.leader_election:
            return await serve(cluster, settings, face, stop, asyncio.Event(), nothing)
        leader = Leader(cluster, settings.namespace, settings.pod_name, settings.lease_seconds)
        either = waiting, stopping = asyncio.create_task(leader.acquire()), asyncio.create_task(stop.wait())
        await asyncio.wait(either, timeout=FIRST_TRY, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done() and not stopping.done():
            gc.enable()
            await import_kopf()  # So that a standby that takes over needs no more than a list of each kind.
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            return 0
        stopping.cancel()
        await waiting  # Whatever ended it otherwise ends this process: nothing is done without the Lease.
        log.info("leading as %s", settings.pod_name)
        holding = asyncio.create_task(leader.hold())

        async def stopped() -> None:
            holding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await holding
            if not leader.lost.is_set():
                await leader.release()

        try:
            code = await serve(cluster, settings, face, stop, leader.lost, stopped)
        finally:
            holding.cancel()
        if server is not None:
            server.close()
        return code


def run(settings: Settings) -> int:
    """Run the operator; gives the exit code."""
    gc.disable()  # Until `collect_later`: what is made at the start stays.
    set_up_logging(settings.log_format, settings.log_level)
    log.info("paddock-operator %s", __version__)
    return asyncio.run(operate(settings))

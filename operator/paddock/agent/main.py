"""The program `paddock-agent`: one on each node, tells the operator what devices and models the node has."""

import argparse
import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from paddock import __version__
from paddock.agent.board import Board
from paddock.agent.credentials import Credentials, CredentialsError
from paddock.agent.headers import read_header
from paddock.agent.lister import Lister
from paddock.agent.podresources import follow, relay
from paddock.agent.server import Api, HeaderPool, start_server
from paddock.agent.settings import Settings, SettingsError, load_settings
from paddock.agent.watcher import Watcher
from paddock.logs import set_up_logging

_log = logging.getLogger(__name__)

_WRONG_SETTING = 2
_CANNOT_START = 1
_M_MMAP_THRESHOLD = -3
"""Number of the option in malloc.h."""
_LARGE = 128 * 1024
"""Bytes from which a buffer is large."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent until SIGTERM; gives the exit code: 1 when it cannot start, 2 when a setting is wrong."""
    parser = argparse.ArgumentParser(prog="paddock-agent", description="Paddock's node agent. Settings: PADDOCK_...")
    parser.add_argument("--version", action="version", version=f"paddock-agent {__version__}")
    parser.add_argument("--once", action="store_true", help="list the devices, print the report as JSON and end")
    parser.add_argument("--device-plugin", action="store_true", help="be the device plugin of an agent beside it")
    parser.add_argument("--relay", nargs=2, type=Path, metavar=("FROM", "TO"), help="pass a socket of the kubelet on")
    arguments = parser.parse_args(argv)
    if arguments.relay:
        asyncio.run(_until_signal([relay(*arguments.relay)]))
        return 0
    try:
        settings = load_settings(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"paddock-agent: {error}\n")
        return _WRONG_SETTING
    set_up_logging(settings.log_format, settings.log_level)
    if arguments.once:
        asyncio.run(_print_report(settings))
        return 0
    if arguments.device_plugin and settings.plugin_folder is None:
        sys.stderr.write("paddock-agent: --device-plugin needs PADDOCK_PLUGIN_FOLDER\n")
        return _WRONG_SETTING
    _map_large_buffers()
    try:
        asyncio.run(_offer(settings) if arguments.device_plugin else _serve(settings))
    except (CredentialsError, OSError) as error:
        _log.error("cannot start: %s", error)
        return _CANNOT_START
    return 0


def _map_large_buffers() -> None:
    """Let the C library give each large buffer back when it is freed.

    By default it keeps them once it has seen a few, and every header that was read leaves megabytes behind.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # the GNU C library has it, others do not
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGE)


async def _print_report(settings: Settings) -> None:
    board = Board()
    await Lister(settings, board).list_all()
    if board.posting is not None:
        sys.stdout.write(json.dumps(board.posting.report.to_dict(), indent=2) + "\n")


async def _offer(settings: Settings) -> None:
    from paddock.agent.plugin import run  # noqa: PLC0415 - without a plugin nobody has to wait for gRPC

    _log.info("paddock-agent %s is a device plugin", __version__)
    await _until_signal([run(settings)])


async def _serve(settings: Settings) -> None:
    credentials = Credentials(settings.credentials_folder)
    board = Board()
    lister = Lister(settings, board)
    cache = (str(settings.cache_folder),) if settings.cache_folder is not None else ()
    pool = HeaderPool(read_header, (*settings.model_roots, *cache), settings.header_timeout)
    api = Api(board, lister.statistics, credentials, pool, metrics_token=settings.metrics_token)
    runner, port = await start_server(api, settings, credentials)
    _log.info("paddock-agent %s listens on port %d", __version__, port)
    try:
        jobs = [lister.run(), Watcher(settings, lister.take).run(), lister.follow_plugin(), lister.follow_cache()]
        if settings.pod_resources is not None:
            jobs.append(follow(settings.pod_resources, lister.take_given))
        await _until_signal([*jobs, credentials.follow_certificate()])
    finally:
        _log.info("stops")
        board.close()
        await runner.cleanup()


async def _until_signal(jobs: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run the jobs until SIGTERM or SIGINT; one that ends by an error ends the agent, to be started afresh."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    tasks = [asyncio.create_task(job) for job in jobs]
    waiter = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait([*tasks, waiter], return_when=asyncio.FIRST_COMPLETED)
    for task in [*tasks, waiter]:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            if task not in done:
                await task
    for task in done - {waiter}:
        task.result()


if __name__ == "__main__":
    sys.exit(main())

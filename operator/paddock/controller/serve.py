"""Act as the leader, and a small server for /healthz and /metrics beside it."""

import asyncio
import contextlib
import gc
import importlib
import logging
import resource
import signal
import time
from collections.abc import Awaitable, Callable

from paddock.controller.cluster import Cluster
from paddock.controller.controller import Controller
from paddock.controller.settings import Settings

log = logging.getLogger("paddock.serve")
UNCOLLECTED = 10.0
"""Seconds after the start in which no garbage is collected at most."""
STALE = 3.0
"""Without a successful resync for this many resync intervals, /healthz fails."""


class Face:
    """What the process shows of itself: alive as a standby, too; figures once it acts."""

    controller: Controller | None = None

    def respond(self, path: str) -> tuple[str, str, str]:
        """Give status line, content type and body for a path."""
        match path.partition("?")[0]:
            case "/healthz":
                return health(self.controller) if self.controller else ("200 OK", "text/plain", "standing by\n")
            case "/metrics":
                text = metrics(self.controller) if self.controller else _process()
                return "200 OK", "text/plain; version=0.0.4", text
            case _:
                return "404 Not Found", "text/plain", "paths: /healthz /metrics\n"


async def import_kopf() -> None:
    """Import kopf, which takes about as long as everything else at a start, without holding up anybody."""
    await asyncio.to_thread(importlib.import_module, "paddock.controller.handlers")


async def serve(
    cluster: Cluster,
    settings: Settings,
    face: Face,
    stop: asyncio.Event,
    lost: asyncio.Event,
    stopped: Callable[[], Awaitable[None]],
) -> int:
    """Act as the leader until `stop` or `lost` is set; `stopped` is called as soon as nothing is done any more.

    Everything is read and decided upon before kopf is there; its watches begin with lists of their own. At the end kopf
    may take seconds, for which no successor should have to wait.
    """
    controller = face.controller = Controller(cluster, settings)
    end = asyncio.Event()
    watchers = [asyncio.create_task(_first(end, stop, lost))]
    ending = asyncio.create_task(end.wait())
    acting = asyncio.create_task(_act(controller, end, stop))
    try:
        await asyncio.wait((acting, ending), return_when=asyncio.FIRST_COMPLETED)
        await controller.stop()
        await stopped()
        if controller.synced or acting.done():
            await acting
    finally:
        acting.cancel()
        for task in (ending, *watchers):
            task.cancel()
        await controller.stop()
    return 1 if lost.is_set() or not end.is_set() else 0


def collect_later() -> Callable[[], None]:
    """Collect no garbage until what is given is called, or for a while.

    What is read at the start stays: going through all of it again and again takes a fifth of the time to the first
    decision. An API server that cannot be reached for long is no reason to go on without; nor is kopf, whose lists of
    everything leave circles behind.
    """
    gc.disable()
    late = asyncio.get_running_loop().call_later(UNCOLLECTED, gc.enable)

    def collect() -> None:
        late.cancel()
        gc.freeze()
        gc.enable()

    return collect


async def _act(controller: Controller, end: asyncio.Event, stop: asyncio.Event) -> None:
    collect = collect_later()
    await controller.start()
    collect()
    await import_kopf()
    from paddock.controller.handlers import inform  # noqa: PLC0415 imported above, in its own time

    await inform(controller, end, lambda: stop_on_signals(stop))


def stop_on_signals(stop: asyncio.Event) -> None:
    """Set `stop` on SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


async def _first(end: asyncio.Event, *flags: asyncio.Event) -> None:
    waiting = [asyncio.create_task(flag.wait()) for flag in flags]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
    end.set()


async def listen(settings: Settings, face: Face) -> asyncio.Server | None:
    """Open the small server; None when it is switched off. Raises OSError when the address cannot be had."""
    if not settings.listen:
        return None
    host, _, port = settings.listen.rpartition(":")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(5):
                request = await reader.readuntil(b"\r\n\r\n")
            status, kind, text = face.respond(request.split(b" ", 2)[1].decode(errors="replace"))
            body = text.encode()
            head = (
                f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, host.strip("[]") or None, int(port), limit=16 * 1024)


def health(controller: Controller) -> tuple[str, str, str]:
    """Give 200 while lists succeed; a watch that froze and a list that fails are told apart by nobody but this."""
    age = time.monotonic() - controller.synced if controller.synced else time.monotonic() - controller.started
    limit = STALE * controller.settings.resync_seconds
    if age > limit:
        return "503 Service Unavailable", "text/plain", f"no successful resync for {age:.0f} s\n"
    return "200 OK", "text/plain", "ok\n"


def metrics(controller: Controller) -> str:
    """Give the metrics in Prometheus' text form."""
    lines = [
        _metric("paddock_deployments", "gauge", "ModelDeployments known", {"": len(controller.world.deployments)}),
        _metric("paddock_pods", "gauge", "server pods known", {"": len(controller.world.replicas)}),
        _metric("paddock_waiting", "gauge", "deployments without a device", {"": len(controller.world.waiting)}),
        _metric("paddock_queue", "gauge", "keys waiting or worked on", {"": len(controller.queue)}),
        _metric("paddock_reconciles_total", "counter", "looks taken", {"": controller.reconciles}),
        _metric(
            "paddock_reconcile_errors_total",
            "counter",
            "looks that failed and are repeated",
            {f'{{reason="{reason}"}}': count for reason, count in sorted(controller.errors.items())},
        ),
        _metric(
            "paddock_api_requests_total",
            "counter",
            "requests to the API server",
            {f'{{request="{call}"}}': count for call, count in sorted(controller.cluster.calls.items())},
        ),
        _metric("paddock_gpu_reserved_bytes", "gauge", "bytes reserved by GPU", _by_gpu(controller, reserved=True)),
        _metric("paddock_gpu_total_bytes", "gauge", "bytes in all by GPU", _by_gpu(controller, reserved=False)),
        _process(),
    ]
    return "".join(lines)


def _process() -> str:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return _metric("process_cpu_seconds_total", "counter", "CPU time", {"": usage.ru_utime + usage.ru_stime}) + _metric(
        "process_resident_memory_bytes", "gauge", "resident memory", {"": _resident()}
    )


def _by_gpu(controller: Controller, *, reserved: bool) -> dict[str, int]:
    fleet = controller.ledger.fleet(controller.world.nodes)
    return {
        f'{{gpu="{device.gpu}",node="{device.node}"}}': device.reserved if reserved else device.total or 0
        for device in fleet.devices
    }


def _metric(name: str, kind: str, text: str, values: dict[str, int] | dict[str, float]) -> str:
    samples = "".join(f"{name}{labels} {value}\n" for labels, value in values.items())
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{samples}"


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 no need of pathlib for one number
        return int(file.read().split()[1]) * resource.getpagesize()

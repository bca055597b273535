"""The agent's HTTPS server: devices, model headers, health and metrics."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web, web_response
from aiohttp.typedefs import Handler

from paddock.agent.board import Board
from paddock.agent.credentials import Credentials
from paddock.agent.lister import Statistics
from paddock.agent.metrics import CONTENT_TYPE, render_metrics
from paddock.agent.settings import Settings
from paddock.api.report import HeaderAnswer, HeaderFault

_log = logging.getLogger(__name__)

LONGEST_WAIT = 60.0
"""Seconds that a request for devices may wait for a change."""
FIRST_LISTING_WAIT = 5.0
"""Seconds that even a request without `wait` waits while no listing has ended yet."""
MOST_POLLS = 64
"""Requests that may wait at once; the operator needs one, two while its leader changes."""
MOST_HEADER_READS = 2
MOST_HEADER_QUEUE = 64
_LONGEST_PATH = 4096
_HEAD_LIMIT = 8190
"""Bytes of a request line or of one header; also of a query, since that is in the line."""
_STOP_TIME = 5.0

HeaderReader = Callable[[str, Sequence[str]], HeaderAnswer]
_SOFTWARE = "paddock-agent"


class HeaderPool:
    """Reads headers in a few threads, so that a hanging file system blocks neither the server nor its end."""

    def __init__(self, reader: HeaderReader, roots: Sequence[str], limit: float) -> None:
        self._reader = reader
        self._roots = roots
        self._limit = limit
        self._free = asyncio.Semaphore(MOST_HEADER_READS)
        self._queued = 0

    async def read(self, path: str) -> HeaderAnswer:
        """Read one header; a fault says so when the file system or the queue is too slow."""
        if self._queued >= MOST_HEADER_QUEUE:
            return _failed("too many headers are being read at once; try again")
        self._queued += 1
        try:
            async with asyncio.timeout(self._limit):
                await self._free.acquire()
                return await self._start(path)
        except TimeoutError:
            return _failed(f"reading the header took longer than {self._limit:g} s; does the file system hang?")
        finally:
            self._queued -= 1

    def _start(self, path: str) -> Awaitable[HeaderAnswer]:
        """Read in a daemon thread, which unlike an executor's does not keep the process from ending."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[HeaderAnswer] = loop.create_future()

        def finish(answer: HeaderAnswer) -> None:
            self._free.release()  # not at the time limit: a thread that hangs still takes its place
            if not answered.done():
                answered.set_result(answer)

        def work() -> None:
            try:
                answer = self._reader(path, self._roots)
            except Exception:  # noqa: BLE001 - the request must get its answer
                _log.exception("reading a header failed unexpectedly")
                answer = _failed("the agent failed unexpectedly; its log has the details")
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(finish, answer)

        threading.Thread(target=work, name="header", daemon=True).start()
        return answered


class Api:
    """The handlers and what they share."""

    def __init__(
        self,
        board: Board,
        statistics: Statistics,
        credentials: Credentials,
        pool: HeaderPool,
        *,
        metrics_token: bool = True,
    ) -> None:
        self._board = board
        self._statistics = statistics
        self._credentials = credentials
        self._pool = pool
        self._open = {"/healthz"} if metrics_token else {"/healthz", "/metrics"}
        self.long_polls = 0

    def application(self) -> web.Application:
        """Build the aiohttp application."""
        app = web.Application(middlewares=[_in_json, self._guard], client_max_size=1)
        app.router.add_get("/v1/devices", self.devices)
        app.router.add_get("/v1/header", self.header)
        app.router.add_get("/healthz", self.health)
        app.router.add_get("/metrics", self.metrics)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse whoever lacks the token, before anything else is looked at, and every body."""
        if request.path not in self._open and not self._credentials.accepts(request.headers.get("Authorization")):
            raise web.HTTPUnauthorized(
                headers={"WWW-Authenticate": "Bearer"}, text="the bearer token is not the agent's"
            )
        if request.can_read_body:
            raise web.HTTPRequestEntityTooLarge(max_size=0, actual_size=1, text="a request has no body here")
        return await handler(request)

    async def devices(self, request: web.Request) -> web.Response:
        """Give the report; with If-None-Match and `?wait=SECONDS`, as soon as it is another one."""
        known = _read_etags(request.headers.get("If-None-Match", ""))
        seconds = _read_wait(request.query.get("wait", "0"))
        if self._board.posting is None:
            seconds = max(seconds, FIRST_LISTING_WAIT)
        if self.long_polls >= MOST_POLLS:
            raise web.HTTPServiceUnavailable(headers={"Retry-After": "5"}, text="too many requests wait already")
        self.long_polls += 1
        try:
            posting = await self._board.wait(known, seconds)
        finally:
            self.long_polls -= 1
        if posting is None:
            raise web.HTTPServiceUnavailable(headers={"Retry-After": "1"}, text="the first listing has not ended yet")
        headers = {"ETag": posting.etag, "Cache-Control": "no-cache"}
        if posting.etag in known or "*" in known:
            return web.Response(status=304, headers=headers)
        return web.Response(body=posting.body, content_type="application/json", headers=headers)

    async def header(self, request: web.Request) -> web.Response:
        """Give the summary of a model's header, or the fault that says why there is none."""
        path = request.query.get("path", "")
        if not path.startswith("/") or "\0" in path or len(path.encode(errors="replace")) > _LONGEST_PATH:
            raise web.HTTPBadRequest(text="?path= must be an absolute path of at most 4096 bytes")
        answer = await self._pool.read(path)
        return web.json_response(answer.to_dict())

    async def health(self, _request: web.Request) -> web.Response:
        """Say that the event loop runs; what fails on the node is in the report, not here."""
        return web.json_response({"status": "ok"})

    async def metrics(self, _request: web.Request) -> web.Response:
        """Give the metrics."""
        report = self._board.posting.report if self._board.posting else None
        text = render_metrics(report, self._statistics, self.long_polls)
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})


@web.middleware
async def _in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer in JSON where aiohttp would answer in its own words."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        headers = {k: v for k, v in error.headers.items() if k in ("Allow", "Retry-After", "WWW-Authenticate")}
        text = error.text if error.text and not error.text.startswith(f"{error.status}:") else error.reason
        return web.json_response({"error": text}, status=error.status, headers=headers)
    except Exception:  # noqa: BLE001 - aiohttp's own answer would not be JSON
        _log.exception("a request failed unexpectedly")
        return web.json_response({"error": "the agent failed; its log has the details"}, status=500)


def _read_etags(header: str) -> frozenset[str]:
    return frozenset(part.strip().removeprefix("W/") for part in header.split(",") if part.strip())


def _read_wait(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:  # not a number is refused, too
        raise web.HTTPBadRequest(text="?wait= must be a number of seconds")
    return min(seconds, LONGEST_WAIT)


def _failed(message: str) -> HeaderAnswer:
    return HeaderAnswer(fault=HeaderFault(code="InspectionFailed", message=message))


async def start_server(api: Api, settings: Settings, credentials: Credentials) -> tuple[web.AppRunner, int]:
    """Listen; gives the runner, whose cleanup() stops it, and the port. Raises OSError when it cannot listen."""
    # also aiohttp's own answers to broken requests must keep its version quiet
    vars(web_response)["SERVER_SOFTWARE"] = _SOFTWARE
    runner = web.AppRunner(
        api.application(),
        access_log=None,
        keepalive_timeout=LONGEST_WAIT + 15,
        shutdown_timeout=_STOP_TIME,
        max_line_size=_HEAD_LIMIT,
        max_field_size=_HEAD_LIMIT,
        handler_cancellation=True,
    )
    await runner.setup()
    site = web.TCPSite(runner, settings.host, settings.port, ssl_context=credentials.context)
    try:
        await site.start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, runner.addresses[0][1]

"""gRPC with the kubelet over its sockets: the only module that knows grpc."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

# Before the import: it tells of every connection that ends otherwise, and a kubelet's ends are none of our troubles.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc
from grpc import aio

from paddock.agent.wire import Message, WireError, decode, encode

# The name that a socket gives is no host name, and the kubelet's server refuses it.
_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", 16 * 1024 * 1024))

M = TypeVar("M", bound=Message)
Unary = Callable[[Any], Awaitable[Message]]
Stream = Callable[[Any], AsyncGenerator[Message, None]]


class KubeletError(Exception):
    """The kubelet cannot be reached, or refuses."""


class Unavailable(Exception):  # noqa: N818 an answer, no fault of the program
    """Raised by who answers a call: what is asked for cannot be had now."""


async def call(socket: Path, method: str, request: Message, answer: type[M], seconds: float = 10.0) -> M:
    """Make one call; raises KubeletError."""
    try:
        async with aio.insecure_channel(f"unix:{socket}", options=_OPTIONS) as channel:
            ask = channel.unary_unary(method, request_serializer=encode, response_deserializer=partial(decode, answer))
            found: M = await ask(request, timeout=seconds)
            return found
    except aio.AioRpcError as error:
        raise KubeletError(f"{error.code().name}: {error.details()}") from error
    except WireError as error:
        raise KubeletError(f"the answer cannot be read: {error}") from error


class Server:
    """Answers calls on a socket of its own."""

    def __init__(self, socket: Path, service: str) -> None:
        self._socket, self._service = socket, service
        self._handlers: dict[str, Any] = {}
        self._server: Any = None

    def unary(self, name: str, request: type[Message], answer: Unary) -> None:
        """Have calls of one answer made by this; it may raise Unavailable."""

        async def handle(asked: Message, context: Any) -> Message:
            try:
                return await answer(asked)
            except Unavailable as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
                raise

        self._handlers[name] = grpc.unary_unary_rpc_method_handler(handle, partial(decode, request), encode)

    def stream(self, name: str, request: type[Message], answers: Stream) -> None:
        """Have calls of many answers made by this."""

        async def handle(asked: Message, _context: Any) -> AsyncIterator[Message]:
            async with aclosing(answers(asked)) as every:
                async for one in every:
                    yield one

        self._handlers[name] = grpc.unary_stream_rpc_method_handler(handle, partial(decode, request), encode)

    async def start(self) -> None:
        """Listen; raises OSError."""
        self._socket.unlink(missing_ok=True)
        self._server = aio.server()
        handlers: Mapping[str, Any] = self._handlers
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self._service, handlers),))
        try:
            self._server.add_insecure_port(f"unix:{self._socket}")
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._socket}: {error}") from error
        await self._server.start()

    async def stop(self) -> None:
        """End all calls."""
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

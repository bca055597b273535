"""The options that every command shares, and what they lead to: a connection, a namespace, a screen."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Concatenate, ParamSpec

import typer

from paddock.cli.access import Api, Connect, connect
from paddock.cli.kubeconfig import namespace_of

if TYPE_CHECKING:
    from paddock.cli.screen import Screen

P = ParamSpec("P")


def _clock() -> datetime:
    return datetime.now(UTC)


def _screen() -> "Screen":
    from paddock.cli.screen import Screen  # noqa: PLC0415 start-up time

    return Screen.of_process()


@dataclass(frozen=True)
class Environment:
    """What commands take from outside."""

    connect: Connect = connect
    namespace_of: Callable[[str | None, str | None], str] = namespace_of
    clock: Callable[[], datetime] = _clock
    screen: Callable[[], "Screen"] = _screen


@dataclass(frozen=True)
class Session:
    """An open connection and where output goes."""

    api: Api
    namespace: str
    screen: "Screen"
    now: Callable[[], datetime]


@dataclass(frozen=True)
class Target:
    """Which cluster and namespace a command is about."""

    environment: Environment
    namespace: str | None
    context: str | None
    kubeconfig: str | None

    def run(self, work: Callable[[Session], Awaitable[None]]) -> None:
        """Connect and do the work."""
        import asyncio  # noqa: PLC0415 start-up time

        asyncio.run(self._run(work))

    async def _run(self, work: Callable[[Session], Awaitable[None]]) -> None:
        found = self.environment.namespace_of(self.kubeconfig, self.context)
        async with self.environment.connect(self.kubeconfig, self.context) as api:
            session = Session(api, self.namespace or found, self.environment.screen(), self.environment.clock)
            await work(session)


_PANEL = "Which cluster"
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n", metavar="NAME", help="Namespace; by default the context's.", rich_help_panel=_PANEL
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="Context of the kubeconfig; by default the current one.",
        rich_help_panel=_PANEL,
    ),
]
Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="Kubeconfig file; by default $KUBECONFIG, then ~/.kube/config.",
        rich_help_panel=_PANEL,
    ),
]
_SHARED = (("namespace", Namespace), ("context", Context), ("kubeconfig", Kubeconfig))


def targeted(function: Callable[Concatenate[Target, P], None]) -> Callable[..., None]:
    """Give a command the shared options; it gets them as its first argument, a Target."""

    @functools.wraps(function)
    def command(ctx: typer.Context, *args: P.args, **kwargs: P.kwargs) -> None:
        shared = {name: kwargs.pop(name) for name, _ in _SHARED}
        environment = ctx.obj if isinstance(ctx.obj, Environment) else Environment()
        function(Target(environment, **shared), *args, **kwargs)  # type: ignore[arg-type]

    own = list(inspect.signature(function).parameters.values())[1:]
    keyword = inspect.Parameter.KEYWORD_ONLY
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
            *(one.replace(kind=keyword) for one in own),
            *(inspect.Parameter(name, keyword, default=None, annotation=type_) for name, type_ in _SHARED),
        ]
    )
    return command

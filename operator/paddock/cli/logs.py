"""`paddock logs`: what the servers of a deployment say."""

import asyncio

from paddock.api.vocabulary import ConditionType
from paddock.cli.access import JSON, find, number_of, pods_of
from paddock.cli.problem import ApiError, Problem
from paddock.cli.reading import model_of
from paddock.cli.target import Session

TAIL_OF_SEVERAL = 1000
"""Lines per server when several are shown together and none was asked for alone."""


async def logs(
    session: Session, name: str, *, follow: bool, replica: int | None, previous: bool, tail: int | None
) -> None:
    """Print the log of one replica, or of all with its number in front of each line."""
    if follow and previous:
        raise Problem("an ended container writes no more; use either --follow or --previous", 2)
    pods = await _chosen(session, name, replica)
    several = len(pods) > 1
    tail = TAIL_OF_SEVERAL if several and tail is None else tail
    if follow:
        await _follow_all(session, pods, tail)
        return
    for pod in pods:
        text = await _read(session, pod, previous=previous, tail=tail)
        prefix = _prefix(pod) if several else ""
        for line in text.splitlines():
            session.screen.raw(f"{prefix}{line}\n")


def _prefix(pod: JSON) -> str:
    return f"[{number_of(pod)}] "


async def _chosen(session: Session, name: str, replica: int | None) -> list[JSON]:
    pods = await pods_of(session.api, session.namespace, name)
    if not pods:
        model = model_of(await find(session.api, session.namespace, name))
        found = model.condition(ConditionType.AVAILABLE)
        why = f"{found.reason}: {found.message}" if found else "the operator has not looked at it yet"
        raise Problem(f"{name} has no server now ({why}); see paddock explain {name}")
    if replica is None:
        return pods
    wanted = [pod for pod in pods if number_of(pod) == replica]
    if not wanted:
        known = ", ".join(str(number) for number in sorted({number_of(pod) for pod in pods}))
        raise Problem(f"{name} has no replica {replica}; it has: {known}")
    return wanted


async def _read(session: Session, pod: JSON, *, previous: bool, tail: int | None) -> str:
    try:
        return await session.api.log(session.namespace, pod["metadata"]["name"], tail=tail, previous=previous)
    except ApiError as error:
        raise _no_log(pod, error, previous=previous) from error


async def _follow_all(session: Session, pods: list[JSON], tail: int | None) -> None:
    several = len(pods) > 1
    try:
        async with asyncio.TaskGroup() as group:
            for pod in pods:
                group.create_task(_follow(session, pod, _prefix(pod) if several else "", tail))
    except ExceptionGroup as found:
        raise found.exceptions[0] from None


async def _follow(session: Session, pod: JSON, prefix: str, tail: int | None) -> None:
    try:
        async for line in session.api.follow(session.namespace, pod["metadata"]["name"], tail=tail):
            session.screen.raw(f"{prefix}{line}\n")
    except ApiError as error:
        raise _no_log(pod, error, previous=False) from error


def _no_log(pod: JSON, error: ApiError, *, previous: bool) -> ApiError | Problem:
    """Explain the 400 by which the kubelet says that a container has not started, or has never ended."""
    if error.status != 400:  # noqa: PLR2004 HTTP
        return error
    name = pod["metadata"]["name"]
    if previous:
        return Problem(f"the server of pod {name} has not ended before; leave --previous out")
    return Problem(f"the server of pod {name} has not started yet ({error.message}); try again in a moment")

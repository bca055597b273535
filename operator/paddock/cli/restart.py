"""`paddock restart`: replace every server of a deployment once, at the same place where it can be."""

import asyncio

from paddock.api.vocabulary import Annotation, ConditionType
from paddock.cli.access import deployments_path, find
from paddock.cli.problem import Problem
from paddock.cli.reading import Model, model_of
from paddock.cli.target import Session

POLL_SECONDS = 1.0


async def restart(session: Session, name: str, *, wait: bool, timeout: float) -> None:  # noqa: ASYNC109 asked for
    """Ask for a restart, and with `wait` stay until every new server is Ready."""
    before = model_of(await find(session.api, session.namespace, name))
    if before.wanted == 0:
        raise Problem(f"{name} has no servers to restart; set spec.suspend to false, or replicas above 0")
    moment = session.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    body = {"metadata": {"annotations": {Annotation.RESTARTED_AT: moment}}}
    await session.api.patch(deployments_path(session.namespace, name), body)
    session.screen.line(f"{name} restarts, one server at a time.")
    if not wait:
        return
    old = {one.pod_name for one in before.status.placements}
    try:
        async with asyncio.timeout(timeout):
            model = model_of(await find(session.api, session.namespace, name))
            while not _renewed(model, old):
                await asyncio.sleep(POLL_SECONDS)
                model = model_of(await find(session.api, session.namespace, name))
    except TimeoutError as error:
        raise Problem(
            f"{name} is not back after {timeout:.0f} s; see paddock explain {name} and paddock logs {name}"
        ) from error
    session.screen.line(f"{name} is back: {model.status.ready_replicas}/{model.wanted} ready.")


def _renewed(model: Model, old: set[str]) -> bool:
    """Whether only new servers are left, and all are Ready."""
    pods = {one.pod_name for one in model.status.placements}
    ready = model.status.ready_replicas or 0
    return not pods & old and ready >= model.wanted and model.holds(ConditionType.AVAILABLE)

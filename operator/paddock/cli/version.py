"""`paddock version`: this program's version, and the operator's."""

from typing import Any

from paddock.api.vocabulary import Label
from paddock.cli.access import JSON
from paddock.cli.output import Output
from paddock.cli.problem import ApiError
from paddock.cli.target import Session

VERSION_LABEL = "app.kubernetes.io/version"


async def server_version(session: Session) -> dict[str, Any]:
    """Find the operator and its version; `problem` says why not."""
    selector = f"{Label.NAME}=paddock,{Label.COMPONENT}=operator"
    try:
        found = await session.api.list("/apis/apps/v1/deployments", {"labelSelector": selector})
    except ApiError as error:
        if error.forbidden:
            return {"problem": "you may not list Deployments of all namespaces"}
        raise
    return _told(found[0]) if found else {"problem": "no operator is installed"}


def _told(deployment: JSON) -> dict[str, Any]:
    meta = deployment["metadata"]
    version = (meta.get("labels") or {}).get(VERSION_LABEL, "unknown")
    return {"version": version, "namespace": meta["namespace"], "name": meta["name"]}


def show(session: Session, client: str, server: dict[str, Any], output: Output) -> None:
    """Print both versions; in words the server's alone, the client's stands before it already."""
    if output in (Output.JSON, Output.YAML):
        session.screen.data({"client": {"version": client}, "server": server}, output)
        return
    if "problem" in server:
        session.screen.line(f"server: unknown ({server['problem']})")
    else:
        session.screen.line(f"server: {server['version']} (namespace {server['namespace']})")
        if server["version"] != client:
            session.screen.line(f"Client and server differ; install paddock {server['version']} here.")

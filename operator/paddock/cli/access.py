"""The way to the API server: a small protocol, and its adapter over the one module that talks to it."""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from paddock.api.vocabulary import API_VERSION, Annotation, Label
from paddock.cli.problem import ApiError, Problem
from paddock.core.replica import CONTAINER

if TYPE_CHECKING:
    from paddock.controller.cluster import Cluster

JSON = dict[str, Any]
GROUP_PATH = f"/apis/{API_VERSION}"
GPUS = f"{GROUP_PATH}/gpus"
POLICIES = f"{GROUP_PATH}/placementpolicies"
NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
"""What can be the name of an object; anything else would be another path."""
CHAT_SECONDS = 600.0
"""How long an answer of a model may take."""


class Api(Protocol):
    """What the commands need of the API server. Every method raises ApiError."""

    async def get(self, path: str) -> JSON:
        """Read one object."""
        ...

    async def list(self, path: str, params: Mapping[str, str] | None = None) -> list[JSON]:
        """Read all objects of a list."""
        ...

    async def patch(self, path: str, body: JSON) -> JSON:
        """Change an object by a merge patch."""
        ...

    async def create(self, path: str, body: JSON) -> JSON:
        """Create an object."""
        ...

    async def delete(self, path: str) -> None:
        """Delete an object; one that is gone already is no error."""
        ...

    async def log(
        self, namespace: str, pod: str, *, tail: int | None = None, previous: bool = False, container: str = CONTAINER
    ) -> str:
        """Read the server's log, or another container's."""
        ...

    def follow(self, namespace: str, pod: str, *, tail: int | None = None) -> AsyncIterator[str]:
        """Follow the server's log, line by line, until it ends."""
        ...

    async def ask(self, path: str, body: JSON, headers: Mapping[str, str]) -> bytes:
        """Post to a server through the API server."""
        ...

    async def fetch(self, path: str, headers: Mapping[str, str], seconds: float) -> str:
        """Read text of a server through the API server."""
        ...


Connect = Callable[[str | None, str | None], AbstractAsyncContextManager[Api]]
"""Opens a connection for a kubeconfig and a context."""


def deployments_path(namespace: str | None, name: str | None = None) -> str:
    """Give the path of a ModelDeployment, of a namespace's, or of all."""
    if namespace is None:
        return f"{GROUP_PATH}/modeldeployments"
    path = f"{GROUP_PATH}/namespaces/{namespace}/modeldeployments"
    return path if name is None else f"{path}/{name}"


async def find(api: Api, namespace: str, name: str) -> JSON:
    """Read a ModelDeployment. Raises Problem that names those that exist when this one does not."""
    if NAME.fullmatch(name) and NAME.fullmatch(namespace):
        try:
            return await api.get(deployments_path(namespace, name))
        except ApiError as error:
            if not error.not_found or "paddock.dev" not in error.message:
                raise
    try:
        theirs = await api.list(deployments_path(namespace)) if NAME.fullmatch(namespace) else []
        names = sorted(one["metadata"]["name"] for one in theirs)
    except ApiError:
        names = []
    known = f"it has: {', '.join(names[:12])}" if names else "try -n NAMESPACE, or paddock get -A"
    raise Problem(f"no ModelDeployment {name!r} in namespace {namespace}; {known}")


async def pods_of(api: Api, namespace: str, name: str) -> list[JSON]:
    """Read the server pods of a deployment, in the order of their numbers."""
    selector = f"{Label.DEPLOYMENT}={name},{Label.COMPONENT}={Label.SERVER}"
    pods = await api.list(f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": selector})
    return sorted(pods, key=lambda pod: (number_of(pod), pod["metadata"]["name"]))


def number_of(pod: JSON) -> int:
    """Give the number of the replica that a pod is."""
    text = (pod["metadata"].get("annotations") or {}).get(Annotation.REPLICA, "0")
    return int(text) if text.isdigit() else 0


@asynccontextmanager
async def connect(kubeconfig: str | None, context: str | None) -> AsyncIterator[Api]:
    """Open a connection to the cluster."""
    from paddock.controller.cluster import Cluster  # noqa: PLC0415 the client takes most of a second to import

    with _translated():
        cluster = await Cluster.connect(kubeconfig, context)
    try:
        yield _ClusterApi(cluster)
    finally:
        await cluster.close()


@contextmanager
def _translated() -> Iterator[None]:
    from paddock.controller.cluster import ClusterError  # noqa: PLC0415 as above

    try:
        yield
    except ClusterError as error:
        raise ApiError(error.status, error.reason, error.message) from error


class _ClusterApi:
    """`Api` over `Cluster`."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster

    async def get(self, path: str) -> JSON:
        with _translated():
            return await self._cluster.get(path)

    async def list(self, path: str, params: Mapping[str, str] | None = None) -> list[JSON]:
        with _translated():
            return await self._cluster.list(path, params)

    async def patch(self, path: str, body: JSON) -> JSON:
        with _translated():
            return await self._cluster.patch(path, body)

    async def create(self, path: str, body: JSON) -> JSON:
        with _translated():
            return await self._cluster.post(path, body)

    async def delete(self, path: str) -> None:
        with _translated():
            await self._cluster.delete(path)

    async def log(
        self, namespace: str, pod: str, *, tail: int | None = None, previous: bool = False, container: str = CONTAINER
    ) -> str:
        with _translated():
            return await self._cluster.log(namespace, pod, container, tail_lines=tail, previous=previous)

    async def follow(self, namespace: str, pod: str, *, tail: int | None = None) -> AsyncIterator[str]:
        with _translated():
            async for line in self._cluster.stream_log(namespace, pod, CONTAINER, tail_lines=tail):
                yield line

    async def ask(self, path: str, body: JSON, headers: Mapping[str, str]) -> bytes:
        with _translated():
            return await self._cluster.request("POST", path, body, headers=headers, seconds=CHAT_SECONDS)

    async def fetch(self, path: str, headers: Mapping[str, str], seconds: float) -> str:
        with _translated():
            data = await self._cluster.request("GET", path, headers=headers, seconds=seconds)
        return data.decode(errors="replace")

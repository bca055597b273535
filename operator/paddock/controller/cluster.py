"""The only module that talks to the API server, over `kubernetes.aio`.

Paths in, plain JSON out: reading by small frozen views and writing plain manifests costs a fraction of the generated
models, and does not fail on fields newer than the client. Every failure becomes a `ClusterError`.
"""

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

import aiohttp
from pydantic_core import from_json

from paddock.api.vocabulary import GROUP, VERSION

# These packages import the whole client, synchronous and not, and what reads kubeconfigs: half the time of a start.
# Their submodules can be imported without them.
if "kubernetes" not in sys.modules:
    for _package in ("kubernetes", "kubernetes.aio", "kubernetes.aio.config", "kubernetes.aio.utils"):
        if (_spec := importlib.util.find_spec(_package)) is not None:
            sys.modules[_package] = importlib.util.module_from_spec(_spec)
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import load_incluster_config

JSON = dict[str, Any]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
DEPLOYMENTS = f"/apis/{GROUP}/{VERSION}/modeldeployments"
GPUS = f"/apis/{GROUP}/{VERSION}/gpus"
POLICIES = f"/apis/{GROUP}/{VERSION}/placementpolicies"
RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
TIMEOUT = 30.0
"""Seconds that one request may take."""


class ClusterError(Exception):
    """The API server refused a request, or could not be reached (status 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason or status}: {message}")
        self.status, self.reason, self.message = status, reason, message

    @property
    def not_found(self) -> bool:
        """The object does not exist."""
        return self.status == 404  # noqa: PLR2004 HTTP

    @property
    def conflict(self) -> bool:
        """The object changed meanwhile, or exists already."""
        return self.status == 409  # noqa: PLR2004 HTTP

    @property
    def already_exists(self) -> bool:
        """An object of that name exists."""
        return self.conflict and self.reason == "AlreadyExists"

    @property
    def failed(self) -> bool:
        """The API server failed, or an admission webhook of the cluster."""
        return self.status >= 500  # noqa: PLR2004 HTTP

    @property
    def refused(self) -> bool:
        """The request itself is not acceptable: admission, quota, validation, rights. A retry alone will not help."""
        return self.status in (400, 403, 405, 413, 415, 422)


def namespaced(kind: str, namespace: str, name: str | None = None, group: str = "/api/v1") -> str:
    """Give the path of an object or list in a namespace."""
    path = f"{group}/namespaces/{quote(namespace)}/{kind}"
    return path if name is None else f"{path}/{quote(name)}"


def deployment_path(namespace: str, name: str) -> str:
    """Give the path of a ModelDeployment."""
    return namespaced("modeldeployments", namespace, name, f"/apis/{GROUP}/{VERSION}")


async def configuration(kubeconfig: str | None = None, context: str | None = None) -> Configuration:
    """Find the way to the cluster: the service account inside a pod, a kubeconfig outside.

    Raises ClusterError when there is none.
    """
    result = Configuration()
    try:
        if kubeconfig is None and context is None:
            try:
                load_incluster_config(client_configuration=result)  # type: ignore[no-untyped-call]
            except ConfigException:
                await _load_kubeconfig(result, None, None)
        else:
            await _load_kubeconfig(result, kubeconfig, context)
    except (ConfigException, OSError) as error:
        raise ClusterError(0, "NoKubeconfig", f"no cluster configuration: {error}") from error
    return result


async def _load_kubeconfig(result: Configuration, path: str | None, context: str | None) -> None:
    from kubernetes.aio.config.kube_config import load_kube_config  # noqa: PLC0415 no pod needs it

    await load_kube_config(path, context, client_configuration=result)  # type: ignore[no-untyped-call]


class Cluster:
    """A connection to one API server."""

    def __init__(self, found: Configuration, connections: int = 64) -> None:
        found.connection_pool_maxsize = connections
        found.retries = None
        self._configuration = found
        self._rest = RESTClientObject(found)
        self.calls: dict[str, int] = {}
        """Number of requests by verb and resource, for metrics and for the test of RBAC."""

    @classmethod
    async def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Open a connection; the first request is what really connects."""
        return cls(await configuration(kubeconfig, context))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._rest.close()

    @property
    def server(self) -> str:
        """URL of the API server."""
        return str(self._configuration.host)

    async def _open(
        self,
        method: str,
        path: str,
        body: object,
        content_type: str,
        seconds: float,
        more: Mapping[str, str] | None = None,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json, */*", "Content-Type": content_type, **(more or {})}
        try:
            auth = await self._configuration.auth_settings()  # The token's file is read anew every minute.
        except (ConfigException, OSError) as error:
            raise ClusterError(0, "NoToken", f"{self.server}: {error}") from error
        if token := auth.get("BearerToken", {}).get("value"):
            headers["authorization"] = str(token)
        self._count(method, path)
        try:
            answer = await self._rest.request(  # type: ignore[no-untyped-call]
                method, self.server + path, headers=headers, body=body, _request_timeout=seconds
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ClusterError(0, "Unreachable", f"{self.server}: {str(error) or type(error).__name__}") from error
        response: aiohttp.ClientResponse = answer.response
        return response

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        seconds: float = TIMEOUT,
    ) -> bytes:
        """Send one request and give the body of the answer. Raises ClusterError for every status of 400 and above."""
        response = await self._open(method, path, body, content_type, seconds, headers)
        try:
            data = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ClusterError(0, "Unreachable", f"{self.server}: {str(error) or type(error).__name__}") from error
        if response.status >= 400:  # noqa: PLR2004 HTTP
            raise _error(response.status, data)
        return data

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> JSON:
        """Read one object."""
        return _parse(await self.request("GET", _with(path, params)))

    async def pages(
        self, path: str, params: Mapping[str, str] | None = None, limit: int = 500
    ) -> AsyncIterator[list[JSON]]:
        """Read a list page by page: whoever keeps little of each object never holds many whole ones.

        The next page is on its way while one is worked on.
        """
        query = {"limit": str(limit), **(params or {})}
        coming = asyncio.create_task(self.get(path, query))
        try:
            while True:
                answer = await coming
                token = (answer.get("metadata") or {}).get("continue")
                if token:
                    coming = asyncio.create_task(self.get(path, {**query, "continue": token}))
                    await asyncio.sleep(0)  # So that it is sent before the work begins.
                yield answer.get("items") or []
                if not token:
                    return
        finally:
            coming.cancel()

    async def list(self, path: str, params: Mapping[str, str] | None = None) -> list[JSON]:
        """Read all objects of a list."""
        return [item async for page in self.pages(path, params) for item in page]

    async def is_gone(self, path: str, name: str, uid: str | None = None) -> bool:
        """Ask whether an object does not exist (with `uid`: that very one): a list may be older than an event."""
        there = await self.list(path, {"fieldSelector": f"metadata.name={name}"})
        return all(uid is not None and one["metadata"]["uid"] != uid for one in there)

    async def post(self, path: str, body: JSON) -> JSON:
        """Create an object."""
        return _parse(await self.request("POST", path, body))

    async def put(self, path: str, body: JSON) -> JSON:
        """Replace an object; with metadata.resourceVersion this is a compare-and-swap."""
        return _parse(await self.request("PUT", path, body))

    async def patch(self, path: str, body: JSON, content_type: str = MERGE) -> JSON:
        """Change an object."""
        return _parse(await self.request("PATCH", path, body, content_type=content_type))

    async def delete(self, path: str, uid: str | None = None, version: str | None = None) -> None:
        """Delete an object; with `uid` only that very one. One that is gone already is no error.

        With `version` (resourceVersion) it raises ClusterError when the object has changed since.
        """
        body: JSON = {"apiVersion": "v1", "kind": "DeleteOptions"}
        conditions = {"uid": uid, "resourceVersion": version}
        body["preconditions"] = {name: value for name, value in conditions.items() if value is not None}
        try:
            await self.request("DELETE", path, body)
        except ClusterError as error:
            if not error.not_found and not (version is None and uid is not None and error.conflict):
                raise

    async def log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        limit_bytes: int | None = None,
        tail_lines: int | None = None,
        previous: bool = False,
    ) -> str:
        """Read the log of a container; the first `limit_bytes` of it, or its last lines."""
        query = {"container": container}
        if limit_bytes is not None:
            query["limitBytes"] = str(limit_bytes)
        if tail_lines is not None:
            query["tailLines"] = str(tail_lines)
        if previous:
            query["previous"] = "true"
        path = namespaced("pods", namespace, pod) + "/log"
        return (await self.request("GET", _with(path, query))).decode(errors="replace")

    async def stream_log(
        self, namespace: str, pod: str, container: str, *, tail_lines: int | None = None
    ) -> AsyncIterator[str]:
        """Follow the log of a container, line by line, until it ends."""
        query = {"container": container, "follow": "true"}
        if tail_lines is not None:
            query["tailLines"] = str(tail_lines)
        path = _with(namespaced("pods", namespace, pod) + "/log", query)
        response = await self._open("GET", path, None, "application/json", 7 * 24 * 3600.0)
        if response.status >= 400:  # noqa: PLR2004 HTTP
            raise _error(response.status, await response.read())
        try:
            async for line in response.content:
                yield line.decode(errors="replace").rstrip("\n")
        finally:
            response.close()

    def _count(self, method: str, path: str) -> None:
        key = verb_and_resource(method, path)
        self.calls[key] = self.calls.get(key, 0) + 1


def verb_and_resource(method: str, path: str) -> str:
    """Give `verb group/resource[/subresource]` of a request, as an RBAC rule would name it."""
    bare = path.split("?", 1)[0].strip("/").split("/")
    group, rest = ("", bare[2:]) if bare[0] == "api" else (bare[1] if len(bare) > 1 else "", bare[3:])
    if rest[:1] == ["namespaces"] and len(rest) > 2:  # noqa: PLR2004 namespaces/NAME/resource
        rest = rest[2:]
    resource = rest[0] if rest else ""
    subresource = f"/{rest[2]}" if len(rest) > 2 else ""  # noqa: PLR2004 resource/NAME/subresource
    verb = {"GET": "get" if len(rest) > 1 else "list", "POST": "create", "PUT": "update"}.get(method, method.lower())
    return f"{verb} {group}/{resource}{subresource}"


def _with(path: str, params: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(params)}" if params else path


def _parse(data: bytes) -> JSON:
    try:
        value = from_json(data, cache_strings="keys")
    except ValueError as error:
        raise ClusterError(0, "BadAnswer", f"the API server's answer is no JSON: {data[:200]!r}") from error
    if not isinstance(value, dict):
        raise ClusterError(0, "BadAnswer", "the API server's answer is no object")
    return value


def _error(status: int, data: bytes) -> ClusterError:
    try:
        value = json.loads(data)
        return ClusterError(status, str(value.get("reason", "")), str(value.get("message", "")))
    except (ValueError, AttributeError):
        return ClusterError(status, "", data[:500].decode(errors="replace"))

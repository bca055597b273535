"""An API server in memory for one operator's parts: each request is a moment in which a test has something happen."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from typing_extensions import override

from paddock.controller.cluster import Cluster, ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

JSON = dict[str, Any]
_NAMESPACED = re.compile(r"(?P<group>.*)/namespaces/(?P<namespace>[^/]+)/(?P<kind>[^/]+)")


class InMemory(Cluster):
    """Objects by their path. What is asked for is carried out, and answered, with a pause before and after."""

    def __init__(self) -> None:  # it connects to nothing
        self.calls: dict[str, int] = {}
        self.objects: dict[str, JSON] = {}
        self.logs: dict[str, str] = {}
        """By path of the pod."""
        self.sent: list[str] = []
        """Requests as `METHOD path`."""
        self.before: dict[str, list[Callable[[], None]]] = {}
        """By end of a request: what happens before it is carried out, one for each time it is made."""
        self.after: dict[str, list[Callable[[], None]]] = {}
        """The same between that and the answer."""
        self._versions, self._uids = itertools.count(1), itertools.count(1)

    def put_there(self, path: str, body: JSON) -> JSON:
        """Store an object of a collection as it is, with a UID and a version."""
        meta: JSON = body.setdefault("metadata", {})
        if found := _NAMESPACED.fullmatch(path):
            meta.setdefault("namespace", found["namespace"])
        meta.setdefault("uid", f"uid-{next(self._uids)}")
        meta["resourceVersion"] = str(next(self._versions))
        self.objects[f"{path}/{meta['name']}"] = body
        return copy.deepcopy(body)

    @override
    async def request(self, method: str, path: str, body: object = None, **_more: Any) -> bytes:
        bare, _, query = path.partition("?")
        told = f"{method} {bare}"
        self.sent.append(told)
        await asyncio.sleep(0)
        _happen(self.before, told)
        answer = self._carry_out(method, bare, dict(parse_qsl(query)), copy.deepcopy(body))
        _happen(self.after, told)
        await asyncio.sleep(0)
        return answer

    def _carry_out(self, method: str, path: str, query: Mapping[str, str], body: Any) -> bytes:
        if method == "POST":
            if f"{path}/{body['metadata']['name']}" in self.objects:
                raise ClusterError(409, "AlreadyExists", "it exists")
            return _dump(self.put_there(path, body))
        if method == "GET" and path.endswith("/log"):
            self._the(path.removesuffix("/log"))
            return self.logs.get(path.removesuffix("/log"), "").encode()
        if method == "GET" and path not in self.objects and not _is_name(path):
            return _dump({"items": self._listed(path, query)})
        there = self._the(path.removesuffix("/status"))
        if method == "DELETE":
            _check(there, body.get("preconditions") or {})
            del self.objects[path]
        elif method == "PUT":
            _check(there, {"resourceVersion": body["metadata"]["resourceVersion"]})
            there = self._renewed(path, {**there, "status": body["status"]})
        elif method == "PATCH":
            _check(there, {key: value for key, value in body.get("metadata", {}).items() if key == "uid"})
            there = self._renewed(path, _merged(there, body))
        return _dump(there)

    def _renewed(self, path: str, body: JSON) -> JSON:
        return self.put_there(path.removesuffix("/status").rpartition("/")[0], body)

    def _the(self, path: str) -> JSON:
        if path not in self.objects:
            raise ClusterError(404, "NotFound", f"there is no {path}")
        return self.objects[path]

    def _listed(self, path: str, query: Mapping[str, str]) -> list[JSON]:
        name = query.get("fieldSelector", "").removeprefix("metadata.name=")
        labels = query.get("labelSelector", "")
        return [
            one
            for key, one in self.objects.items()
            if _collections(key) & {path}
            and (not name or one["metadata"]["name"] == name)
            and _fits(one["metadata"].get("labels") or {}, labels)
        ]


def _happen(what: dict[str, list[Callable[[], None]]], told: str) -> None:
    for end, times in what.items():
        if told.endswith(end) and times:
            times.pop(0)()


def _is_name(path: str) -> bool:
    """Tell whether a path is that of an object, not of a collection."""
    rest = path.strip("/").split("/")[2 if path.startswith("/api/") else 3 :]
    return len(rest) % 2 == 0


def _collections(key: str) -> set[str]:
    """Give the lists that an object is in."""
    path = key.rpartition("/")[0]
    found = _NAMESPACED.fullmatch(path)
    return {path, f"{found['group']}/{found['kind']}"} if found else {path}


def _fits(labels: Mapping[str, str], selector: str) -> bool:
    for term in re.findall(r"[^,(]+(?: in \([^)]*\))?", selector):
        key, within, values = term.partition(" in ")
        key, is_, value = key.partition("=")
        if within:
            fits = labels.get(key) in values.strip("()").split(",")
        else:
            fits = labels.get(key) == value if is_ else key in labels
        if not fits:
            return False
    return True


def _check(there: JSON, wanted: Mapping[str, str]) -> None:
    if any(there["metadata"].get(key) != value for key, value in wanted.items()):
        raise ClusterError(409, "Conflict", "it has changed")


def _merged(there: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    base = there if isinstance(there, dict) else {}
    merged = {**base, **{key: _merged(base.get(key), value) for key, value in patch.items()}}
    return {key: value for key, value in merged.items() if value is not None}


def _dump(answer: JSON) -> bytes:
    return json.dumps(answer).encode()

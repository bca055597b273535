"""A pretend kubelet and scheduler: pods of Paddock get a node, run, turn Ready and go, without any container.

Servers print the log that llama-server prints on the device that the pod was given, unless a test says otherwise. The
logs are served over HTTPS at the node's own address, where the real API server asks for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Pod = dict[str, Any]
GATE = "paddock.dev/verified"
STRATEGIC = "application/strategic-merge-patch+json"
MIB = 1024 * 1024


def record_of(pod: Pod) -> dict[str, Any]:
    """Give the record of the placement that the operator wrote on a server pod."""
    record: dict[str, Any] = json.loads(pod["metadata"].get("annotations", {}).get("paddock.dev/placement", "{}"))
    return record


def honest_log(pod: Pod) -> str:
    """Give what llama-server b11434 prints at level 4 when it is where it should be."""
    record = record_of(pod)
    device = record.get("name_in_pod")
    host = record.get("host_weights", 0) / MIB
    weights = record.get("device_weights") or 2 * MIB
    lines = ["0.00.001.000 I build: 11434"]
    if device:
        seen = f"{device} ({record['description']}) ({record['pci_id']})"
        lines.append(f"0.00.100.000 I llama_prepare_model_devices: using device {seen} - 5000 MiB free")
        lines.append(f"0.00.200.000 I load_tensors:   CPU_Mapped model buffer size = {host:9.2f} MiB")
    where = device or "CPU"
    lines += [
        f"0.00.200.000 I load_tensors:        {where} model buffer size = {weights / MIB:9.2f} MiB",
        f"0.00.300.000 I llama_kv_cache:      {where} KV buffer size =     2.00 MiB",
        f"0.00.400.000 I sched_reserve:      {where} compute buffer size =     3.00 MiB",
        "0.00.500.000 I main: server is listening on http://0.0.0.0:8080",
    ]
    return "\n".join(lines) + "\n"


@dataclass
class Behaviour:
    """What happens to the pods of one deployment."""

    log: Callable[[Pod], str] = honest_log
    up: bool = True
    """Whether the server comes up."""
    refused: int = 0
    """How many pods the kubelet still refuses with UnexpectedAdmissionError."""
    log_errors: int = 0
    """How many requests for the log still fail."""
    linger: float = 0.0
    """Seconds that a pod takes to end."""
    summary: str = ""
    """What an inspector pod prints."""
    summaries: dict[str, str] = field(default_factory=dict)
    """The same by source, where there are several."""
    fetch_log: str = ""
    """What the container prints that fetches files; it runs as long as this is not empty."""
    fetch_failure: str = ""
    """Last words of that container when it fails."""
    files_gone: bool = False
    """Whether a pod that does not fetch finds no files: its keeper says so."""


@dataclass
class PretendKubelet:
    """One for all nodes. Its fields may be changed by tests while it runs."""

    url: str
    token: str
    port: int
    folder: Path
    """Holds tls.crt and tls.key of the log server."""
    nodes: dict[str, str] = field(default_factory=dict)
    """Address by name."""
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    """By name of the deployment."""
    pods: dict[str, Pod] = field(default_factory=dict)
    """Every pod of Paddock, by namespace/name."""
    created: Counter[str] = field(default_factory=Counter)
    """How often each pod came to be, by namespace/name."""
    log_reads: Counter[str] = field(default_factory=Counter)
    paused: bool = False
    """True: pods stay Pending, as without any node."""

    def behave(self, deployment: str, behaviour: Behaviour) -> Behaviour:
        """Set what happens to the pods of a deployment."""
        self.behaviours[deployment] = behaviour
        return behaviour

    def _behaviour(self, pod: Pod) -> Behaviour:
        name = pod["metadata"].get("labels", {}).get("paddock.dev/model-deployment", "")
        return self.behaviours.get(name, Behaviour())

    # -- API server ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow all pods for ever."""
        headers = {"Authorization": f"Bearer {self.token}"}
        connector = aiohttp.TCPConnector(ssl=False, limit=64)
        async with aiohttp.ClientSession(self.url, headers=headers, connector=connector) as self._http:
            self._tasks: set[asyncio.Task[None]] = set()
            self._busy: dict[str, asyncio.Lock] = {}
            version = ""
            while True:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError, KeyError):
                    version = await self._follow(version)
                await asyncio.sleep(0.02)

    async def _follow(self, version: str) -> str:
        query = {"labelSelector": "app.kubernetes.io/managed-by=paddock"}
        if not version:
            async with self._http.get("/api/v1/pods", params=query) as answer:
                body = await answer.json()
            for pod in body["items"]:
                self._event("ADDED", pod)
            version = body["metadata"]["resourceVersion"]
        watch = query | {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._http.get("/api/v1/pods", params=watch, timeout=timeout, read_bufsize=2**22) as answer:
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return ""
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self._event(event["type"], event["object"])
        return version

    def _event(self, type_: str, pod: Pod) -> None:
        key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        if type_ == "DELETED":
            self.pods.pop(key, None)
            return
        if type_ == "ADDED":
            self.created[key] += 1
        self.pods[key] = pod
        self.look(key)

    def look(self, key: str) -> None:
        """Do the next step of a pod; call it after a change of `behaviours`."""
        task = asyncio.get_running_loop().create_task(self._step(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _step(self, key: str) -> None:
        async with self._busy.setdefault(key, asyncio.Lock()):
            pod = self.pods.get(key)
            if pod is not None and not self.paused:
                await self._advance(pod)

    async def _advance(self, pod: Pod) -> None:
        behaviour, status = self._behaviour(pod), pod.get("status", {})
        if "deletionTimestamp" in pod["metadata"]:
            await self._end(pod, behaviour)
        elif not pod["spec"].get("nodeName"):
            await self._bind(pod)
        elif status.get("phase") == "Pending" and not status.get("containerStatuses"):
            await self._start(pod, behaviour)
        elif status.get("phase") == "Running":
            await self._follow_gate(pod)

    async def _request(self, method: str, path: str, body: object, content: str = "application/json") -> Pod | None:
        async with self._http.request(method, path, json=body, headers={"Content-Type": content}) as answer:
            found: Pod = await answer.json()
            return found if answer.status < 300 else None

    def _path(self, pod: Pod) -> str:
        return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"

    async def _end(self, pod: Pod, behaviour: Behaviour) -> None:
        await asyncio.sleep(behaviour.linger)
        await self._request(
            "DELETE",
            self._path(pod),
            {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}},
        )

    async def _bind(self, pod: Pod) -> None:
        terms = (
            pod["spec"]
            .get("affinity", {})
            .get("nodeAffinity", {})
            .get("requiredDuringSchedulingIgnoredDuringExecution", {})
            .get("nodeSelectorTerms", [{}])
        )
        fields = terms[0].get("matchFields")
        node = fields[0]["values"][0] if fields else min(self.nodes, default="")
        if node in self.nodes:
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}}
            await self._request("POST", self._path(pod) + "/binding", binding | {"target": target})

    async def _start(self, pod: Pod, behaviour: Behaviour) -> None:
        if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "model-inspector":
            if behaviour.up:
                await self._patch(pod, {"phase": "Succeeded", "containerStatuses": [_ended("inspect", 0)]})
        elif pod["metadata"]["labels"].get("app.kubernetes.io/component") == "model-fetcher":
            await self._fetch_ahead(pod, behaviour)
        elif "initContainers" in pod["spec"] and (behaviour.fetch_log or behaviour.fetch_failure):
            await self._fetch(pod, behaviour)
        elif behaviour.files_gone and "initContainers" not in pod["spec"]:
            await self._find_nothing(pod)
        elif behaviour.refused > 0:
            behaviour.refused -= 1
            message = "Allocate failed due to no healthy devices"
            await self._patch(pod, {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message})
        else:
            await self._run_container(pod, restarts=0, ready=behaviour.up)

    async def _fetch_ahead(self, pod: Pod, behaviour: Behaviour) -> None:
        failed = bool(behaviour.fetch_failure)
        ended = _ended("fetch", 3 if failed else 0)
        ended["state"]["terminated"]["message"] = behaviour.fetch_failure
        await self._patch(pod, {"phase": "Failed" if failed else "Succeeded", "containerStatuses": [ended]})

    async def _fetch(self, pod: Pod, behaviour: Behaviour) -> None:
        """Have the container run, or fail; the API server is told once."""
        one = _ended("fetch", 3)
        one["state"]["terminated"]["message"] = behaviour.fetch_failure
        if not behaviour.fetch_failure:
            one["state"] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        known = pod.get("status", {}).get("initContainerStatuses") or [{}]
        if known[0].get("state") != one["state"]:
            await self._patch(pod, {"initContainerStatuses": [one]})

    async def _find_nothing(self, pod: Pod) -> None:
        """Have server and keeper fail for the want of the files."""
        keeper = _ended("hold", 4)
        words = {"event": "failed", "failure": "NotFound", "message": "the cache has no model", "retry": False}
        keeper["state"]["terminated"]["message"] = json.dumps(words)
        await self._patch(pod, {"phase": "Running", "containerStatuses": [keeper, _ended("server", 1)]})

    async def _run_container(self, pod: Pod, *, restarts: int, ready: bool) -> None:
        truth = "True" if ready else "False"
        container = {
            "name": "server",
            "image": "x",
            "imageID": "x",
            "containerID": f"containerd://{uuid.uuid4().hex}",
            "ready": ready,
            "started": ready,
            "restartCount": restarts,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }
        conditions = [
            {"type": "Initialized", "status": "True"},
            {"type": "ContainersReady", "status": truth},
            {"type": "Ready", "status": "False"},
        ]
        address = self.nodes.get(pod["spec"]["nodeName"], "127.0.0.1")
        status: Pod = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        if "initContainers" in pod["spec"]:
            status["initContainerStatuses"] = [_ended("fetch", 0)]
        await self._patch(pod, status | {"containerStatuses": [container], "conditions": conditions})

    async def _follow_gate(self, pod: Pod) -> None:
        """Keep Ready what the containers and the gate say."""
        conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
        wanted = "True" if conditions.get("ContainersReady") == "True" == conditions.get(GATE) else "False"
        if conditions.get("Ready") != wanted:
            await self._patch(pod, {"conditions": [{"type": "Ready", "status": wanted}]})

    async def _patch(self, pod: Pod, status: Pod) -> None:
        await self._request("PATCH", self._path(pod) + "/status", {"status": status}, STRATEGIC)

    # -- what tests do to pods -------------------------------------------------------------------------------------

    async def _started(self, key: str) -> Pod:
        """Give a pod as soon as the news of its container's start has come back."""
        async with asyncio.timeout(10):
            while "containerStatuses" not in self.pods.get(key, {}).get("status", {}):  # noqa: ASYNC110 told by no event
                await asyncio.sleep(0.02)
        return self.pods[key]

    async def restart(self, key: str, *, ready: bool = True) -> None:
        """Have the container of a pod exit and start anew."""
        async with self._busy.setdefault(key, asyncio.Lock()):
            pod = await self._started(key)
            restarts = pod["status"]["containerStatuses"][0]["restartCount"] + 1
            await self._run_container(pod, restarts=restarts, ready=ready)

    async def crash(self, key: str, code: int = 1) -> None:
        """Have the container of a pod exit, and wait before its next start."""
        async with self._busy.setdefault(key, asyncio.Lock()):
            pod = await self._started(key)
            restarts = pod["status"]["containerStatuses"][0]["restartCount"] + 1
            waiting = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}
            container = _ended("server", code) | {"restartCount": restarts, "ready": False}
            container |= {"lastState": container["state"], "state": {"waiting": waiting}}
            conditions = [{"type": "ContainersReady", "status": "False"}, {"type": "Ready", "status": "False"}]
            await self._patch(pod, {"containerStatuses": [container], "conditions": conditions})

    # -- logs ------------------------------------------------------------------------------------------------------

    async def serve_logs(self, address: str) -> web.AppRunner:
        """Serve logs at a node's address; gives what ends it."""
        application = web.Application()
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._log)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "tls.crt", self.folder / "tls.key")
        await web.TCPSite(runner, address, self.port, ssl_context=context).start()
        return runner

    async def _log(self, request: web.Request) -> web.Response:
        key = f"{request.match_info['namespace']}/{request.match_info['pod']}"
        pod = self.pods.get(key)
        if pod is None:
            return web.Response(status=404, text="no such pod")
        self.log_reads[key] += 1
        behaviour = self._behaviour(pod)
        if behaviour.log_errors > 0:
            behaviour.log_errors -= 1
            return web.Response(status=500, text="the container runtime does not answer")
        container = request.match_info["container"]
        command = pod["spec"]["containers"][0].get("command") or []
        told = (text for source, text in behaviour.summaries.items() if source in command)
        said = {"inspect": next(told, behaviour.summary), "fetch": behaviour.fetch_log}
        text = said[container] if container in said else behaviour.log(pod)
        return web.Response(text=text[: int(request.query.get("limitBytes", "1000000000"))])


def _ended(name: str, code: int) -> dict[str, Any]:
    return {
        "name": name,
        "image": "x",
        "imageID": "x",
        "ready": False,
        "restartCount": 0,
        "state": {
            "terminated": {
                "exitCode": code,
                "reason": "Completed" if code == 0 else "Error",
                "startedAt": "2026-01-01T00:00:00Z",
                "finishedAt": "2026-01-01T00:00:01Z",
                "containerID": "containerd://ended",
            }
        },
    }

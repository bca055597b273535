"""Measures from apply to the first token of a model that its node has already: `python -m bench --only first`.

Beside it stands llama-server started by hand on the same machine, with the same file and settings, and a bare Pod with
the same container. It needs the local cluster, and starts it where it is not up.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from cluster import models
from cluster.settings import CONTROL_PLANE_IP, Programs, cache_folder
from e2e import api, installation, kit
from support.cluster import RTX_4080, apply, clear_lies, ensure_cluster, eventually, kubectl, models_folder
from support.fetch_site import COMMIT, Site, add_repository, site
from support.helm import missing_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench.figures import Figures

RUNS = 5
NAMESPACE, REPOSITORY = "bench-first-token", "bench/gemma"
FOLDER = "bench-cache"
PINNED = f"hf://{REPOSITORY}@{COMMIT}/{models.NAME}"
PORT = 8080
SECONDS = 120
ASKED = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1})


def missing() -> str | None:
    """Say why the local cluster cannot be used here; None when it can."""
    if os.geteuid() != 0:
        return "the local cluster needs root"
    programs = Programs(cache_folder())
    wanted = (programs.etcd, programs.kubernetes, programs.containerd, programs.llama)
    lacking = [one.name for one in wanted if not one.exists()]
    return f"not built yet: {', '.join(lacking)} (make build)" if lacking else missing_program()


def measure_first_token(figures: Figures, say: Callable[[str], None] = print) -> None:
    """Measure all ways in turn; medians."""
    why = missing()
    if why is not None:
        say(f"apply -> first token is left out: {why}")
        return
    file = models.cached(cache_folder())
    ensure_cluster()
    bare = [by_hand(file) for _ in range(RUNS + 1)][1:]  # the first one fills the page cache
    with site(host=CONTROL_PLANE_IP) as hub, installed(hub):
        add_repository(hub, REPOSITORY, {models.NAME: file})
        served("warm", PINNED)
        container = kit.pods(NAMESPACE, "warm")[0]
        gone("warm")
        pods = [bare_pod(f"bare-{number}", container) for number in range(RUNS)]
        known = [applied(f"known-{number}", PINNED) for number in range(RUNS)]
        asked = []
        for number in range(RUNS):  # of a branch nobody has asked for: whether it has the same content is to be seen
            branch = f"b{number}"
            add_repository(hub, REPOSITORY, {models.NAME: file}, branch)
            asked.append(applied(f"asked-{number}", f"hf://{REPOSITORY}@{branch}/{models.NAME}"))
        stages("stages", PINNED, say)
    for name, values in (("hand", bare), ("pod", pods), ("known", known), ("asked", asked)):
        say(f"first token, {name}: {' '.join(f'{value:.2f}' for value in values)} s")
    figures.put("first_hand", statistics.median(bare))
    figures.put("first_pod", statistics.median(pods))
    figures.put("first_known", statistics.median(known))
    figures.put("first_asked", statistics.median(asked))
    figures.put("first_more", statistics.median(known) - statistics.median(bare))


@contextmanager
def installed(hub: Site) -> Iterator[None]:
    """Have the present code run with caches on the nodes and with this hub; afterwards as it was before."""
    for node in kit.NODES:
        clear_lies(node)
        kit.boot(node)
        shutil.rmtree(models_folder(node) / FOLDER, ignore_errors=True)
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
    installation.install()
    fetch = {"hub": hub.address, "env": {"PADDOCK_FETCH_PLAIN_HTTP": "true"}}
    cache = {"hostPath": f"/var/lib/paddock/models/{FOLDER}"}
    installation.upgrade(values={"modelCache": cache, "fetch": fetch})
    installation.wait_listed()
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    try:
        yield
    finally:
        kubectl("delete", "mdep", "--all", "-n", NAMESPACE)
        kubectl("delete", "namespace", NAMESPACE)
        installation.upgrade()
        for node in kit.NODES:
            shutil.rmtree(models_folder(node) / FOLDER, ignore_errors=True)


def answered(address: str, port: int = PORT) -> bool:
    """Ask for one token; tells whether it came. Nobody there, and a server that still loads, are no answers."""
    with (
        suppress(OSError, http.client.HTTPException),
        closing(http.client.HTTPConnection(address, port, timeout=0.5)) as connection,
    ):
        connection.connect()
        connection.sock.settimeout(30)
        connection.request("POST", "/v1/chat/completions", ASKED, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status == http.client.OK
    return False


def until_answered(where: Callable[[], str | None], began: float, look: Callable[[], None] | None = None) -> float:
    """Ask until a token comes; gives the seconds since `began`."""
    address = None
    while time.monotonic() - began < SECONDS:
        address = address or where()
        if address is not None and answered(address):
            return time.monotonic() - began
        if look is not None:
            look()
        time.sleep(0.02)
    raise AssertionError(f"no answer within {SECONDS} s")


def by_hand(file: Path) -> float:
    """Start llama-server as a person would, without Kubernetes; gives the seconds to its first token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    program = Programs(cache_folder()).llama / "bin" / "llama-server"
    where = ["-m", str(file), "--host", "127.0.0.1", "--port", str(port), "--device", "none", "-ngl", "0", "--offline"]
    settings = ["-c", "512", "-np", "1", "-t", "1", "-fit", "off", "--no-warmup"]
    began = time.monotonic()
    server = subprocess.Popen([program, *where, *settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not answered("127.0.0.1", port):
            assert server.poll() is None, "llama-server has ended"
            assert time.monotonic() - began < SECONDS, "llama-server does not answer"
            time.sleep(0.02)
        return time.monotonic() - began
    finally:
        server.kill()
        server.wait()


def bare_pod(name: str, like: api.Object) -> float:
    """Create a Pod with the container of a server, without what Paddock adds; gives the seconds to its first token."""
    spec: dict[str, Any] = {
        key: value
        for key, value in like["spec"].items()
        if key in ("affinity", "runtimeClassName", "securityContext", "volumes", "automountServiceAccountToken")
    }
    spec["containers"] = [one for one in like["spec"]["containers"] if one["name"] == "server"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
    began = time.monotonic()
    api.create("pods", NAMESPACE, pod)
    took = until_answered(lambda: kit.named("pods", NAMESPACE, name).get("status", {}).get("podIP"), began)
    kubectl("delete", "pod", name, "-n", NAMESPACE, "--grace-period=1")
    return took


def applied(name: str, source: str, look: Callable[[], None] | None = None) -> float:
    """Create a deployment; gives the seconds to the first token through its Service, and removes it."""

    def address() -> str | None:
        found = api.found("services", NAMESPACE, name)
        return str(found["spec"]["clusterIP"]) if found is not None else None

    body = kit.deployment(name, {"uuid": RTX_4080}, model={"source": source})
    body["metadata"]["namespace"] = NAMESPACE
    began = time.monotonic()
    api.create("modeldeployments", NAMESPACE, body)
    took = until_answered(address, began, look)
    gone(name)
    return took


def served(name: str, source: str) -> None:
    """Have a deployment serve, and its files be known to be on the node."""
    kit.put(NAMESPACE, kit.deployment(name, {"uuid": RTX_4080}, model={"source": source}))
    kit.wait_available(NAMESPACE, name)
    told = "files on node1"
    kit.wait_all(NAMESPACE, [name], told, lambda one: one["status"].get("model", {}).get("nodes") == ["node1"], 60)


def gone(name: str) -> None:
    """Remove a deployment, and wait until nothing of it is left."""
    kubectl("delete", "mdep", name, "-n", NAMESPACE)
    kubectl("delete", "pods", "-l", f"paddock.dev/model-deployment={name}", "-n", NAMESPACE, "--grace-period=1")
    eventually(f"{name} is gone", lambda: not kit.pods(NAMESPACE, name) and not kit.reservations(NAMESPACE), 60)


def stages(name: str, source: str, say: Callable[[str], None]) -> None:
    """Say when each step of one further start was seen; looking costs a little, so it counts for no figure."""
    seen: dict[str, float] = {}
    began = time.monotonic()

    def look() -> None:
        for pod in kit.pods(NAMESPACE, name):
            for step in steps(pod):
                seen.setdefault(step, time.monotonic() - began)

    seen["first token"] = applied(name, source, look)
    say("steps: " + ", ".join(f"{step} {moment:.2f}" for step, moment in seen.items()) + " s")


def steps(pod: api.Object) -> list[str]:
    """Give the steps that a pod has behind it."""
    status = pod.get("status", {})
    conditions = {one["type"] for one in status.get("conditions", ()) if one["status"] == "True"}
    fetch = next(iter(status.get("initContainerStatuses", ())), {}).get("state", {})
    server = next((one for one in status.get("containerStatuses", ()) if one["name"] == "server"), {})
    behind = {
        "pod created": True,
        "scheduled": "PodScheduled" in conditions,
        "fetch runs": bool(fetch.keys() & {"running", "terminated"}),
        "fetched": "terminated" in fetch,
        "server runs": "running" in server.get("state", {}),
        "server answers": bool(server.get("ready")),
        "proven": "paddock.dev/verified" in conditions,
        "Ready": "Ready" in conditions,
    }
    return [step for step, there in behind.items() if there]

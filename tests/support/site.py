"""What one test of the operator works with: a namespace of its own, nodes, operators, and short ways to ask."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from support.client import JSON, eventually
from support.harness import API, GPUS, MODEL, Plane
from support.pretend_agent import card

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paddock.api.report import ListedDevice
    from support.harness import PretendNode
    from support.operator_process import Operator

POLICIES = f"{API}/placementpolicies"
VOLUMES = "/api/v1/persistentvolumes"
GPU = "node1-0000-01-00-0"
"""Name of the first card of node1."""


class Site:
    """What one test works with: its namespace on the shared API server."""

    def __init__(self, shared: Plane, namespace: str) -> None:
        self.plane, self.client, self.kubelet, self.namespace = shared, shared.client, shared.kubelet, namespace

    # -- operators and nodes

    def operator(self, **settings: Any) -> Operator:
        """Give the running operator if it has these settings, else a new one in its place."""
        running = [one for one in self.plane.operators if one.running]
        if len(running) == 1 and getattr(running[0], "settings", None) == settings and not settings:
            return running[0]
        self.plane.stop_operators()
        return self.another_operator(**settings)

    def another_operator(self, **settings: Any) -> Operator:
        """Start one more operator."""
        made = self.plane.operator(**settings)
        vars(made)["settings"] = settings
        return made

    def node(self, name: str = "node1", devices: Sequence[ListedDevice] | None = None, **more: Any) -> PretendNode:
        """Add a node, by default with one card of 16 GiB, and wait until its GPUs are known."""
        cards = [card(0, 16)] if devices is None else devices
        made = self.plane.node(name, cards, **more)
        if more.get("agent", True) and more.get("announced", True):
            eventually(lambda: len([one for one in self.gpus() if one["status"]["node"] == name]) >= len(cards))
        return made

    # -- objects

    def path(self, name: str = "", kind: str = "modeldeployments") -> str:
        group = API if kind == "modeldeployments" else "/api/v1"
        return f"{group}/namespaces/{self.namespace}/{kind}{'/' if name else ''}{name}"

    def body(self, name: str, **spec: Any) -> JSON:
        return {
            "apiVersion": "paddock.dev/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": name},
            "spec": {"model": {"source": f"file://{MODEL}"}, **spec},
        }

    def apply(self, name: str = "gemma", **spec: Any) -> JSON:
        return self.client.do("POST", self.path(), self.body(name, **spec))

    def rule(self, **spec: Any) -> None:
        """Make, or change, the PlacementPolicy of this namespace."""
        name = f"of-{self.namespace}"
        meta = {"name": name}
        body = {"apiVersion": "paddock.dev/v1alpha1", "kind": "PlacementPolicy", "metadata": meta}
        if self.client.get(f"{POLICIES}/{name}") is None:
            self.client.do("POST", POLICIES, body | {"spec": {"namespaces": [self.namespace], **spec}})
        else:
            self.client.do("PATCH", f"{POLICIES}/{name}", {"spec": spec})
        self.settle()

    def events(self, name: str) -> list[JSON]:
        """Give the Events about a deployment."""
        found = self.client.items(self.path("", "events"))
        return [one for one in found if one["involvedObject"]["name"] == name]

    def change(self, name: str, **spec: Any) -> JSON:
        return self.client.do("PATCH", self.path(name), {"spec": spec})

    def status(self, name: str = "gemma") -> JSON:
        found = self.client.get(self.path(name))
        assert found is not None, f"there is no deployment {name}"
        status: JSON = found.get("status", {})
        return status | {"generation": found["metadata"]["generation"]}

    def condition(self, type_: str, name: str = "gemma") -> JSON:
        found = [one for one in self.status(name).get("conditions", ()) if one["type"] == type_]
        assert found, f"{name} has no condition {type_} yet"
        condition: JSON = found[0]
        return condition

    def wait_for(
        self, type_: str, status: str, reason: str | None = None, name: str = "gemma", seconds: float = 40
    ) -> JSON:
        """Wait for a condition about the present spec."""

        def there() -> JSON:
            found, generation = self.condition(type_, name), self.status(name)["generation"]
            want = (status, reason or found["reason"], generation)
            assert (found["status"], found["reason"], found["observedGeneration"]) == want, found
            return found

        return eventually(there, seconds, f"{name} {type_}={status} {reason or ''}")

    def serve(self, name: str = "gemma", **spec: Any) -> JSON:
        """Apply a deployment and wait until it serves; gives its only pod."""
        self.apply(name, **spec)
        self.wait_for("Available", "True", "Serving", name)
        return self.pods(name)[0]

    def pods(self, name: str = "gemma") -> list[JSON]:
        """Give the pods of a deployment that are not on their way out."""
        selector = f"?labelSelector=paddock.dev/model-deployment={name},app.kubernetes.io/component=model-server"
        found = self.client.items(self.path("", "pods") + selector)
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    def all_pods(self) -> list[JSON]:
        return self.client.items(self.path("", "pods"))

    def gpus(self) -> list[JSON]:
        return [one for one in self.client.items(GPUS) if "status" in one]

    def gpu(self, name: str = GPU) -> JSON:
        found = self.client.get(f"{GPUS}/{name}")
        assert found is not None, f"there is no GPU {name}"
        status: JSON = found["status"]
        return status

    def gpu_ready(self, name: str = GPU) -> JSON:
        condition: JSON = self.gpu(name)["conditions"][0]
        return condition

    def reservations(self) -> dict[str, int]:
        """Give reserved bytes by pod name, over all GPUs; a pod that is booked twice is a failure."""
        all_ = [one for gpu in self.gpus() for one in gpu["status"].get("reservations", ())]
        twice = [pod for pod, count in Counter(one["pod"] for one in all_).items() if count > 1]
        assert not twice, f"booked twice: {twice}"
        return {one["pod"].partition("/")[2]: one["bytes"] for one in all_}

    def settle(self, quiet: float = 0.6, seconds: float = 40) -> int:
        """Wait until the operators have written nothing for a moment; gives the mark in the audit log."""
        last, since, deadline = -1, time.monotonic(), time.monotonic() + seconds
        while time.monotonic() - since < quiet:
            assert time.monotonic() < deadline, "the operators do not stop writing"
            count = sum(self.plane.written().values())
            if count != last:
                last, since = count, time.monotonic()
            time.sleep(0.05)
        return self.plane.audit_mark()

    def clean(self) -> None:
        """Remove what the test made, and see that nothing is left behind."""
        self.remove_all()
        self.client.delete(f"/api/v1/namespaces/{self.namespace}")

    def remove_all(self) -> None:
        """Remove deployments, servers, nodes and volumes of all namespaces, and wait until they are gone."""
        for one in self.client.items(f"{API}/modeldeployments"):
            meta = one["metadata"]
            self.client.delete(f"{API}/namespaces/{meta['namespace']}/modeldeployments/{meta['name']}")
        for one in self.client.items(POLICIES):
            self.client.delete(f"{POLICIES}/{one['metadata']['name']}")
        self.kubelet.paused = False
        self.kubelet.behaviours.clear()
        for pod in self._all_servers():
            meta = pod["metadata"]
            self.client.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", gracePeriodSeconds=0)
        if not any(one.running for one in self.plane.operators):
            self.another_operator()
        for name in list(self.plane.nodes):
            self.plane.remove_node(name)
        eventually(lambda: not self._all_servers(), 20, "no pod is left")
        for kind in ("persistentvolumeclaims", "persistentvolumes"):
            for one in self.client.items(f"/api/v1/{kind}"):
                space = one["metadata"].get("namespace")
                path = f"/api/v1/namespaces/{space}/{kind}" if space else f"/api/v1/{kind}"
                self.client.delete(f"{path}/{one['metadata']['name']}")
        eventually(lambda: not self.client.items(VOLUMES), 20, "no volume is left")
        self._none_left()

    def _none_left(self) -> None:
        """Wait until the operator has removed the GPUs of nodes that are gone."""

        def none() -> bool:
            left = self.client.items(GPUS)
            assert not left, left
            return True

        eventually(none, 20, "no GPU of a node that is gone is left")

    def _all_servers(self) -> list[JSON]:
        """Give the servers and inspectors of all namespaces."""
        return self.client.items("/api/v1/pods?labelSelector=app.kubernetes.io/managed-by=paddock")

"""The only module that knows kopf's decorators. Handlers pass on; they decide nothing and leave nothing on objects."""

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import kopf
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory
from typing_extensions import override

from paddock.api.vocabulary import GROUP, VERSION
from paddock.controller.controller import POD_SELECTOR, Controller
from paddock.controller.lists import PAGE

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


IDLE = 0.5
"""Seconds that kopf keeps a task and a queue for an object after its last event."""


class NoDiffs(kopf.DiffBaseStorage):
    """kopf copies each object of each event to tell what changed, a third of all work; handlers of events never ask."""

    @override
    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return cast("kopf.BodyEssence", {})

    @override
    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    @override
    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Leave nothing on the object."""


class NoProgress(kopf.StatusProgressStorage):
    """Handlers of events have no progress; looking for it would copy each object once more."""

    @override
    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


class NoMemories(ResourceMemories):
    """kopf keeps some two kilobytes for each object it has ever been told of, for daemons and timers; here are none."""

    @override
    async def recall(
        self,
        raw_body: kopf.RawBody,
        *,
        memobase: Any = None,
        noticed_by_listing: bool = False,
        ephemeral: bool = False,
    ) -> ResourceMemory:
        return await super().recall(raw_body, memobase=memobase, noticed_by_listing=noticed_by_listing, ephemeral=True)


def registry() -> kopf.OperatorRegistry:
    """Give a registry with all handlers, and no global state."""
    made = kopf.OperatorRegistry()
    kopf.on.login(registry=made)(login)
    kopf.on.startup(registry=made)(start)
    kopf.on.cleanup(registry=made)(stop)
    kopf.on.event(GROUP, VERSION, "modeldeployments", registry=made)(deployment_event)
    kopf.on.event(GROUP, VERSION, "gpus", registry=made)(gpu_event)
    kopf.on.event(GROUP, VERSION, "placementpolicies", registry=made)(policy_event)
    kopf.on.event("v1", "pods", registry=made)(pod_event)
    kopf.on.event("v1", "nodes", registry=made)(node_event)
    kopf.on.event("node.k8s.io", "v1", "runtimeclasses", registry=made)(runtime_class_event)
    return made


def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """Use the service account inside a pod, a kubeconfig outside.

    kopf's own ways would import the whole client, or need a cluster DNS. kopf asks again when the token has run out.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = SERVICE_ACCOUNT / "token"
    if not host or not token.is_file():
        return kopf.login_with_kubeconfig(**kwargs)
    return kopf.ConnectionInfo(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ca_path=str(SERVICE_ACCOUNT / "ca.crt"),
        token=token.read_text().strip(),
    )


async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Set kopf up as an informer. Our own stores are seeded already."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.chunk_size = PAGE
    settings.queueing.idle_timeout = IDLE
    settings.persistence.diffbase_storage = NoDiffs()
    settings.persistence.progress_storage = NoProgress()
    settings.watching.label_selectors["pods"] = POD_SELECTOR


async def stop(memo: Controller, **_: Any) -> None:
    """End background work before kopf leaves."""
    await memo.stop()


async def inform(controller: Controller, end: asyncio.Event, take_signals: Callable[[], None]) -> None:
    """Run kopf with our handlers until `end` is set; `take_signals` is called once kopf has taken them."""
    settings = controller.settings
    namespaces = sorted({*settings.watch_namespaces, settings.namespace})
    # Without an identity kopf looks its user up by number, which has no entry in an image.
    options: dict[str, Any] = {"identity": settings.pod_name, "standalone": True, "stop_flag": end}
    options |= {"namespaces": namespaces} if settings.watch_namespaces else {"clusterwide": True}
    ours = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(registry=registry(), memo=controller, memories=NoMemories(), **options)
    take_signals()  # kopf would end slowly by them.
    await kopf.run_tasks(tasks, ignored=ours)  # kopf would take them for its own that hang


async def deployment_event(memo: Controller, event: kopf.RawEvent, **_: Any) -> None:
    """Pass on a change of a ModelDeployment."""
    memo.deployment_event(event["type"], event["object"])


async def gpu_event(memo: Controller, event: kopf.RawEvent, **_: Any) -> None:
    """Pass on a change of a GPU."""
    memo.gpu_event(event["type"], event["object"])


async def policy_event(memo: Controller, event: kopf.RawEvent, **_: Any) -> None:
    """Pass on a change of a PlacementPolicy."""
    memo.policies.apply(event["type"], event["object"])


async def pod_event(memo: Controller, event: kopf.RawEvent, **_: Any) -> None:
    """Pass on a change of a server, inspector or agent pod."""
    memo.pod_event(event["type"], event["object"])


async def node_event(memo: Controller, event: kopf.RawEvent, **_: Any) -> None:
    """Pass on a change of a Node."""
    memo.node_event(event["type"], event["object"])


async def runtime_class_event(memo: Controller, event: kopf.RawEvent, **_: Any) -> None:
    """Pass on a change of a RuntimeClass."""
    memo.runtime_class_event(event["type"], event["object"])

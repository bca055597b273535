"""What is asked for a replica, and how the decision is written down: values from what the operator has seen."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from paddock.api.gpu import Reservation
from paddock.api.modeldeployment import ModelDeploymentSpec, Need, ServingSpec
from paddock.api.vocabulary import Reason
from paddock.controller.claims import new_name
from paddock.controller.clock import now
from paddock.controller.found import Found
from paddock.controller.ledger import Ledger
from paddock.controller.needs import need
from paddock.controller.settings import Settings
from paddock.controller.store import World
from paddock.core import args, images
from paddock.core.binding import NVIDIA, ON_CPU, Asked, Binding, Names, Refused, bind, choose, facts_of
from paddock.core.companions import group_of, wanted_of
from paddock.core.context import Wish, wish_of
from paddock.core.deployment import Deployment
from paddock.core.dra import CLAIM_IN_POD
from paddock.core.fleet import Fleet
from paddock.core.need import MemoryNeed
from paddock.core.placement import Placement
from paddock.core.plan import Wanted
from paddock.core.pod import CONTEXT_CHECKPOINTS, model_memory
from paddock.core.quantity import round_up
from paddock.core.replica import Record, Replica
from paddock.core.request import Request, request_of
from paddock.core.rules import rules_for
from paddock.core.source import ImageSource, RemoteSource, Source, parse_any
from paddock.core.status import Finding, last_devices
from paddock.core.survey import named


@dataclass(frozen=True, slots=True)
class Accepted:
    """A spec that can be served: the source, its header, and the need for one context."""

    source: Source | RemoteSource
    found: Found
    serving: ServingSpec
    needs: Mapping[str, MemoryNeed]
    """By ggml's name of the backend, for the backends of the fleet; empty with gpuLayers 0."""
    wish: Wish
    context: int
    """Tokens of each request."""
    open: bool
    """Whether the context is still to be chosen; until then it is the least."""
    cache_claim: str | None = None
    """The user's claim in which fetched files are kept."""
    memory: int | None = None
    """Bytes of host memory that the spec has for the model; None where it does not say."""

    @property
    def need(self) -> MemoryNeed:
        """The largest of the needs."""
        if not self.needs:
            return self._need(gpu=self.serving.gpu_layers == "All")
        return max(self.needs.values(), key=lambda one: (one.device_bytes, one.host_bytes))

    @property
    def cpu_bytes(self) -> int:
        """Host memory of a replica on the CPU."""
        return self._need(gpu=False).host_bytes

    def on(self, backend: str) -> MemoryNeed:
        """Give the need on a device of this backend."""
        return self.needs.get(backend) or self._need(gpu=True, backend=backend)

    def at(self, context: int, *, settled: bool = True) -> "Accepted":
        """Give the same with another context."""
        bare = replace(self, context=context, open=not settled, needs={})
        return replace(bare, needs={backend: bare.on(backend) for backend in self.needs})

    def told(self, placed: Iterable[Replica]) -> Need:
        """Give the need as the status tells it: on the backend of a placed replica, else where it is largest."""
        backend = next((one.record.backend for one in placed if one.record is not None and one.record.gpu), None)
        found = self.need if backend is None or not self.needs else self.on(backend)
        sizes = {name: one.device_bytes for name, one in self.needs.items()}
        several = len({round_up(size) for size in sizes.values()}) > 1
        return found.to_status().model_copy(update={"by_backend": sizes if several else None})

    def _need(self, *, gpu: bool, backend: str | None = None) -> MemoryNeed:
        assert self.found.summary is not None  # noqa: S101 accepted
        return need(
            self.found.summary,
            self.serving,
            gpu=gpu,
            backend=backend,
            checkpoints=CONTEXT_CHECKPOINTS,
            context=self.context,
            beside=group_of(self.found.beside),
        )


def accepted_of(
    source: Source | RemoteSource, found: Found, spec: ModelDeploymentSpec, chosen: int | None, backends: Iterable[str]
) -> Accepted:
    """Give what a spec needs whose model's header was found; chosen is the context, where that was open once."""
    assert found.summary is not None  # noqa: S101 found
    serving, cache = spec.serving, spec.model.cache
    wish = wish_of(serving, found.summary.context_train)
    on_device = serving.gpu_layers == "All"
    needs = dict.fromkeys(backends if on_device else (), MemoryNeed())
    claim = cache.claim if cache is not None else None
    bare = Accepted(source, found, serving, needs, wish, 0, False, claim, model_memory(spec))
    return bare.at(chosen or wish.least, settled=wish.fixed or chosen is not None)


def spec_refusal(deployment: Deployment, settings: Settings) -> Source | RemoteSource | Finding:
    """Check what the API server cannot: gives the parsed source, or why the spec is refused."""
    spec = deployment.spec
    if spec is None:
        return Finding("False", Reason.INVALID_SPEC, deployment.problem)
    problem = args.check(spec.serving.args)
    if problem is not None:
        return Finding("False", Reason.ARGUMENT_REFUSED, problem)
    image = spec.server.image
    if image is not None and not images.allowed(image, settings.allowed_images, settings.server_images):
        known = ", ".join(settings.allowed_images) or "none beside the built-in ones"
        return Finding("False", Reason.IMAGE_REFUSED, f"image {image} is not allowed; allowed patterns: {known}")
    source = parse_any(spec.model.source, settings.model_roots)
    if isinstance(source, str):
        return Finding("False", Reason.SOURCE_REFUSED, source)
    beside = wanted_of(spec.model, settings.model_roots)
    if isinstance(beside, str):
        return Finding("False", Reason.SOURCE_REFUSED, beside)
    if not settings.image_volumes and any(
        isinstance(one, ImageSource) for one in (source, *(w.source for w in beside))
    ):
        message = "image:// is not switched on (imageVolumes in the chart's values); it needs Kubernetes' image volumes"
        return Finding("False", Reason.SOURCE_REFUSED, message)
    fetched = any(isinstance(one, RemoteSource) for one in (source, *(one.source for one in beside)))
    if fetched and spec.model.cache is None and not settings.cache_folder:
        message = "the nodes have no cache (modelCache in the chart's values), and spec.model.cache names no claim"
        return Finding("False", Reason.NO_CACHE, message)
    return source


def candidates_of(deployment: Deployment, world: World, ledger: Ledger) -> list[str]:
    """Give the nodes on which a deployment could run, as far as its own words say."""
    spec = deployment.spec
    assert spec is not None  # noqa: S101 called for accepted specs only
    selector = spec.placement.node_selector
    found = [
        node.name
        for node in world.nodes.values()
        if all(node.labels.get(key) == value for key, value in selector.items())
    ]
    if spec.placement.devices:
        there = {device.node for device in named(spec.placement.devices, ledger.fleet(world.nodes))}
        found = [name for name in found if name in there] or found
    return found


def request_for(
    deployment: Deployment, accepted: Accepted, wanted: Wanted, world: World, settings: Settings
) -> Request:
    """Give what one replica asks for, beside its spec: its siblings, where the file is, what the cluster has."""
    needed = accepted.need
    sizes = (round_up(needed.device_bytes), needed.host_bytes, needed.token_bytes)
    request = request_with(deployment, sizes, accepted.found, wanted, world, settings)
    return replace(request, needs={backend: one.device_bytes for backend, one in accepted.needs.items()})


def request_with(
    deployment: Deployment,
    sizes: tuple[int, int, int],
    found: Found,
    wanted: Wanted,
    world: World,
    settings: Settings,
) -> Request:
    """Give the same where only sizes (on the device, of host memory, per token) and places of the file are known."""
    spec = deployment.spec
    assert spec is not None  # noqa: S101 accepted
    # The pod that is replaced is no sibling: its successor keeps to its device and apart from the others.
    siblings = frozenset(one.key for one in world.replicas.of(deployment.key) if one != wanted.replacing)
    chosen = spec.server.runtime_class_name or settings.runtime_classes.get(NVIDIA)
    image = spec.server.image
    request = request_of(spec, *sizes, rules_for(deployment.namespace, world.rules.values()))
    return replace(
        request,
        # The CPU is for when no device fits, not for when the agents have not told of theirs yet.
        allow_cpu=request.allow_cpu and (request.on_cpu or world.fleet_is_known),
        siblings=siblings,
        seed=f"{deployment.uid} {wanted.number}",
        last=last_devices(deployment).get(wanted.number) if spec.placement.sticky else None,
        file_nodes=found.file_nodes,
        volume_nodes=found.volume_nodes,
        near_nodes=found.near_nodes,
        backends=images.backends_of(image) if image else images.known_backends(settings.server_images),
        runtime_classes={"CUDA": chosen is not None and chosen in world.runtime_classes},
        runtime_class=chosen,
    )


def binding_of(
    deployment: Deployment, decision: Placement, pod: str, world: World, settings: Settings
) -> Binding | Finding:
    """Give how a replica gets its device; `pod` is the name of its pod."""
    spec, device = deployment.spec, decision.device
    assert spec is not None  # noqa: S101 accepted
    name = device.node if device is not None else decision.node or ""
    facts = facts_of(name, world.nodes.get(name), frozenset(world.runtime_classes))
    wish = Asked(spec.server.runtime_class_name or settings.runtime_classes.get(NVIDIA))
    chosen = choose(device, facts, wish) if device is not None else ON_CPU
    if isinstance(chosen, Refused):
        return Finding("False", Reason.NO_DEVICE, chosen.reason)
    names = Names(
        settings.runtime_classes.get(NVIDIA),
        pod,
        deployment.namespace,
        deployment.owner_reference,
        new_name(pod),
        world.handlers.get(wish.runtime_class or "", ""),
    )
    return bind(device, facts, decision.need, names, chosen)


def record_of(
    deployment: Deployment,
    accepted: Accepted,
    decision: Placement,
    binding: Binding,
    world: World,
    settings: Settings,
) -> Record | Finding:
    """Write the decision down; a Finding when no image or node can be named."""
    spec, device = deployment.spec, decision.device
    assert spec is not None  # noqa: S101 accepted
    node = decision.node
    if device is None and node is None and accepted.found.file_nodes is not None:
        return Finding("False", Reason.NO_DEVICE, "no node with the file can take a replica on the CPU")
    backend = device.backend if device is not None else images.CPU
    known = world.nodes.get(node or "")
    image = spec.server.image or images.server_image(
        backend,
        architecture=known.architecture if known is not None else "amd64",
        driver=device.driver if device is not None else None,
        overrides=settings.server_images,
    )
    if image is None:
        return Finding("False", Reason.NO_IMAGE, f"no server image for {backend} on {node}")
    planned = f"a card of {node} that the plugin of its vendor picks; planned with "
    base = Record(
        gpu=None,
        node=node,
        need=0,
        reason=decision.reason if binding.exact_device else planned + decision.reason,
        since=now(),
        policy=spec.placement.policy,
        image=image,
        host_weights=accepted.need.host_weights,
        context=accepted.context,
        binder=binding.binder,
        binder_reason=binding.reason,
        exact_device=None if binding.exact_device else False,
        claim=binding.resource_claims.get(CLAIM_IN_POD),
    )
    if device is None:
        return base
    on_it = accepted.on(device.backend)
    return replace(
        base,
        gpu=device.gpu,
        need=decision.need,
        uuid=device.uuid,
        pci_id=device.pci_id,
        name=device.name,
        name_in_pod=binding.name_in_pod or "",
        backend=device.backend,
        description=device.description,
        device_weights=on_it.device_weights - on_it.device_beside,
        device_buffers=on_it.device_buffers,
        host_need=accepted.need.host_bytes,
    )


def host_bytes_of(accepted: Accepted, record: Record, fleet: Fleet) -> int:
    """Give the bytes of host memory that a pod asks for; where its device is in host memory, what it has there, too."""
    device = fleet.device(record.gpu) if record.gpu is not None else None
    if record.gpu is None:
        return accepted.cpu_bytes
    shared = record.need if device is not None and device.in_host_memory else 0
    return accepted.need.host_bytes + shared


def reservation_of(deployment: Deployment, pod: str, record: Record) -> Reservation:
    """Give what is booked for a pod (namespace/name)."""
    return Reservation(
        pod=pod,
        deployment=deployment.key,
        uid=deployment.uid,
        bytes=record.need,
        host_bytes=record.host_need or None,
        since=record.since,
    )

"""How one pod gets exactly one device: which way there is on a node, and what that way puts into the pod.

`choose` picks the binder by what is known of the node, and says why; each binder is a pure function that gives a
`Binding`. What they need of the cluster is in `NodeFacts`; nobody types it in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paddock.api.binding import Binder
from paddock.api.selector import Vendor
from paddock.api.vocabulary import GRANULE, Label, Verdict
from paddock.core.dra import CLAIM_IN_POD
from paddock.core.fleet import DEPLOYED, Device, Holding, Node
from paddock.core.quantity import UNLIMITED
from paddock.core.selector import vendor_of

NVIDIA = "nvidia"
"""The container toolkit's own name of its RuntimeClass."""
LEGACY = "nvidia-legacy"
"""Handler of GPU Operator's RuntimeClass for the toolkit's mode legacy, which knows no names of devices in CDI."""
HIDDEN: Mapping[str, str] = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""Keeps a runtime that gives NVIDIA's cards from giving any, even where the image asks for all."""
_RESOURCES: Mapping[Vendor, str] = {
    Vendor.NVIDIA: "nvidia.com/",
    Vendor.AMD: "amd.com/",
    Vendor.INTEL: "gpu.intel.com/",
    Vendor.MOORE_THREADS: "mthreads.com/",
}
"""How the names of the resources begin that the vendors' own plugins advertise."""
_WHOLE_CARDS: Mapping[Vendor, str] = {Vendor.NVIDIA: "nvidia.com/gpu", Vendor.AMD: "amd.com/gpu"}
"""Resources of which one is a whole card, whose devices have the name of it: UUID or PCI address."""
SHARING = "nvidia.com/gpu.sharing-strategy"
"""Label of a node: whether its plugin gives a card to several pods."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of a node, as far as it decides how a pod gets a device there."""

    node: str
    runtime_classes: frozenset[str] = frozenset()
    """RuntimeClasses of the cluster."""
    resources: Mapping[str, int] = field(default_factory=dict)
    """Extended resources that the node lists, and how many of them it can give."""
    dedicated: bool = False
    """Whether its owner says that its GPUs are Paddock's alone."""
    deployed: bool | None = None
    """Whether NVIDIA's device plugin is to run there, by the label for it; None: nobody says."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for."""

    runtime_class: str | None = NVIDIA
    """Name of the RuntimeClass that gives an NVIDIA card."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The way that is taken, and why."""

    binder: Binder
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no way to give a pod this device."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Names:
    """What a binder may name things by."""

    runtime_class: str | None = None
    pod: str = ""
    namespace: str = ""
    owner: Mapping[str, Any] = field(default_factory=dict)
    """Owner reference for what is made beside the pod."""
    claim: str = ""
    """Name of the pod's ResourceClaim."""
    handler: str = ""
    """Of the RuntimeClass that the pod has: the container runtime's name for the program that starts it."""


@dataclass(frozen=True, slots=True)
class Binding:
    """What makes one device the only visible one: the parts of the pod, and how they were arrived at."""

    name_in_pod: str | None
    """Always the first of its backend, since only one device is visible there; None on the CPU."""
    environment: Mapping[str, str]
    runtime_class: str | None = None
    resources: Mapping[str, str] = field(default_factory=dict)
    """Extended resources that the server's container asks for."""
    supplemental_groups: tuple[int, ...] = ()
    """Groups of the host that may open the device."""
    resource_claims: Mapping[str, str] = field(default_factory=dict)
    """ResourceClaims of the pod's namespace, by their name in the pod; the server's container has them all."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    objects: tuple[Mapping[str, Any], ...] = ()
    """Manifests that are created before the pod."""
    exact_device: bool = True
    """Whether the pod gets this very device; otherwise one of its kind, which is learned afterwards."""
    binder: Binder = Binder.NONE
    reason: str = ""


# --- which way --------------------------------------------------------------------------------------------------------


def facts_of(name: str, node: Node | None, runtime_classes: frozenset[str]) -> NodeFacts:
    """Give what is known of a node."""
    if node is None:
        return NodeFacts(name, runtime_classes)
    deployed = {"true": True, "false": False}.get(node.labels.get(DEPLOYED, ""))
    return NodeFacts(name, runtime_classes, node.resources, node.labels.get(Label.DEDICATED) == "true", deployed)


def choose(device: Device, facts: NodeFacts, wish: Asked) -> Chosen | Refused:
    """Give the binder of a device on its node, the first that can be: its owner's word, DRA, plugin, RuntimeClass."""
    explicit = device.binder
    if explicit is not None:
        found = _WAYS[explicit](device, facts, wish) if explicit in _WAYS else None
        if found is None:
            return Refused(Verdict.BINDER_MISSING, f"the GPU's spec.binder is {explicit}, which its node does not have")
        found = replace(found, reason="the GPU's spec.binder says so") if isinstance(found, Chosen) else found
        return _counting(device, found)
    rival = _rival(device, facts)
    if rival is not None and not facts.dedicated and (device.lent is None or device.offer is not None):
        return Refused(Verdict.VENDOR_PLUGIN_PRESENT, f"{rival} and is not declared dedicated")
    for way in _WAYS.values():
        found = way(device, facts, wish)
        if found is not None:
            return _counting(device, found)
    raise AssertionError  # The last way is always one.


def _is_counted(device: Device, binder: Binder) -> bool:
    """Tell whether a pod asks for the memory that the node's status counts: not for a whole card, or of a plugin."""
    shared = binder in (Binder.RUNTIME_CLASS, Binder.NONE) or device.holding is not None
    return device.counted is not None and shared


def _counting(device: Device, found: Chosen | Refused) -> Chosen | Refused:
    """Refuse a device whose memory the kubelet has not taken over yet: its pod would wait for it as unschedulable."""
    if isinstance(found, Refused) or not _is_counted(device, found.binder):
        return found
    if device.counted is None or device.counted.shown:
        return found
    return Refused(Verdict.BINDER_MISSING, "the kubelet does not list the memory of the card as a resource yet")


def lender(device: Device, node: Node | None, *, given: bool = False) -> str | None:
    """Give the resource by which the plugin of its vendor gives whole cards to pods, this one among them.

    A node whose kubelet was started anew advertises none for a while; where pods were `given` such they are still lent.
    """
    vendor = vendor_of(device)
    name = _WHOLE_CARDS.get(vendor) if vendor is not None else None
    if node is None or name is None or node.labels.get(Label.DEDICATED) == "true":
        return None
    if not node.resources.get(name) and not given:
        return None
    return name if node.labels.get(SHARING, "none") == "none" else None


def _vendor_plugin(device: Device, facts: NodeFacts, wish: Asked) -> Chosen | Refused | None:
    if device.lent is None:
        return None
    if device.holding is not None:
        return _held(device, device.holding, facts, wish)
    return Chosen(
        Binder.VENDOR_PLUGIN, f"the node advertises {device.lent}: its plugin picks the card, and tells which"
    )


def _held(device: Device, holding: Holding, facts: NodeFacts, wish: Asked) -> Chosen | Refused | None:
    if holding.why:
        return Refused(Verdict.VENDOR_PLUGIN_PRESENT, holding.why)
    way = _runtime_class(device, facts, wish)
    if not isinstance(way, Chosen):
        return way
    who = f"holder pod {holding.pod}" if holding.pod else "a holder pod"
    given = f"RuntimeClass {wish.runtime_class} gives it by its UUID"
    return Chosen(Binder.VENDOR_PLUGIN, f"{who} has the card of the node's {device.lent}, and {given}")


def _dra(device: Device, _facts: NodeFacts, _wish: Asked) -> Chosen | Refused | None:
    if device.offer is None:
        return None
    return Chosen(Binder.DRA, f"driver {device.offer.driver} offers the card in a ResourceSlice")


def _runtime_class(device: Device, facts: NodeFacts, wish: Asked) -> Chosen | Refused | None:
    if device.backend != "CUDA":
        return None
    if wish.runtime_class is None or wish.runtime_class not in facts.runtime_classes:
        named = f"RuntimeClass {wish.runtime_class} does not exist" if wish.runtime_class else "no RuntimeClass is set"
        return Refused(Verdict.RUNTIME_CLASS_MISSING, f"{named}, and a pod gets a {device.backend} device by one")
    vendor = vendor_resource(device, facts.resources)
    beside = f", and its node is dedicated although it advertises {vendor}" if vendor is not None else ""
    return Chosen(Binder.RUNTIME_CLASS, f"RuntimeClass {wish.runtime_class} gives the card by its UUID{beside}")


def _device_plugin(device: Device, facts: NodeFacts, asked: Asked) -> Chosen | Refused | None:
    plugin = device.plugin
    if plugin is None or (plugin.hands == "Environment" and device.backend != "CUDA"):
        return None
    if not plugin.registered:
        return Refused(Verdict.BINDER_MISSING, "the kubelet does not know of the node agent's device plugin now")
    if plugin.hands == "Environment":
        way = _runtime_class(device, facts, asked)
        if isinstance(way, Refused):
            return way
    how = {"Cdi": "by its name in CDI", "Devices": "by its device nodes", "Environment": "by its RuntimeClass"}
    return Chosen(Binder.DEVICE_PLUGIN, f"the node agent's device plugin gives it {how[plugin.hands]}")


def _none(device: Device, _facts: NodeFacts, _wish: Asked) -> Chosen | Refused | None:
    return Chosen(Binder.NONE, f"its node has nothing that would give a pod a {device.backend} device")


Way = Callable[[Device, NodeFacts, Asked], Chosen | Refused | None]
_WAYS: Mapping[Binder, Way] = {
    Binder.DRA: _dra,
    Binder.VENDOR_PLUGIN: _vendor_plugin,
    Binder.DEVICE_PLUGIN: _device_plugin,
    Binder.RUNTIME_CLASS: _runtime_class,
    Binder.NONE: _none,
}
"""In the order in which they are tried; None: not a way for this device on this node."""


def vendor_resource(device: Device, resources: Mapping[str, int]) -> str | None:
    """Give the extended resource of the vendor's own plugin that may hand the device out, too; None without one."""
    if not resources:
        return None
    begin = _begin(device)
    return next((name for name in sorted(resources) if resources[name] > 0 and name.startswith(begin)), None)


def _begin(device: Device) -> str:
    vendor = vendor_of(device)
    return _RESOURCES[vendor] if vendor is not None else "/"


def _rival(device: Device, facts: NodeFacts) -> str | None:
    """Give why the plugin of a device's vendor gives it out, too, or soon may; None where it does not.

    A kubelet that was started anew advertises none of a resource until its plugin has come back, and goes on listing it
    when the plugin never does. So a resource that is listed is a plugin's until somebody says that it is kept off, or
    takes the resource off the node.
    """
    if not facts.resources and not facts.deployed:
        return None
    vendor = vendor_resource(device, facts.resources)
    if vendor is not None:
        return f"the node advertises {vendor}"
    nvidia = vendor_of(device) is Vendor.NVIDIA
    if nvidia and facts.deployed is not None:
        return f"the node has to run NVIDIA's device plugin by its label {DEPLOYED}" if facts.deployed else None
    begin = _begin(device)
    listed = next((name for name in sorted(facts.resources) if name.startswith(begin)), None)
    return f"the node lists {listed}, 0 now, whose plugin may come back" if listed is not None else None


# --- what it puts into the pod ----------------------------------------------------------------------------------------


def bind(device: Device | None, facts: NodeFacts, need: int, names: Names, chosen: Chosen) -> Binding:
    """Give what the chosen binder puts into the pod of a replica that needs so many bytes. No device: the CPU."""
    if device is None:
        return Binding(None, HIDDEN, binder=chosen.binder, reason=chosen.reason)
    made = BINDERS[chosen.binder](device, facts, need, names)
    if device.counted is not None and _is_counted(device, chosen.binder):
        made = replace(made, resources={**made.resources, device.counted.resource: _granules(device, need)})
    spelled = made.runtime_class is not None and made.exact_device and names.handler == LEGACY
    reason = f"{chosen.reason}, spelled as its handler {LEGACY} needs it" if spelled else chosen.reason
    return replace(made, binder=chosen.binder, reason=reason)


ON_CPU = Chosen(Binder.NONE, "a replica on the CPU needs no device")


def _granules(device: Device, need: int) -> str:
    """Give how many granules a pod asks for. Where its owner lets models have more than there is, one has to do."""
    return str(1 if device.budget == UNLIMITED else max(1, -(-need // GRANULE)))


def visible(device: Device) -> dict[str, str]:
    """Give the variables that leave only this device visible to its backend, where the host numbers the devices.

    Raises ValueError where it has neither identifier nor position.
    """
    if not device.pinnable:
        raise ValueError(f"{device.gpu} has no identifier by which a pod could be given it alone")
    position = str(device.raw_index)
    match device.backend:
        case "CUDA":
            return {"CUDA_VISIBLE_DEVICES": str(device.uuid), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        case "ROCm":
            return {"ROCR_VISIBLE_DEVICES": device.uuid or position}
        case "MUSA":
            return {"MUSA_VISIBLE_DEVICES": device.uuid or position}
        case "Vulkan":
            return {"GGML_VK_VISIBLE_DEVICES": position}
        case _:
            return {"ONEAPI_DEVICE_SELECTOR": f"level_zero:{position}"}


def by_runtime_class(device: Device, _facts: NodeFacts, _need: int, names: Names) -> Binding:
    """Have NVIDIA's container runtime give the card of this UUID."""
    # This spelling works in the toolkit's modes auto, jit-cdi and cdi; the plain UUID fails where GPU Operator
    # makes management.nvidia.com/gpu the default kind (gpu-operator#1876). In mode legacy it is the other way round.
    plain = names.handler == LEGACY
    environment = {
        "NVIDIA_VISIBLE_DEVICES": str(device.uuid) if plain else f"runtime.nvidia.com/gpu={device.uuid}",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }
    return Binding(f"{device.backend}0", environment | visible(device), names.runtime_class)


def by_device_plugin(device: Device, facts: NodeFacts, need: int, names: Names) -> Binding:
    """Have the kubelet count the memory, and the agent's device plugin give the device.

    Where only this device can be seen, its number there is the first, and variables with the host's would hide it.
    """
    plugin = device.plugin
    if plugin is None:
        raise ValueError(f"{device.gpu} has no device plugin")
    resources = {plugin.resource: _granules(device, need)}
    if plugin.hands == "Environment":
        return replace(by_runtime_class(device, facts, need, names), resources=resources)
    shown = {"SYCL": {"ONEAPI_DEVICE_SELECTOR": "level_zero:0"}, "CUDA": visible(device)}.get(device.backend, {})
    return Binding(
        f"{device.backend}0", {**HIDDEN, **shown}, resources=resources, supplemental_groups=tuple(plugin.groups)
    )


def by_claim(device: Device, _facts: NodeFacts, _need: int, names: Names) -> Binding:
    """Have the scheduler allocate the card for a claim, and its driver give it to the container.

    The claim is made once the pod exists, which owns it. No other device is there: only an identifier can name one that
    the claim is not for, a position is always the first.
    """
    named = visible(device) if device.backend == "CUDA" else {}
    return Binding(f"{device.backend}0", {**HIDDEN, **named}, resource_claims={CLAIM_IN_POD: names.claim})


def by_vendor_plugin(device: Device, facts: NodeFacts, need: int, names: Names) -> Binding:
    """Ask the plugin of its vendor for one card, whichever that is; one that a holder pod has is given by its UUID.

    Variables that name a card would get in the way of those that the plugin sets.
    """
    if device.holding is not None:
        return by_runtime_class(device, facts, need, names)
    cuda = device.backend == "CUDA"
    there = names.runtime_class if cuda and names.runtime_class in facts.runtime_classes else None
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if cuda else {}
    return Binding(f"{device.backend}0", order, there, {str(device.lent): "1"}, exact_device=False)


def by_environment(device: Device, _facts: NodeFacts, _need: int, _names: Names) -> Binding:
    """Name the device to its backend, and nothing else: whoever runs the node sees to it that the pod can open it."""
    return Binding(f"{device.backend}0", {**HIDDEN, **visible(device)})


Bind = Callable[[Device, NodeFacts, int, Names], Binding]
BINDERS: Mapping[Binder, Bind] = {
    Binder.DRA: by_claim,
    Binder.VENDOR_PLUGIN: by_vendor_plugin,
    Binder.RUNTIME_CLASS: by_runtime_class,
    Binder.DEVICE_PLUGIN: by_device_plugin,
    Binder.NONE: by_environment,
}

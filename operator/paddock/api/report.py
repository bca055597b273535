"""What a node agent tells the operator: the answer of `GET /v1/devices` and `GET /v1/header`.

The node's name is not in it: the operator takes that from the agent pod's spec, which the agent cannot forge.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from paddock.api.base import Model
from paddock.api.binding import DevicePlugin
from paddock.api.bus import Bus

REPORT_VERSION = "v1"


class GgmlType(StrEnum):
    """ggml's device types (ggml-backend.h)."""

    CPU = "CPU"
    GPU = "GPU"
    IGPU = "IGPU"
    ACCEL = "ACCEL"


class ListedDevice(Model):
    """One entry of ggml's device registry, joined with what the driver knows."""

    name: str
    """ggml's name, for example CUDA1."""
    description: str = ""
    """ggml's description, for example NVIDIA GeForce RTX 4080."""
    backend: str
    """Registry name, for example CUDA, ROCm, Vulkan, SYCL, RPC."""
    type: GgmlType
    """ggml's type."""
    raw_index: int
    """Position among all devices of its backend, in registry order."""
    index: int | None = None
    """Position in llama.cpp's own offload list; None when it would not be on it."""
    duplicate_of: str | None = None
    """Name of the device of another backend that is the same physical one."""
    ambiguous: bool = False
    """Another device looks the same and neither has an id."""
    memory_total: int | None = None
    """Bytes; None when the driver does not say (ggml reports 0)."""
    memory_free: int | None = None
    """Bytes that were free before the listing itself took any; None when not known."""
    pci_id: str | None = None
    """Lower-case, four-digit domain: 0000:c1:00.0."""
    uuid: str | None = None
    """The driver's identifier, if it gives one."""
    compute_capability: str | None = None
    """CUDA compute capability, for example 8.9."""
    memory_bandwidth: int | None = None
    """Peak bytes per second, from bus width and memory clock."""
    plugin: DevicePlugin | None = None
    """How the agent's device plugin gives it out; None without one."""
    bus: Bus | None = None
    """Where it is plugged in."""


class Fault(Model):
    """Something that failed on the node; a fact, not an outage of the agent."""

    code: Literal["LibraryMissing", "ListingCrashed", "ListingTimedOut", "ListingFailed", "DriverFailed", "NoDevice"]
    """Which fault."""
    message: str
    """In a sentence."""


class Library(Model):
    """The ggml libraries that the listing used."""

    folder: str
    """Folder in the agent's container."""
    version: str | None = None
    """ggml_version()."""
    commit: str | None = None
    """ggml_commit()."""


class CachedModel(Model):
    """The files of one model in the node's cache."""

    key: str
    """Names the content, as in an Origin."""
    bytes: Annotated[int, Field(ge=0)]
    """Of all files."""


class DeviceProcess(Model):
    """A process that has memory of a device, as the driver tells it."""

    pid: int
    """In the host's numbering."""
    bytes: int | None = None
    """Memory of the device that it has; None where the driver does not say."""
    pod: str | None = None
    """UID of its pod, from its cgroup; None for what is no pod's, or is gone already."""
    container: str | None = None
    """Id of its container, without the runtime's name in front."""
    command: str = ""
    """Its name in the kernel's process list, at most 15 characters."""


class DeviceUse(Model):
    """Who has memory of one card. Numbers are told anew once they have moved by 256 MiB, or stand still again."""

    pci_id: str
    """Lower-case, four-digit domain."""
    source: Literal["NVML", "KFD", "DRM"]
    """Who says so."""
    complete: bool = True
    """Whether every user's processes are among them, not only those of the agent's own."""
    used: int | None = None
    """Bytes in use in all, the driver's own included."""
    processes: list[DeviceProcess] = []
    """By pid."""


class DeviceTrouble(Model):
    """What is wrong with one card, as long as it is so."""

    pci_id: str
    """Lower-case, four-digit domain."""
    code: Literal["Lost", "Unreadable", "Xid", "EccError", "NeedsReset"]
    """Which trouble."""
    message: str
    """In a sentence."""


class GivenDevices(Model):
    """What the kubelet gave a container of a resource that the plugin of a vendor advertises."""

    pod: str
    """namespace/name."""
    resource: str
    """For example nvidia.com/gpu."""
    devices: list[str]
    """As the plugin calls them, for example by UUID."""


class NodeReport(Model):
    """Answer of `GET /v1/devices`."""

    version: Literal["v1"] = "v1"
    """Version of this format."""
    devices: list[ListedDevice] = []
    """Every device of the registry except the CPU, in registry order."""
    faults: list[Fault] = []
    """What failed."""
    library: Library | None = None
    """Which libraries listed them."""
    driver_version: str | None = None
    """NVIDIA driver, for example 570.133.07."""
    cuda_version: str | None = None
    """Highest CUDA version of the driver, for example 12.8."""
    architecture: str = "amd64"
    """Processor of the node, as in image names."""
    model_roots: list[str] = []
    """Folders below which `GET /v1/header` reads."""
    cache: list[CachedModel] | None = None
    """What the node's cache holds whole, by key; None without a cache."""
    boot_id: str | None = None
    """Changes with each boot of the node."""
    uses: list[DeviceUse] | None = None
    """Who has memory of the cards whose driver tells that; None where the agent does not look."""
    troubles: list[DeviceTrouble] = []
    """Cards that are out of order."""
    given: list[GivenDevices] | None = None
    """Which pod the kubelet gave which cards of vendors' plugins; None where it is not asked, or does not answer."""


class TensorGroup(Model):
    """Bytes of tensors that are treated alike when layers are offloaded."""

    bytes: Annotated[int, Field(ge=0)]
    """Sum of the sizes in the file's types."""
    count: int
    """Number of tensors."""
    padded: Annotated[int, Field(ge=0)] = 0
    """The same as CUDA and its relatives allocate: each tensor on 128 bytes, quantized rows up to 512 elements."""


class LayerOutline(Model):
    """One kind of repeating layer, as far as the graph of a computation depends on it."""

    traits: str = ""
    """Letters: r recurrent state, a cached keys, w windowed, e experts, i an index of keys."""
    heads: int = 0
    """Attention heads."""
    heads_kv: int = 0
    """Key-value heads as the file says, cached or not."""
    shapes: dict[str, list[int]] = {}
    """Shape of each tensor by its name without the layer."""


class GraphOutline(Model):
    """What the graph of a computation is built from."""

    numbers: dict[str, int] = {}
    """Whole numbers of the metadata, by their key below the architecture."""
    shapes: dict[str, list[int]] = {}
    """Shape of each tensor outside the repeating layers."""
    kinds: list[LayerOutline] = []
    """The kinds of layers."""
    layers: list[int] = []
    """Which kind each layer is of, without those that only predict further tokens."""


class CompanionSummary(Model):
    """What a file is that is no model itself but serves beside one."""

    kind: Literal["Projector", "Adapter"]
    """What it is for."""
    device: TensorGroup
    """Tensors on the model's device."""
    host: TensorGroup
    """Tensors beside the token embeddings, which stay in host memory."""
    numbers: dict[str, int] = {}
    """Of a projector: whole numbers of its encoders, by their key below clip."""
    projectors: list[str] = []
    """Of a projector: the kinds that it names."""
    widest: int = 0
    """Of an adapter: the longest side of a tensor."""
    adapts: dict[str, list[list[int]]] = {}
    """Of an adapter: shapes of the tensors that it changes, by name, without the layer for those of layers."""


class HeaderSummary(Model):
    """What the operator needs to know of a GGUF file: some hundred bytes instead of the header's megabytes."""

    architecture: str
    """general.architecture."""
    name: str | None = None
    """general.name."""
    license: str | None = None
    """general.license."""
    file_bytes: int
    """Size of the file, or of all parts of a split one."""
    file_type: int | None = None
    """general.file_type (quantisation)."""
    parameters: int
    """Sum of the elements of all tensors."""
    files: int = 1
    """Number of parts."""
    block_count: int
    """Layers."""
    context_train: int | None = None
    """Context length it was trained with."""
    embedding_length: int
    """Width."""
    feed_forward: list[int] = []
    """Feed-forward width per layer, or one for all."""
    head_count: list[int] = []
    """Attention heads per layer, or one for all."""
    head_count_kv: list[int] = []
    """Key-value heads per layer, or one for all; 0 = nothing is cached in that layer."""
    key_length: int
    """Elements of a key per head."""
    value_length: int
    """Elements of a value per head."""
    key_length_mla: int | None = None
    """Multi-head latent attention: elements of the compressed key, all that is cached of a token."""
    key_length_swa: int | None = None
    """Elements of a key per head in windowed layers, where that differs."""
    value_length_swa: int | None = None
    """Elements of a value per head in windowed layers, where that differs."""
    indexer_length: int = 0
    """Sparse attention: elements of the keys that its index caches per token and layer."""
    indexer_value_length: int = 0
    """Sparse attention: elements of the values that its index caches per token and layer."""
    indexer_layers: list[bool] = []
    """Which layers have an index; empty when all that cache anything."""
    experts_used: int = 0
    """Mixture of experts: how many compute a token."""
    expert_feed_forward: int = 0
    """Mixture of experts: feed-forward width of one."""
    experts: int = 0
    """Mixture of experts: how many there are in a layer."""
    sliding_window: int | None = None
    """Tokens that windowed layers see; None without a window."""
    sliding_layers: list[bool] = []
    """Which layers are windowed; empty when none or unknown."""
    recurrent: bool = False
    """Has recurrent state (Mamba, RWKV, hybrids)."""
    recurrent_state_bytes: int = 0
    """Bytes of recurrent state per slot, an upper bound."""
    recurrent_layers: list[bool] = []
    """Which layers have recurrent state; empty when unknown."""
    recurrent_layer_bytes: list[int] = []
    """Bytes of it of each layer and slot; empty where all that have any have the same."""
    recurrent_width: int = 0
    """Width of recurrent layers."""
    vocabulary: int = 0
    """Tokens in the vocabulary."""
    input_tensors: TensorGroup
    """Token embeddings, which stay in host memory."""
    layer_tensors: TensorGroup
    """Repeating layers."""
    output_tensors: TensorGroup
    """Output layer, with the tied embedding counted again."""
    layer_bytes: list[int] = []
    """Bytes per repeating layer, or one for all; empty when unknown."""
    expert_bytes: list[int] = []
    """Those of them that are experts' weights, likewise; empty when there are none."""
    tied_bytes: int = 0
    """Bytes of output_tensors that are the token embedding once more."""
    shared_bytes: int = 0
    """Bytes of output_tensors that every layer uses, so that both sides have them when layers are split."""
    token_bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes of weights that one token of an answer reads; 0 in the summaries of older agents."""
    predicting_layers: int = 0
    """Layers that only predict further tokens."""
    predicting_bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes of their tensors, which are loaded for drafting alone."""
    graph: GraphOutline | None = None
    """What the compute buffer can be found exactly from."""
    companion: CompanionSummary | None = None
    """What the file is where it is no model; all that is about models is 0 then."""


class HeaderFault(Model):
    """Why a header could not be read."""

    code: Literal[
        "ModelNotFound",
        "ModelUnreadable",
        "NotGguf",
        "ModelTruncated",
        "ModelUnsupported",
        "SourceRefused",
        "InspectionFailed",
    ]
    """A `Reason` of the vocabulary."""
    message: str
    """In a sentence, with the offset where the header is wrong."""


class HeaderAnswer(Model):
    """Answer of `GET /v1/header?path=...` and the log line of an inspector pod: exactly one of the two."""

    summary: HeaderSummary | None = None
    """The header, in short."""
    fault: HeaderFault | None = None
    """Or why not."""

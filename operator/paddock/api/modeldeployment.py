"""ModelDeployment: one GGUF model, served whole on one device per replica."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from paddock.api.base import Model
from paddock.api.binding import PlacedBinding
from paddock.api.context import ContextChoice, ContextLength
from paddock.api.disruption import Disruption, DisruptionSpec, LastDevice
from paddock.api.queue import Queue, Shortage
from paddock.api.resources import LocalReference, Resources
from paddock.api.selector import ATOMIC, PCI_PATTERN, DeviceSelector, Preference, like, rules
from paddock.api.source import ModelSpec, ModelStatus

MAX_NAME = 40
"""Longest name of a ModelDeployment: its Service has the same name, its pods add a revision and a number."""


class CacheType(StrEnum):
    """Types that llama.cpp accepts for the key and value cache."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q5_0 = "q5_0"
    Q5_1 = "q5_1"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    IQ4_NL = "iq4_nl"

    @property
    def quantized(self) -> bool:
        """Whether the type has blocks; llama.cpp then needs FlashAttention for the values."""
        return self not in (CacheType.F32, CacheType.F16, CacheType.BF16)


class FlashAttention(StrEnum):
    """Whether llama.cpp uses FlashAttention kernels."""

    AUTO = "Auto"
    ON = "On"
    OFF = "Off"


class Mode(StrEnum):
    """What the server is for."""

    CHAT = "Chat"
    EMBEDDING = "Embedding"
    RERANK = "Rerank"


class Policy(StrEnum):
    """How one device is picked among those that fit."""

    AUTO = "Auto"
    MOST_MEMORY = "MostMemory"
    BEST_FIT = "BestFit"
    FASTEST = "Fastest"
    JUST_FAST_ENOUGH = "JustFastEnough"
    SPREAD = "Spread"


class ReplicaSpread(StrEnum):
    """What the replicas of one deployment are kept apart on, where possible."""

    DEVICE = "Device"
    NODE = "Node"
    ZONE = "Zone"


class AllowIntegrated(StrEnum):
    """When a GPU that shares the host's memory may be used."""

    AUTO = "Auto"
    ALWAYS = "Always"
    NEVER = "Never"


GpuLayers = Annotated[
    Literal["All", 0],
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            **rules(
                (
                    "type(self) == string ? self == 'All' : self == 0",
                    "gpuLayers must be All (on one device) or 0 (on the CPU)",
                )
            ),
        }
    ),
]


class SecretKeyRef(Model):
    """A key of a Secret of the same namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253)] = "api-key"
    """Key in the Secret."""


class ServingSpec(Model):
    """How llama-server serves the model. Each default is stated to the server, so that a new server cannot change it."""

    model_config = {
        "json_schema_extra": rules(
            ("self.ubatch <= self.batch", "ubatch must not be larger than batch"),
            (
                "self.flashAttention != 'Off' || self.cacheTypeV in ['f32', 'f16', 'bf16']",
                "a quantized cacheTypeV needs FlashAttention: set flashAttention to Auto or On",
            ),
        )
    }

    context_length: ContextLength = 8192
    """Tokens that each request may use, prompt and answer together, rounded up to a multiple of 256. Auto: the most
    that fit the chosen device, up to what the model was trained with. {min, preferred}: preferred, or what fits down to
    min. Chosen once for all replicas, then kept until the spec changes (docs/placement.md)."""
    parallel: Annotated[int, Field(ge=1, le=256)] = 1
    """Requests that one replica serves at once. Each has contextLength for itself, and memory for it."""
    cache_type_k: CacheType = CacheType.F16
    """Type of the key cache."""
    cache_type_v: CacheType = CacheType.F16
    """Type of the value cache. Quantized types need FlashAttention."""
    batch: Annotated[int, Field(ge=1, le=65_536)] = 2048
    """Tokens of a logical batch."""
    ubatch: Annotated[int, Field(ge=1, le=65_536)] = 512
    """Tokens that the device computes at once. For embeddings it bounds the length of one input."""
    flash_attention: FlashAttention = FlashAttention.AUTO
    """Whether FlashAttention kernels are used."""
    mode: Mode = Mode.CHAT
    """What is served: chat and completions, embeddings, or reranking."""
    gpu_layers: GpuLayers = "All"
    """All: the model is whole on one device. 0: on the CPU, which placement.allowCPU must allow."""
    api_key_secret_ref: SecretKeyRef | None = None
    """Secret with the key that clients must send. Without it the server asks for none."""
    args: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=4096)]], Field(max_length=64, json_schema_extra=ATOMIC)
    ] = []
    """Further llama-server arguments, from the list of allowed ones (docs/reference/arguments.md)."""


DEVICE_RULES = rules(
    (
        "has(self.uuid) ? !has(self.node) && !has(self.pciId) && !has(self.index) && !has(self.name) : has(self.node)",
        "a device is named by uuid alone, or by node together with one of pciId, index and name",
    ),
    (
        "has(self.uuid) || [has(self.pciId), has(self.index), has(self.name)].filter(x, x).size() == 1",
        "beside node exactly one of pciId, index and name is needed",
    ),
)


UUID_PATTERN = "^[A-Za-z0-9-]+$"


class DeviceRef(Model):
    """One device, named so that exactly one can be meant."""

    model_config = {"json_schema_extra": DEVICE_RULES}

    uuid: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=128,
                pattern=UUID_PATTERN,
                json_schema_extra=like(
                    UUID_PATTERN, "uuid is one identifier of letters, digits and -, as the GPU has it"
                ),
            ),
        ]
        | None
    ) = None
    """The driver's identifier, for example GPU-3e0a...; see `kubectl get gpus -o wide`."""
    node: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Name of the node, for the other ways of naming."""
    pci_id: (
        Annotated[
            str,
            Field(
                max_length=16,
                pattern=PCI_PATTERN,
                json_schema_extra=like(PCI_PATTERN, "pciId is domain, bus, device and function, like 0000:41:00.0"),
            ),
        ]
        | None
    ) = None
    """PCI address, for example 0000:41:00.0."""
    index: Annotated[int, Field(ge=0, le=1023)] | None = None
    """Position in the node's offload list, as `kubectl get gpus` shows it. Resolved once, then recorded by identity."""
    name: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """ggml's name on the node, for example CUDA1."""


PLACEMENT_RULES = rules(
    (
        "self.policy != 'JustFastEnough' || has(self.minTokensPerSecond)",
        "policy JustFastEnough needs minTokensPerSecond",
    ),
    (
        "!has(self.minTokensPerSecond) || self.policy in ['Auto', 'JustFastEnough']",
        "minTokensPerSecond is for the policies Auto and JustFastEnough",
    ),
)


class PlacementSpec(Model):
    """Where the model may run and how a device is picked."""

    model_config = {"json_schema_extra": PLACEMENT_RULES}

    policy: Policy = Policy.AUTO
    """How one of the devices that fit is picked; docs/placement.md explains each. Auto takes the smallest of the fast
    ones, or the smallest that reaches minTokensPerSecond. A change moves nothing that runs."""
    min_tokens_per_second: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Tokens per second of one request that a device should reach, by an estimate from its memory's bandwidth. Where
    none does, the fastest is used."""
    preferences: Annotated[list[Preference], Field(max_length=8, json_schema_extra=ATOMIC)] = []
    """Devices that are liked better than others, before the policy is asked; where none of them fits, others are used.
    A change moves nothing that runs."""
    selector: DeviceSelector | None = None
    """Devices that may be used at all; others never are. What runs on a device that is no longer meant moves."""
    replica_spread: ReplicaSpread = ReplicaSpread.DEVICE
    """What the replicas are kept apart on where others fit: Device, Node, or Zone (label topology.kubernetes.io/zone of
    the node). A change moves nothing that runs."""
    devices: Annotated[list[DeviceRef], Field(max_length=32, json_schema_extra=ATOMIC)] = []
    """Ordered alternatives: the first that fits is used, never anything else. Overrides policy."""
    node_selector: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)] = {}
    """Labels that the node must have."""
    allow_cpu: Annotated[bool, Field(alias="allowCPU")] = False
    """Whether a replica may run on the CPU when no device fits, or with gpuLayers 0."""
    sticky: bool = False
    """True: a replica that is made anew goes to the GPU that it had last, where that fits. A change moves nothing."""
    allow_integrated: AllowIntegrated = AllowIntegrated.AUTO
    """Integrated GPUs: Auto uses one only when no discrete one is allowed or fits, Always treats them alike, Never
    leaves them alone."""


class Toleration(Model):
    """A taint that the pods tolerate, as in a Pod."""

    key: Annotated[str, Field(max_length=316)] | None = None
    """Taint key; empty with operator Exists tolerates every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """How value is compared."""
    value: Annotated[str, Field(max_length=63)] | None = None
    """Taint value, with operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Taint effect; absent means every effect."""
    toleration_seconds: int | None = None
    """How long a NoExecute taint is tolerated; absent means for ever."""


RESERVED_KEYS = rules(
    (
        "self.all(k, !k.matches('(?i)(^|[.])(paddock[.]dev|k8s[.]io|kubernetes[.]io|nvidia[.]com|run[.]ai|nri[.]io)/|^io[.]kubernetes[.]'))",
        "keys of paddock.dev, k8s.io, kubernetes.io, nvidia.com, run.ai, nri.io and io.kubernetes are reserved",
    ),
)


IMAGE_PATTERN = "^[a-z0-9][A-Za-z0-9._:/@-]*$"
TIMEOUT_PATTERN = "^([1-9][0-9]{0,5}[smh])+$"


class ServerSpec(Model):
    """The pods that serve the model."""

    image: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=512,
                pattern=IMAGE_PATTERN,
                json_schema_extra=like(IMAGE_PATTERN, "image is one image reference, like registry/name:tag"),
            ),
        ]
        | None
    ) = None
    """Server image, if the operator's own choice by backend is not wanted. Must be in the administrator's list."""
    image_pull_secrets: Annotated[list[LocalReference], Field(max_length=8, json_schema_extra=ATOMIC)] = []
    """Secrets for pulling the image."""
    runtime_class_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """RuntimeClass, if the operator's choice by backend is not wanted."""
    resources: Resources = Resources()
    """Host resources of the server's container."""
    priority_class_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """PriorityClass of the pods."""
    tolerations: Annotated[list[Toleration], Field(max_length=32, json_schema_extra=ATOMIC)] = []
    """Taints that the pods tolerate; the choice of a device knows them too."""
    pod_labels: Annotated[
        dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32, json_schema_extra=RESERVED_KEYS)
    ] = {}
    """Further labels of the pods."""
    pod_annotations: Annotated[
        dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32, json_schema_extra=RESERVED_KEYS)
    ] = {}
    """Further annotations of the pods."""
    startup_timeout: (
        Annotated[
            str,
            Field(
                max_length=16,
                pattern=TIMEOUT_PATTERN,
                json_schema_extra=like(TIMEOUT_PATTERN, "startupTimeout has units s, m and h, like 90s, 10m or 1h30m"),
            ),
        ]
        | None
    ) = None
    """How long loading may take, for example 10m. By default from the size of the file."""


class ModelDeploymentSpec(Model):
    """What the user asks for."""

    model_config = {
        "json_schema_extra": rules(
            ("!has(self.model.draft) || self.serving.mode == 'Chat'", "model.draft is for serving.mode Chat"),
        )
    }

    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """Number of servers, each on one device of its own where possible."""
    suspend: bool = False
    """True: stop every replica and give the devices back, keep the rest."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    """Who waits for a device is served in this order, the highest first, then the oldest. Where a PlacementPolicy lets
    it, replicas of lower priority are ended for one that waits; otherwise a change moves nothing that runs."""
    disruption: DisruptionSpec = DisruptionSpec()
    """How far others may disturb the replicas."""
    model: ModelSpec
    """Which model is served."""
    serving: ServingSpec = ServingSpec()
    """How llama-server serves it. Each default is stated to the server, so that a new server cannot change it."""
    placement: PlacementSpec = PlacementSpec()
    """Where the model may run and how a device is picked."""
    server: ServerSpec = ServerSpec()
    """The pods that serve the model."""


class Condition(Model):
    """One observed fact about the object."""

    type: Annotated[str, Field(max_length=63)]
    """Which fact."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(max_length=128)]
    """Why, in one word; docs/reference/reasons.md explains each."""
    message: Annotated[str, Field(max_length=4096)]
    """Why, in a sentence with numbers."""
    observed_generation: int | None = None
    """metadata.generation that this is about."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When status last changed."""


class PlacedDevice(Model):
    """A device that a replica has reserved."""

    gpu: str
    """Name of the GPU object."""
    uuid: str | None = None
    """The driver's identifier."""
    pci_id: str | None = None
    """PCI address."""
    name: str
    """ggml's name on the node."""
    name_in_pod: str
    """ggml's name inside the pod, where only this device is visible."""
    backend: str
    """ggml backend, for example CUDA."""
    need_bytes: int
    """Bytes reserved on it, a multiple of 256 MiB."""


class Proof(Model):
    """What shows that a replica is where it should be."""

    evidence: Literal["Driver", "Buffers"]
    """Driver: the driver lists the server's process on the device, and the server's log agrees. Buffers: the server's
    log alone."""
    observed_bytes: int | None = None
    """What the driver shows its processes to have on the device, in all; told anew once it has moved by 256 MiB."""


class ReplicaPlacement(Model):
    """Where one replica runs and why."""

    replica: int
    """Number of the replica, from 0."""
    pod_name: str
    """Its Pod."""
    node: str | None = None
    """Its node; absent for a replica on the CPU, whose node the scheduler picks."""
    devices: Annotated[list[PlacedDevice], Field(json_schema_extra=ATOMIC)] = []
    """Its devices; empty on the CPU."""
    context_length: int | None = None
    """Tokens that each request may use there."""
    reason: str
    """Why here, in a sentence."""
    since: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When the decision was taken."""
    binding: PlacedBinding | None = None
    """How it got its device; absent in the records of older operators."""
    proof: Proof | None = None
    """What shows that it is there; absent until it is verified."""


class Need(Model):
    """Memory that one replica needs, and how it is known."""

    device_bytes: int
    """On the device, in all."""
    host_bytes: int
    """In host memory, in all."""
    weights_bytes: int
    """Weights on the device."""
    kv_cache_bytes: int
    """Key and value cache of all slots."""
    compute_bytes: int
    """Compute buffers."""
    margin_bytes: int
    """Stated margin for what no formula knows."""
    bytes_per_token: int | None = None
    """What a device reads for one token, by which its speed is estimated."""
    by_backend: dict[str, int] | None = None
    """Where the fleet has several backends and they need different amounts: deviceBytes of each."""
    source: str
    """How the numbers are known: Estimate."""


class ModelDeploymentStatus(Model):
    """What was observed."""

    observed_generation: int | None = None
    """metadata.generation that this status is about."""
    replicas: int | None = None
    """Replicas that exist."""
    ready_replicas: int | None = None
    """Replicas that are verified and answer requests."""
    selector: str | None = None
    """Label selector of the pods, for the scale subresource."""
    endpoint: str | None = None
    """URL inside the cluster, OpenAI-compatible."""
    need: Need | None = None
    """Memory that one replica needs."""
    model: ModelStatus | None = None
    """What is known of the model's files."""
    context: ContextChoice | None = None
    """Where the spec leaves contextLength open: what was chosen."""
    shortage: Shortage | None = None
    """While a replica waits for memory: where it came nearest to a device, what is missing, and who holds it."""
    queue: Queue | None = None
    """While a replica waits for memory: its place among all that wait."""
    last_disruption: Disruption | None = None
    """The last time that a replica was moved or evicted for another deployment."""
    last_devices: Annotated[list[LastDevice], Field(json_schema_extra=ATOMIC)] | None = None
    """With placement.sticky: the GPU that each replica had last."""
    placements: Annotated[
        list[ReplicaPlacement],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["podName"]}),
    ] = []
    """Where each replica is."""
    conditions: Annotated[
        list[Condition],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = []
    """Accepted, Placed, Verified, Available, Progressing."""

"""ModelDeployments that the API server must take, and ones that it must refuse with a message that helps.

Only what the CRD's schema and rules decide is here; what the operator refuses by a condition is tested elsewhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Manifest = dict[str, Any]


class Bad(NamedTuple):
    """A manifest and a part of the message that its user must see."""

    manifest: Manifest
    message: str


def deployment(name: str = "gemma", **spec: Any) -> Manifest:
    """Give a ModelDeployment: a valid one, except for what `spec` replaces."""
    return {
        "apiVersion": "paddock.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {"model": {"source": "file:///models/gemma.gguf"}, **spec},
    }


def source(text: str) -> Manifest:
    """Give a ModelDeployment of this model source."""
    return deployment(model={"source": text})


def serving(**fields: Any) -> Manifest:
    """Give a ModelDeployment with these fields of spec.serving."""
    return deployment(serving=fields)


def devices(*references: dict[str, Any]) -> Manifest:
    """Give a ModelDeployment that names these devices."""
    return deployment(placement={"devices": list(references)})


def server(**fields: Any) -> Manifest:
    """Give a ModelDeployment with these fields of spec.server."""
    return deployment(server=fields)


UUID = "GPU-3e0a1d52-0000-4000-8000-00000000000a"

GOOD: dict[str, Manifest] = {
    "minimal": deployment(),
    "name-of-40": deployment("a" * 40),
    "claim-source": source("pvc://models/folder/gemma.gguf"),
    "hub-file": source("hf://ggml-org/gemma-3-270m-it-GGUF/gemma-3-270m-it-Q8_0.gguf"),
    "hub-revision-and-folder": source("hf://org/repo@refs%2Fpr%2F1/folder/x-00001-of-00003.gguf"),
    "hub-quantization": source("hf://org/repo:Q4_K_M"),
    "web-source-with-port-and-query": source("https://files.example:8443/a/x.gguf?signature=abc"),
    "bucket-source": source("s3://models/a/x.gguf"),
    "registry-source": source("oci://registry.example:5000/models/gemma:1"),
    "registry-digest-and-file": source(f"oci://registry.example/gemma@sha256:{'a' * 64}/x.gguf"),
    "ollama-source": source("ollama://gemma3:270m"),
    "every-model-field": deployment(
        model={
            "source": "hf://org/repo:Q4_K_M",
            "secretRef": {"name": "hub"},
            "sha256": "0" * 64,
            "prefetch": {"nodeSelector": {"gpu": "true"}},
        }
    ),
    "cached-in-a-claim": deployment(model={"source": "gs://b/x.gguf", "cache": {"claim": "models"}}),
    "double-dots-in-a-file-name": source("file:///models/gemma..v2.gguf"),
    "every-serving-field": serving(
        contextLength=32768,
        parallel=4,
        cacheTypeK="q8_0",
        cacheTypeV="q8_0",
        batch=512,
        ubatch=512,
        flashAttention="On",
        mode="Embedding",
        gpuLayers="All",
        apiKeySecretRef={"name": "key"},
        args=["--temp", "0.2"],
    ),
    "selected": deployment(
        placement={
            "policy": "JustFastEnough",
            "minTokensPerSecond": 20,
            "replicaSpread": "Zone",
            "selector": {
                "vendors": ["NVIDIA"],
                "backends": ["CUDA"],
                "names": ["*RTX*"],
                "minMemory": "8Gi",
                "maxMemory": 100000000000,
                "minComputeCapability": "8.0",
                "maxComputeCapability": "12.0",
                "pciIds": ["0000:41:00.0"],
                "nodeLabels": {"zone": "a"},
            },
            "preferences": [{"weight": 50, "selector": {"names": ["*PRO*"]}}],
        }
    ),
    "on-the-cpu": deployment(serving={"gpuLayers": 0}, placement={"allowCPU": True}),
    "devices-in-every-spelling": devices(
        {"uuid": UUID},
        {"node": "node1", "pciId": "0000:41:00.0"},
        {"node": "node1", "index": 0},
        {"node": "node1", "name": "CUDA0"},
    ),
    "every-server-field": server(
        image="ghcr.io/ggml-org/llama.cpp:server-cuda-b11434",
        imagePullSecrets=[{"name": "registry"}],
        runtimeClassName="nvidia",
        resources={"requests": {"cpu": 1, "memory": "1.5Gi"}, "limits": {"cpu": "1500m", "ephemeral-storage": "1e9"}},
        priorityClassName="high",
        tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        podLabels={"team": "a", "example.com/team": "a"},
        podAnnotations={"example.com/note": "any text"},
        startupTimeout="1h30m",
    ),
    "context-auto": serving(contextLength="Auto"),
    "context-range": serving(contextLength={"min": 4096, "preferred": 32768}),
    "suspended-with-no-replica": deployment(replicas=0, suspend=True),
    "unknown-field-is-dropped": deployment(future={"field": 1}),
}

BAD: dict[str, Bad] = {
    "name-begins-with-digit": Bad(deployment("7b"), "metadata.name must start with a letter"),
    "name-with-dot": Bad(deployment("gemma.v1"), "metadata.name must start with a letter, hold only a-z, 0-9 and -"),
    "name-of-41": Bad(deployment("a" * 41), "metadata.name must have at most 40 characters"),
    "no-spec": Bad({key: value for key, value in deployment().items() if key != "spec"}, "spec: Required value"),
    "no-model": Bad({**deployment(), "spec": {}}, "spec.model: Required value"),
    "source-empty": Bad(source(""), "spec.model.source"),
    "source-is-a-plain-path": Bad(source("/models/gemma.gguf"), "source must be file:///PATH"),
    "source-of-unknown-scheme": Bad(source("ftp://example.com/gemma.gguf"), "source must be file:///PATH"),
    "source-with-host": Bad(source("file://models/gemma.gguf"), "source must be file:///PATH"),
    "source-climbs": Bad(source("file:///models/../etc/shadow"), "source must not contain . or .. segments"),
    "source-is-a-folder": Bad(source("file:///models/"), "source must name a file, not a folder"),
    "source-with-space": Bad(source("file:///models/my model.gguf"), "printable ASCII without spaces"),
    "source-with-newline": Bad(source("file:///models/x\n--rpc"), "printable ASCII without spaces"),
    "source-claim-without-path": Bad(source("pvc://claim"), "a pvc source is pvc://CLAIM/PATH"),
    "source-claim-in-capitals": Bad(source("pvc://Claim/x.gguf"), "a pvc source is pvc://CLAIM/PATH"),
    "hub-without-file": Bad(source("hf://org/repo"), "an hf source is hf://ORG/REPO[@REVISION]/FILE.gguf or"),
    "hub-other-file": Bad(source("hf://org/repo/model.safetensors"), "an hf source is hf://ORG/REPO"),
    "web-with-password": Bad(source("https://me:secret@files.example/x.gguf"), "belong in the Secret of"),
    "bucket-without-key": Bad(source("s3://models"), "an object is s3://BUCKET/KEY"),
    "registry-without-name": Bad(source("oci://registry.example"), "an oci source is oci://REGISTRY/NAME:TAG"),
    "plain-http": Bad(source("http://files.example/x.gguf"), "source must be file:///PATH"),
    "checksum-of-a-file": Bad(
        deployment(model={"source": "file:///models/x.gguf", "sha256": "0" * 64}), "are for sources that are fetched"
    ),
    "checksum-in-capitals": Bad(
        deployment(model={"source": "s3://b/x.gguf", "sha256": "A" * 64}), "sha256 is 64 lower-case hexadecimal digits"
    ),
    "prefetch-into-a-claim": Bad(
        deployment(model={"source": "s3://b/x.gguf", "cache": {"claim": "c"}, "prefetch": {}}),
        "prefetch fills the nodes' own cache",
    ),
    "source-too-long": Bad(source("file:///models/" + "x" * 1024), "Too long"),
    "context-zero": Bad(serving(contextLength=0), "should be greater than or equal to 1"),
    "context-negative": Bad(serving(contextLength=-4096), "should be greater than or equal to 1"),
    "context-absurd": Bad(serving(contextLength=2**31), "spec.serving.contextLength"),
    "context-is-text": Bad(serving(contextLength="8k"), "spec.serving.contextLength in body should match '^Auto$'"),
    "context-in-lower-case": Bad(serving(contextLength="auto"), "should match '^Auto$'"),
    "context-in-parts": Bad(serving(contextLength=1.5), "should be a multiple of 1"),
    "context-is-a-truth": Bad(serving(contextLength=True), "spec.serving.contextLength"),
    "context-is-a-list": Bad(serving(contextLength=[4096]), "must have at most 0 items"),
    "context-is-an-empty-list": Bad(serving(contextLength=[]), "spec.serving.contextLength"),
    "context-range-half": Bad(serving(contextLength={"min": 4096}), "contextLength.preferred: Required value"),
    "context-range-more": Bad(serving(contextLength={"min": 1, "preferred": 2, "max": 3}), "must have at most 2 items"),
    "context-range-of-text": Bad(serving(contextLength={"min": "4k", "preferred": 8192}), "must be of type integer"),
    "context-range-zero": Bad(serving(contextLength={"min": 0, "preferred": 8192}), "greater than or equal to 1"),
    "parallel-zero": Bad(serving(parallel=0), "spec.serving.parallel"),
    "parallel-too-many": Bad(serving(parallel=257), "should be less than or equal to 256"),
    "cache-type-unknown": Bad(serving(cacheTypeK="q3_k"), 'Unsupported value: "q3_k": supported values: "f32"'),
    "ubatch-above-batch": Bad(serving(batch=256, ubatch=512), "ubatch must not be larger than batch"),
    "ubatch-above-default-batch": Bad(serving(ubatch=4096), "ubatch must not be larger than batch"),
    "quantized-values-without-flash": Bad(
        serving(cacheTypeV="q8_0", flashAttention="Off"), "a quantized cacheTypeV needs FlashAttention"
    ),
    "mode-in-lower-case": Bad(serving(mode="chat"), 'Unsupported value: "chat"'),
    "layers-partly": Bad(serving(gpuLayers=20), "gpuLayers must be All (on one device) or 0 (on the CPU)"),
    "layers-other-word": Bad(serving(gpuLayers="Auto"), "gpuLayers must be All"),
    "secret-without-name": Bad(serving(apiKeySecretRef={"key": "k"}), "apiKeySecretRef.name: Required value"),
    "too-many-args": Bad(serving(args=["--temp"] * 65), "must have at most 64 items"),
    "empty-arg": Bad(serving(args=[""]), "spec.serving.args[0]"),
    "replicas-negative": Bad(deployment(replicas=-1), "should be greater than or equal to 0"),
    "policy-unknown": Bad(deployment(placement={"policy": "Quickest"}), 'Unsupported value: "Quickest"'),
    "policy-without-speed": Bad(
        deployment(placement={"policy": "JustFastEnough"}), "policy JustFastEnough needs minTokensPerSecond"
    ),
    "speed-without-policy": Bad(
        deployment(placement={"policy": "BestFit", "minTokensPerSecond": 5}),
        "minTokensPerSecond is for the policies Auto and JustFastEnough",
    ),
    "preference-without-weight": Bad(
        deployment(placement={"preferences": [{"weight": 0, "selector": {}}]}), "should be greater than or equal to 1"
    ),
    "capability-without-point": Bad(
        deployment(placement={"selector": {"minComputeCapability": "8"}}), "should match '^[0-9]{1,2}[.][0-9]$'"
    ),
    "device-empty": Bad(devices({}), "a device is named by uuid alone, or by node together with"),
    "device-uuid-and-node": Bad(devices({"uuid": UUID, "node": "node1"}), "a device is named by uuid alone"),
    "device-index-without-node": Bad(devices({"index": 1}), "a device is named by uuid alone"),
    "device-node-alone": Bad(devices({"node": "node1"}), "exactly one of pciId, index and name is needed"),
    "device-index-and-name": Bad(
        devices({"node": "node1", "index": 1, "name": "CUDA1"}), "exactly one of pciId, index and name is needed"
    ),
    "device-index-negative": Bad(devices({"node": "node1", "index": -1}), "should be greater than or equal to 0"),
    "device-pci-short": Bad(
        devices({"node": "node1", "pciId": "41:00.0"}), "pciId is domain, bus, device and function, like 0000:41:00.0"
    ),
    "device-uuid-with-comma": Bad(devices({"uuid": "GPU-a,GPU-b"}), "uuid is one identifier"),
    "image-with-space": Bad(server(image="llama --rpc"), "image is one image reference"),
    "resource-gpu": Bad(
        server(resources={"limits": {"nvidia.com/gpu": 1}}), "only cpu, memory and ephemeral-storage can be set"
    ),
    "resource-zero": Bad(server(resources={"requests": {"cpu": 0}}), "resources must be positive quantities"),
    "resource-negative": Bad(
        server(resources={"requests": {"memory": "-1Gi"}}), "resources must be positive quantities"
    ),
    "resource-not-a-quantity": Bad(server(resources={"limits": {"memory": "8 GB"}}), "spec.server.resources.limits"),
    "label-reserved": Bad(server(podLabels={"paddock.dev/model-deployment": "x"}), "are reserved"),
    "annotation-reserved": Bad(server(podAnnotations={"nvidia.cdi.k8s.io/gpu": "all"}), "are reserved"),
    "annotation-in-capitals": Bad(server(podAnnotations={"CDI.K8s.io/gpu": "nvidia.com/gpu=all"}), "are reserved"),
    "annotation-of-a-runtime": Bad(
        server(podAnnotations={"io.kubernetes.cri-o.Devices": "/dev/nvidia1"}), "are reserved"
    ),
    "annotation-of-a-plugin": Bad(server(podAnnotations={"devices.nri.io/container.server": "[]"}), "are reserved"),
    "selector-of-no-quantity": Bad(
        deployment(placement={"selector": {"minMemory": "1e1.5"}}), "spec.placement.selector.minMemory in body"
    ),
    "selector-of-a-long-quantity": Bad(
        deployment(placement={"selector": {"maxMemory": "9" * 65}}), "spec.placement.selector.maxMemory"
    ),
    "timeout-without-unit": Bad(server(startupTimeout="600"), "startupTimeout has units s, m and h"),
    "toleration-effect-unknown": Bad(server(tolerations=[{"effect": "Never"}]), 'Unsupported value: "Never"'),
}

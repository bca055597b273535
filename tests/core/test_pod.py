"""Server pods: exactly one device visible, restricted Pod Security, and word for word as in tests/golden."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.vocabulary import Annotation, Label
from paddock.core.deployment import Deployment, placement_hash, revision
from paddock.core.dra import SliceDevice
from paddock.core.fleet import Device
from paddock.core.objects import inspector_pod, root_claim, root_volume, service
from paddock.core.pod import Mounted, PodSettings, arguments, pod_name, server_pod
from paddock.core.quantity import seconds_of
from paddock.core.replica import replica_of
from paddock.core.source import ClaimSource, ModelRoot
from support.builders import AMD, GIB, INTEL, MIB, RTX_4080, bound, deployment, device, plugged, record
from support.restricted import violations

GOLDEN = Path(__file__).parents[1] / "golden"
MOUNTED = Mounted("paddock-models-abc", "/models", "/models/gemma.gguf", 3 * GIB)
ROOT = ModelRoot(path="/models", host_path="/var/lib/paddock/models")
EVERY_FIELD: dict[str, Any] = {
    "model": {"source": "pvc://weights/llm/gemma.gguf"},
    "serving": {
        "contextLength": 5000,
        "parallel": 4,
        "cacheTypeK": "q8_0",
        "cacheTypeV": "q4_0",
        "batch": 1024,
        "ubatch": 256,
        "flashAttention": "On",
        "mode": "Embedding",
        "apiKeySecretRef": {"name": "keys", "key": "gemma"},
        "args": ["--temp", "-1", "--chat-template", "{{ '$(HOME)' }} costs $5"],
    },
    "placement": {"nodeSelector": {"zone": "a"}, "policy": "MostMemory"},
    "server": {
        "image": "registry.example/llama:1",
        "imagePullSecrets": [{"name": "registry"}],
        "runtimeClassName": "my-nvidia",
        "resources": {"requests": {"cpu": "1500m", "memory": "2Gi"}, "limits": {"cpu": 3, "memory": "4Gi"}},
        "priorityClassName": "high",
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, {"operator": "Exists"}],
        "podLabels": {"team": "a"},
        "podAnnotations": {"example.com/note": "any text"},
        "startupTimeout": "1h30m",
    },
}


def pod(on: Device | None, spec: dict[str, Any] | None = None, mounted: Mounted = MOUNTED) -> dict[str, Any]:
    of = deployment(**(spec or {}))
    image = of.spec.server.image if of.spec and of.spec.server.image else "ghcr.io/ggml-org/llama.cpp:server-b11434"
    settings = PodSettings(revision(of), placement_hash(of), host_bytes=700 * MIB)
    return server_pod(of, 0, record(on, image=image), bound(on), mounted, settings)


CLAIM = ClaimSource("weights", "llm/gemma.gguf")
OFFER = SliceDevice("gpu.nvidia.com", "node1", "gpu-1", "GPU-4080")
BUILT: dict[str, Callable[[], dict[str, Any]]] = {
    "server-nvidia": lambda: pod(RTX_4080),
    "server-vulkan": lambda: pod(INTEL),
    "server-rocm": lambda: pod(AMD),
    "server-cpu": lambda: pod(None, {"serving": {"gpuLayers": 0}, "placement": {"nodeSelector": {"zone": "a"}}}),
    "server-every-field": lambda: pod(
        RTX_4080, EVERY_FIELD, Mounted("weights", "/model-volume", "/model-volume/llm/gemma.gguf", 3 * GIB)
    ),
    "server-plugin-runtime-class": lambda: pod(plugged(RTX_4080, "Environment")),
    "server-plugin-cdi": lambda: pod(plugged(RTX_4080, "Cdi")),
    "server-plugin-rocm": lambda: pod(plugged(AMD, "Devices", groups=[44, 105])),
    "server-plugin-vulkan": lambda: pod(plugged(INTEL, "Devices", groups=[105])),
    "server-plugin-every-field": lambda: pod(plugged(RTX_4080, "Cdi"), EVERY_FIELD),
    "server-dra": lambda: pod(replace(RTX_4080, offer=OFFER)),
    "server-vendor-plugin": lambda: pod(replace(RTX_4080, lent="nvidia.com/gpu")),
    "service": lambda: service(deployment()),
    "root-volume": lambda: root_volume(ROOT, "node1", "default", "node1.example"),
    "root-claim": lambda: root_claim(ROOT, "node1", "default"),
    "inspector": lambda: inspector_pod(
        deployment(**EVERY_FIELD), CLAIM, "ghcr.io/paddock-dev/agent:0.1.0", "IfNotPresent", 65532
    ),
}
PODS = [name for name in BUILT if name.startswith(("server-", "inspector"))]
SERVERS = [name for name in PODS if name.startswith("server-")]


@pytest.mark.parametrize("name", list(BUILT))
def test_objects_are_as_in_the_golden_files(name: str, request: pytest.FixtureRequest) -> None:
    built = BUILT[name]()
    path = GOLDEN / f"{name}.yaml"
    if request.config.getoption("--update-golden"):
        path.write_text(yaml.safe_dump(json.loads(json.dumps(built)), sort_keys=True, width=120))
    assert yaml.safe_load(path.read_text()) == built


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(BUILT)


@pytest.mark.parametrize("name", PODS)
def test_every_pod_meets_restricted_pod_security(name: str) -> None:
    assert violations(BUILT[name]()) == []


def test_the_check_of_pod_security_can_fail() -> None:
    bad = pod(RTX_4080)
    bad["spec"]["volumes"].append({"name": "host", "hostPath": {"path": "/"}})
    bad["spec"]["containers"][0]["securityContext"] = {}
    bad["spec"]["hostPID"] = True
    del bad["spec"]["securityContext"]["seccompProfile"]
    assert len(violations(bad)) == 5


@pytest.mark.parametrize("name", PODS)
def test_no_pod_has_a_way_to_the_api_server_or_to_foreign_services(name: str) -> None:
    spec = BUILT[name]()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert "serviceAccountName" not in spec
    assert not any("projected" in volume for volume in spec["volumes"])


@pytest.mark.parametrize("name", PODS)
def test_the_root_file_system_and_the_model_are_read_only(name: str) -> None:
    spec = BUILT[name]()["spec"]
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    (model,) = [mount for mount in container["volumeMounts"] if mount["name"] == "model"]
    assert model["readOnly"] is True
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "model"]
    assert volume["persistentVolumeClaim"]["readOnly"] is True


ALONE = {"CUDA_VISIBLE_DEVICES": "GPU-4080", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
BY_RUNTIME = {"NVIDIA_VISIBLE_DEVICES": "runtime.nvidia.com/gpu=GPU-4080", **ALONE}
NONE_BY_RUNTIME = {"NVIDIA_VISIBLE_DEVICES": "void"}
VISIBLE = {
    "server-nvidia": BY_RUNTIME,
    "server-every-field": BY_RUNTIME,
    "server-rocm": {**NONE_BY_RUNTIME, "ROCR_VISIBLE_DEVICES": "GPU-7900"},
    "server-vulkan": {**NONE_BY_RUNTIME, "GGML_VK_VISIBLE_DEVICES": "2"},
    "server-cpu": NONE_BY_RUNTIME,
    "server-plugin-runtime-class": BY_RUNTIME,
    "server-dra": {**NONE_BY_RUNTIME, **ALONE},
    # The plugin says which; who names one gets in its way.
    "server-vendor-plugin": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    "server-plugin-cdi": {**NONE_BY_RUNTIME, **ALONE},
    "server-plugin-every-field": {**NONE_BY_RUNTIME, **ALONE},
    # The host's numbers would hide the only device that is there.
    "server-plugin-rocm": NONE_BY_RUNTIME,
    "server-plugin-vulkan": NONE_BY_RUNTIME,
}


@pytest.mark.parametrize("name", SERVERS)
def test_exactly_one_device_is_visible_and_used(name: str) -> None:
    (container,) = BUILT[name]()["spec"]["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    about_devices = {
        key: value for key, value in environment.items() if "DEVICE" in key and key != "NVIDIA_DRIVER_CAPABILITIES"
    }
    assert about_devices == VISIBLE[name]
    args = container["args"]
    named = {"vulkan": "Vulkan0", "rocm": "ROCm0", "cpu": "none"}.get(name.rpartition("-")[2], "CUDA0")
    assert args[args.index("--device") + 1] == named
    assert args[args.index("-sm") + 1] == "none"
    assert args[args.index("-ngl") + 1] == ("0" if name == "server-cpu" else "all")
    assert args[args.index("-fit") + 1] == "off"


@pytest.mark.parametrize("name", SERVERS)
def test_only_pods_by_plugin_ask_for_granules_cards_and_groups(name: str) -> None:
    spec = BUILT[name]()["spec"]
    (container,) = spec["containers"]
    asked = [
        {resource: count for resource, count in container["resources"].get(part, {}).items() if "/" in resource}
        for part in ("requests", "limits")
    ]
    count = ["4"] if name.startswith("server-plugin") else ["1"] if name == "server-vendor-plugin" else []
    assert [list(one.values()) for one in asked] == [count, count]
    assert asked[0] == asked[1]
    assert ("supplementalGroups" in spec["securityContext"]) is (name in ("server-plugin-rocm", "server-plugin-vulkan"))
    assert ("runtimeClassName" in spec) is (
        name in ("server-nvidia", "server-plugin-runtime-class", "server-vendor-plugin") or name.endswith("every-field")
    )


@pytest.mark.parametrize(
    ("fields", "variable", "value"),
    [
        ({"backend": "ROCm", "uuid": None, "raw_index": 3}, "ROCR_VISIBLE_DEVICES", "3"),
        ({"backend": "MUSA", "uuid": None, "raw_index": 3}, "MUSA_VISIBLE_DEVICES", "3"),
        ({"backend": "SYCL", "uuid": None, "raw_index": 3}, "ONEAPI_DEVICE_SELECTOR", "level_zero:3"),
        ({"backend": "Vulkan", "uuid": "GPU-x", "raw_index": 3}, "GGML_VK_VISIBLE_DEVICES", "3"),
    ],
)
def test_other_backends_are_pinned_by_what_their_runtime_knows(
    fields: dict[str, Any], variable: str, value: str
) -> None:
    given = bound(device(**fields))
    assert given.name_in_pod == f"{fields['backend']}0"
    assert given.environment == {"NVIDIA_VISIBLE_DEVICES": "void", variable: value}


@pytest.mark.parametrize("fields", [{"uuid": None}, {"backend": "Vulkan", "raw_index": None}, {"backend": "OpenCL"}])
def test_a_device_that_cannot_be_shown_alone_is_never_bound(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no identifier"):
        bound(device("gpu", **fields))


def test_nothing_of_the_users_reaches_the_environment() -> None:
    (container,) = pod(RTX_4080, EVERY_FIELD)["spec"]["containers"]
    assert {one["name"] for one in container["env"]} == {
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "GGML_NO_BACKTRACE",
        "HOME",
        "CUDA_CACHE_PATH",
        "LLAMA_API_KEY",
    }
    key = next(one for one in container["env"] if one["name"] == "LLAMA_API_KEY")
    assert key["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "gemma"}}


def test_each_slot_has_its_context_rounded_up() -> None:
    args = arguments(deployment(serving={"contextLength": 5000, "parallel": 4}), bound(RTX_4080), MOUNTED, 2)
    assert args[args.index("-c") + 1] == str(5120 * 4)
    assert args[args.index("-np") + 1] == "4"
    assert "--no-kv-unified" in args


def expanded(text: str) -> str:
    """Do what the kubelet does to an argument whose container has no such variable."""
    out, position = "", 0
    while position < len(text):
        if text[position : position + 2] == "$$":
            out, position = out + "$", position + 2
        elif text[position : position + 2] == "$(" and ")" in text[position:]:
            return "a variable was expanded"
        else:
            out, position = out + text[position], position + 1
    return out


@given(st.text(alphabet="$()HOME{}", min_size=1, max_size=16))
def test_kubernetes_expands_nothing_in_what_users_write(text: str) -> None:
    of = deployment(serving={"args": ["--chat-template", text]})
    assert expanded(arguments(of, bound(RTX_4080), MOUNTED, 2)[-1]) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1h1m1s", 3661), ("999999h", 3_599_996_400)]
)
def test_durations(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("timeout", "file_bytes", "budget"),
    [(None, 0, 120), (None, 50 * GIB, 120 + 512), ("10m", 50 * GIB, 600), ("999999h", 0, 30 * 24 * 3600)],
)
def test_the_startup_budget(timeout: str | None, file_bytes: int, budget: int) -> None:
    server = {"startupTimeout": timeout} if timeout else {}
    (container,) = pod(RTX_4080, {"server": server}, replace(MOUNTED, file_bytes=file_bytes))["spec"]["containers"]
    assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] == budget


@pytest.mark.parametrize(
    ("resources", "threads"),
    [
        ({}, "2"),
        ({"limits": {"cpu": "1500m"}}, "2"),
        ({"limits": {"cpu": 8}, "requests": {"cpu": 1}}, "8"),
        ({"requests": {"cpu": "100m"}}, "1"),
        ({"limits": {"cpu": "5n"}}, "1"),
        ({"limits": {"cpu": "1e18"}}, "512"),
        ({"limits": {"cpu": "1e9999999999"}}, "512"),
    ],
)
def test_threads_follow_the_cpu_that_the_container_may_use(resources: dict[str, Any], threads: str) -> None:
    (container,) = pod(RTX_4080, {"server": {"resources": resources}})["spec"]["containers"]
    assert container["args"][container["args"].index("-t") + 1] == threads


def test_a_limit_below_the_default_request_lowers_the_request() -> None:
    limits = {"cpu": "200m", "memory": "100Mi"}
    (container,) = pod(RTX_4080, {"server": {"resources": {"limits": limits}}})["spec"]["containers"]
    assert container["resources"] == {"requests": limits, "limits": limits}


def test_users_labels_never_replace_paddocks() -> None:
    labels = pod(RTX_4080, {"server": {"podLabels": {Label.DEPLOYMENT: "other", Label.COMPONENT: "other"}}})[
        "metadata"
    ]["labels"]
    assert labels[Label.DEPLOYMENT] == "gemma"
    assert labels[Label.COMPONENT] == Label.SERVER


def test_the_service_finds_the_servers_and_nothing_else() -> None:
    selector = service(deployment())["spec"]["selector"]
    labels = pod(RTX_4080)["metadata"]["labels"]
    assert selector.items() <= labels.items()
    assert not selector.items() <= BUILT["inspector"]()["metadata"]["labels"].items()


def test_a_pod_is_read_back_as_the_replica_that_it_is() -> None:
    of: Deployment = deployment()
    made = pod(RTX_4080)
    made["metadata"]["uid"] = "pod-uid"
    read = replica_of(made)
    assert read is not None
    assert (read.number, read.revision, read.placement_spec) == (0, revision(of), placement_hash(of))
    assert read.owner_uid == of.uid
    assert read.record == record(image="ghcr.io/ggml-org/llama.cpp:server-b11434")
    assert read.name == pod_name(of, revision(of), 0)


def test_names_are_those_of_a_spec_a_placement_and_a_number() -> None:
    of = deployment()
    restarted = replace(of, restarted_at="now")
    moved = deployment(placement={"devices": [{"uuid": "GPU-1"}]})
    scaled = deployment(replicas=7, placement={"policy": "MostMemory"})
    name = pod_name(of, revision(of), 0)
    assert pod_name(scaled, revision(scaled), 0) == name
    assert len({pod_name(one, revision(one), 0) for one in (of, restarted, moved)} | {pod_name(of, "x", 1)}) == 4
    longest = deployment("a" * 40)
    assert len(pod_name(longest, revision(longest), 999)) <= 63


def test_the_record_on_the_pod_is_complete() -> None:
    text = pod(RTX_4080)["metadata"]["annotations"][Annotation.PLACEMENT]
    assert json.loads(text).keys() >= {"gpu", "node", "uuid", "pci_id", "need", "reason", "since", "image", "policy"}

"""The chart renders, is strict about its values, hardened, and says the same as the code."""

from __future__ import annotations

import importlib.util
import json
import re
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import paddock
from paddock.api.crd import crds
from paddock.api.vocabulary import REASONS, VERDICTS, Label
from paddock.core.images import known_backends
from paddock.fetch.settings import load_settings as load_fetch_settings
from support.helm import (
    CHART,
    NAMESPACE,
    environment,
    helm,
    missing_program,
    named,
    of_kind,
    operator_rights,
    render,
    rights,
    template,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(missing_program() is not None, reason=missing_program() or "")

Object = dict[str, Any]

EVERYTHING: Object = {
    "watchNamespaces": ["team-a", "team-b"],
    "modelRoots": [
        {"path": "/models", "hostPath": "/srv/models"},
        {"path": "/more", "hostPath": "/mnt/nfs/more"},
    ],
    "imageVolumes": True,
    "modelCache": {"hostPath": "/srv/cache", "size": "500Gi"},
    "fetch": {
        "caBundle": "-----BEGIN CERTIFICATE-----\n",
        "proxy": "http://proxy.example:3128",
        "noProxy": ["internal.example", ".cluster.local"],
        "hub": "https://hub.example",
        "ollama": "https://ollama.example",
        "mirrors": {"ghcr.io": "https://mirror.example/ghcr"},
        "env": {"PADDOCK_FETCH_PATIENCE": "60"},
    },
    "images": {
        "operator": {"repository": "registry.example:5000/operator", "tag": "9.9"},
        "agent": {"repository": "registry.example:5000/agent"},
        "servers": {"CUDA": "registry.example/llama:cuda-1"},
        "allowed": [],
        "pullPolicy": "Always",
        "pullSecrets": [{"name": "registry"}],
    },
    "runtimeClasses": {"nvidia": "nvidia-cdi"},
    "dra": {"enabled": True, "deviceClasses": {"gpu.nvidia.com": "gpus"}},
    "server": {"user": 2000000000, "reserve": "512Mi", "hostBudget": "Auto"},
    "log": {"level": "debug", "format": "json"},
    "operator": {
        "replicas": 2,
        "leaseSeconds": 30,
        "agentTtlSeconds": 90,
        "port": 18080,
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "podLabels": {"app.kubernetes.io/name": "not-this", "team": "a"},
        "podAnnotations": {"a": "b"},
        "env": {"PADDOCK_WORKERS": "4", "PADDOCK_LOG_LEVEL": "warning", "HTTPS_PROXY": "x"},
    },
    "agent": {"port": 19443, "hostPID": False, "podResources": True},
    "holderPods": {"enabled": True},
    "nodeCapacity": {"mode": "Enabled"},
    "agents": [
        {"name": "nvidia", "runtimeClassName": "nvidia-cdi", "env": {"NVIDIA_VISIBLE_DEVICES": "all"}},
        {
            "name": "amd",
            "nodeSelector": {"gpu": "amd"},
            "tolerations": [{"key": "gpu"}],
            "affinity": {"nodeAffinity": {}},
            "image": "registry.example/agent-rocm:1",
            "libraryFolder": "/app",
            "podAnnotations": {"cdi.k8s.io/gpus": "amd.com/gpu=all"},
            "supplementalGroups": [44, 109],
            "priorityClassName": "system-node-critical",
            "resources": {"limits": {"memory": "1Gi"}},
        },
    ],
    "serviceAccount": {"annotations": {"a": "b"}},
    "rbac": {"aggregate": False, "gpusForAll": True},
    "networkPolicy": {
        "enabled": True,
        "scrapers": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "servers": {"namespaces": ["team-a"], "from": [{"podSelector": {}}], "offline": True},
    },
    "guardRails": {
        "enabled": True,
        "actions": ["Warn", "Audit"],
        "namespaceSelector": {
            "matchLabels": {"gpus": "guarded"},
            "matchExpressions": [{"key": "a", "operator": "Exists"}],
        },
        "exemptNamespaces": ["kube-system"],
        "exemptUsers": ["system:serviceaccount:kubevirt:controller"],
        "variables": ["NVIDIA_VISIBLE_DEVICES", "DOCKER_RESOURCE_GPU"],
        "runtimeClasses": ["nvidia", "nvidia-cdi"],
        "requireVoid": True,
        "countedResources": ["nvidia.com/gpu"],
    },
}
NOTHING: Object = {"modelRoots": [], "agents": [], "crds": {"install": False}, "images": {"allowed": []}}
VALUE_SETS = {"defaults": {}, "everything": EVERYTHING, "nothing": NOTHING}

every_value_set = pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)


@pytest.fixture(scope="module")
def defaults() -> list[Object]:
    return render()


@pytest.fixture(scope="module")
def everything() -> list[Object]:
    return render(EVERYTHING)


@every_value_set
def test_lint_is_content(values: Object) -> None:
    done = helm("lint", "--strict", str(CHART), values=values)
    assert done.returncode == 0, done.stdout


def test_versions_are_those_of_the_code() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (paddock.__version__, paddock.__version__)


@every_value_set
def test_every_object_is_labelled_and_has_a_home(values: Object) -> None:
    for each in render(values):
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "paddock"
        assert labels["app.kubernetes.io/instance"] == "paddock"
        assert labels["app.kubernetes.io/version"] == paddock.__version__
        cluster_wide = each["kind"].startswith(("ClusterRole", "CustomResourceDefinition", "ValidatingAdmission"))
        assert cluster_wide != ("namespace" in each["metadata"]), each


@every_value_set
def test_no_two_objects_are_the_same(values: Object) -> None:
    keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in render(values)]
    assert len(keys) == len(set(keys))


# --- custom resources


def test_the_crds_are_those_of_the_models_and_stay(defaults: list[Object]) -> None:
    rendered = {each["metadata"]["name"]: each for each in of_kind(defaults, "CustomResourceDefinition")}
    expected = [yaml.safe_load(text) for text in crds().values()]
    assert rendered.keys() == {each["metadata"]["name"] for each in expected}
    for each in expected:
        crd = rendered[each["metadata"]["name"]]
        assert crd["spec"] == each["spec"]
        assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_the_crds_can_be_left_out() -> None:
    assert of_kind(render({"crds": {"install": False}}), "CustomResourceDefinition") == []


# --- pods


def pods(objects: list[Object]) -> list[Object]:
    return [each for each in objects if each["kind"] in ("Deployment", "DaemonSet")]


@every_value_set
def test_every_pod_is_hardened(values: Object) -> None:
    for workload in pods(render(values)):
        spec = workload["spec"]["template"]["spec"]
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["enableServiceLinks"] is False
        assert not {"hostNetwork", "hostIPC"} & spec.keys()
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["livenessProbe"]
            assert container["readinessProbe"]


def test_agents_alone_see_the_hosts_processes_and_only_where_wanted(
    defaults: list[Object], everything: list[Object]
) -> None:
    seen = {one["metadata"]["name"]: one["spec"]["template"]["spec"].get("hostPID", False) for one in pods(defaults)}
    assert seen == {"paddock-operator": False, "paddock-agent-nvidia": True}
    assert environment(of_kind(defaults, "DaemonSet")[0])["PADDOCK_HOST_PROCESSES"] == "true"
    assert not any("hostPID" in one["spec"]["template"]["spec"] for one in pods(everything))


@every_value_set
def test_selectors_select_their_own_pods_alone(values: Object) -> None:
    workloads = pods(render(values))
    for workload in workloads:
        wanted = workload["spec"]["selector"]["matchLabels"].items()
        chosen = [each for each in workloads if wanted <= each["spec"]["template"]["metadata"]["labels"].items()]
        assert chosen == [workload]


def test_a_new_chart_version_alone_restarts_nothing(defaults: list[Object]) -> None:
    for workload in pods(defaults):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert not {"helm.sh/chart", "app.kubernetes.io/version"} & labels.keys()


def test_agents_have_no_token_and_only_the_stated_host_access(everything: list[Object]) -> None:
    assert named(everything, "ServiceAccount", "paddock-agent")["automountServiceAccountToken"] is False
    agents = of_kind(everything, "DaemonSet")
    assert [each["metadata"]["name"] for each in agents] == ["paddock-agent-nvidia", "paddock-agent-amd"]
    for agent in agents:
        spec = agent["spec"]["template"]["spec"]
        assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("paddock-agent", False)
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert volumes["credentials"]["secret"] == {"secretName": "paddock-agent", "defaultMode": 0o440}
        mounts = {mount["name"]: mount for mount in spec["containers"][0]["volumeMounts"]}
        host = {name: volume["hostPath"] for name, volume in volumes.items() if "hostPath" in volume}
        assert host.pop("pod-resources") == {"path": "/var/lib/kubelet/pod-resources", "type": "Directory"}
        assert [(mounts[name]["mountPath"], path["path"]) for name, path in host.items()] == [
            ("/models", "/srv/models"),
            ("/more", "/mnt/nfs/more"),
            ("/model-cache", "/srv/cache"),
        ]
        assert all(path["type"] == "DirectoryOrCreate" for path in host.values())
        writable = [name for name, mount in mounts.items() if not mount.get("readOnly")]
        assert writable == ["tmp"]
        assert "emptyDir" in volumes["tmp"]


def test_the_device_plugin_is_a_container_of_its_own_with_root_and_little_else(everything: list[Object]) -> None:
    assert all(len(one["spec"]["template"]["spec"]["containers"]) == 1 for one in of_kind(everything, "DaemonSet"))
    values = {
        **EVERYTHING,
        "holderPods": {"enabled": False},
        "agent": {"devicePlugin": {"enabled": True, "kubeletFolder": "/srv/kubelet/device-plugins"}},
    }
    for agent in of_kind(render(values), "DaemonSet"):
        spec = agent["spec"]["template"]["spec"]
        reader, plugin = spec["containers"]
        assert (reader["name"], plugin["name"], plugin["args"]) == ("agent", "device-plugin", ["--device-plugin"])
        assert plugin["image"] == reader["image"]
        assert "securityContext" in reader
        assert "runAsUser" not in reader["securityContext"]
        assert plugin["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": False,
            "runAsUser": 0,
            "runAsGroup": 0,
        }
        volumes = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in spec["volumes"]}
        mounts = {
            one["mountPath"]: (volumes[one["name"]], one.get("readOnly", False)) for one in plugin["volumeMounts"]
        }
        assert mounts == {
            "/run/paddock": (None, False),
            "/var/lib/kubelet/device-plugins": ("/srv/kubelet/device-plugins", False),
            "/dev/dri": ("/dev/dri", True),
            "/etc/cdi": ("/etc/cdi", True),
            "/var/run/cdi": ("/var/run/cdi", True),
        }
        shared = {one["name"] for one in reader["volumeMounts"]} & {one["name"] for one in plugin["volumeMounts"]}
        assert shared == {"offers"}, "nothing of the kubelet is in the container that reads models"
        told = {one["name"]: one.get("value") for one in plugin["env"]}
        assert (told["PADDOCK_PLUGIN_FOLDER"], told["NVIDIA_VISIBLE_DEVICES"]) == ("/run/paddock", "void")
        assert "ports" not in plugin


def test_no_right_is_bound_to_the_agents(everything: list[Object]) -> None:
    bindings = of_kind(everything, "ClusterRoleBinding") + of_kind(everything, "RoleBinding")
    assert len(bindings) == 5
    assert not [each for each in bindings if any(who["name"] == "paddock-agent" for who in each["subjects"])]


def test_the_operator_finds_agents_by_their_labels(everything: list[Object]) -> None:
    for agent in of_kind(everything, "DaemonSet"):
        labels = agent["spec"]["template"]["metadata"]["labels"]
        assert (labels[Label.NAME], labels[Label.COMPONENT]) == ("paddock", Label.NODE_AGENT)


def test_pools_keep_their_own_settings(everything: list[Object]) -> None:
    nvidia, amd = (each["spec"]["template"] for each in of_kind(everything, "DaemonSet"))
    assert nvidia["spec"]["runtimeClassName"] == "nvidia-cdi"
    assert nvidia["spec"]["containers"][0]["image"] == f"registry.example:5000/agent:{paddock.__version__}"
    assert "runtimeClassName" not in amd["spec"]
    assert amd["spec"]["containers"][0]["image"] == "registry.example/agent-rocm:1"
    assert amd["spec"]["securityContext"]["supplementalGroups"] == [44, 109]
    assert amd["metadata"]["annotations"] == {"cdi.k8s.io/gpus": "amd.com/gpu=all"}
    assert amd["spec"]["nodeSelector"] == {"gpu": "amd"}
    assert environment({"spec": {"template": amd}})["PADDOCK_LIBRARY_FOLDER"] == "/app"


def test_agents_of_nvidia_see_every_device_by_default(defaults: list[Object]) -> None:
    (agent,) = of_kind(defaults, "DaemonSet")
    assert agent["spec"]["template"]["spec"]["runtimeClassName"] == "nvidia"
    assert environment(agent).items() >= {
        ("NVIDIA_VISIBLE_DEVICES", "all"),
        ("NVIDIA_DRIVER_CAPABILITIES", "utility,compute,graphics"),
    }


def test_a_budget_exists_only_where_it_does_not_block_drains(defaults: list[Object], everything: list[Object]) -> None:
    assert of_kind(defaults, "PodDisruptionBudget") == []
    (budget,) = of_kind(everything, "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 1


def test_labels_of_the_operator_cannot_be_replaced(everything: list[Object]) -> None:
    labels = named(everything, "Deployment", "paddock-operator")["spec"]["template"]["metadata"]["labels"]
    assert (labels["app.kubernetes.io/name"], labels["team"]) == ("paddock", "a")


def test_another_release_name_shows_in_every_name() -> None:
    for each in render(release="blue"):
        if each["kind"] != "CustomResourceDefinition":
            assert each["metadata"]["name"].startswith("blue-paddock")


def test_a_packaged_chart_holds_the_definitions(tmp_path: Path) -> None:
    done = helm("package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "helm warns"
    archive = tmp_path / f"paddock-{paddock.__version__}.tgz"
    with tarfile.open(archive) as package:
        names = set(package.getnames())
    assert {f"paddock/files/crds/{name}" for name in crds()} <= names
    packaged, folder = (helm("template", "x", str(one), "--kube-version", "1.34") for one in (archive, CHART))
    assert (packaged.returncode, packaged.stderr, folder.stderr) == (0, "", "")
    assert packaged.stdout == folder.stdout


def test_the_chart_has_no_links_and_no_file_that_is_not_its_own() -> None:
    found = [path for path in CHART.rglob("*") if path.is_symlink()]
    assert found == []
    assert {path.name for path in (CHART / "files" / "crds").iterdir()} == set(crds())


# --- settings


def test_the_operator_gets_what_the_values_say(everything: list[Object]) -> None:
    found = environment(named(everything, "Deployment", "paddock-operator"))
    assert found == {
        "HTTPS_PROXY": "x",
        "PADDOCK_AGENT_IMAGE": f"registry.example:5000/agent:{paddock.__version__}",
        "PADDOCK_AGENT_PORT": "19443",
        "PADDOCK_AGENT_SECRET": "paddock-agent",
        "PADDOCK_AGENT_TTL": "90",
        "PADDOCK_ALLOWED_IMAGES": "[]",
        "PADDOCK_CACHE_FOLDER": "/srv/cache",
        "PADDOCK_CACHE_SIZE": "500Gi",
        "PADDOCK_DEVICE_CLASSES": '{"gpu.nvidia.com":"gpus"}',
        "PADDOCK_DRA": "true",
        "PADDOCK_FETCH_CERTIFICATES": "-----BEGIN CERTIFICATE-----\n",
        "PADDOCK_FETCH_ENVIRONMENT": found["PADDOCK_FETCH_ENVIRONMENT"],
        "PADDOCK_HOLDER_PODS": "true",
        "PADDOCK_IMAGE_PULL_POLICY": "Always",
        "PADDOCK_IMAGE_VOLUMES": "true",
        "PADDOCK_LEADER_ELECTION": "true",
        "PADDOCK_LEASE_SECONDS": "30",
        "PADDOCK_LISTEN": ":18080",
        "PADDOCK_LOG_FORMAT": "json",
        "PADDOCK_LOG_LEVEL": "warning",
        "PADDOCK_MODEL_ROOTS": found["PADDOCK_MODEL_ROOTS"],
        "PADDOCK_NODE_CAPACITY": "Enabled",
        "PADDOCK_NAMESPACE": None,
        "PADDOCK_POD_NAME": None,
        "PADDOCK_HOST_BUDGET": "Auto",
        "PADDOCK_RESERVE": "512Mi",
        "PADDOCK_RUNTIME_CLASSES": '{"nvidia":"nvidia-cdi"}',
        "PADDOCK_SERVER_IMAGES": '{"CUDA":"registry.example/llama:cuda-1"}',
        "PADDOCK_SERVER_USER": "2000000000",
        "PADDOCK_WATCH_NAMESPACES": "team-a,team-b",
        "PADDOCK_WORKERS": "4",
    }
    assert json.loads(found["PADDOCK_MODEL_ROOTS"] or "") == EVERYTHING["modelRoots"]


def test_pods_that_fetch_get_what_the_values_say(everything: list[Object]) -> None:
    operator = environment(named(everything, "Deployment", "paddock-operator"))
    told = json.loads(operator["PADDOCK_FETCH_ENVIRONMENT"] or "")
    assert told == {
        "PADDOCK_FETCH_PROXY": "http://proxy.example:3128",
        "PADDOCK_FETCH_NO_PROXY": "internal.example,.cluster.local",
        "PADDOCK_FETCH_HUB": "https://hub.example",
        "PADDOCK_FETCH_OLLAMA": "https://ollama.example",
        "PADDOCK_FETCH_MIRRORS": "ghcr.io=https://mirror.example/ghcr",
        "PADDOCK_FETCH_PATIENCE": "60",
    }
    assert load_fetch_settings(told).patience == 60


def test_agents_get_what_the_values_say(everything: list[Object]) -> None:
    agent = of_kind(everything, "DaemonSet")[0]
    assert environment(agent) == {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "PADDOCK_CACHE_FOLDER": "/model-cache",
        "PADDOCK_CREDENTIALS_FOLDER": "/etc/paddock/agent",
        "PADDOCK_HOST_PROCESSES": "false",
        "PADDOCK_LISTEN": ":19443",
        "PADDOCK_LOG_FORMAT": "json",
        "PADDOCK_LOG_LEVEL": "debug",
        "PADDOCK_MODEL_ROOTS": "/models,/more",
        "PADDOCK_POD_RESOURCES": "/relay/pod-resources.sock",
    }


@pytest.mark.parametrize(
    ("module", "kind"), [("paddock.controller.settings", "Deployment"), ("paddock.agent.settings", "DaemonSet")]
)
@every_value_set
def test_every_variable_is_a_setting_and_is_understood(values: Object, module: str, kind: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not written yet")
    settings = importlib.import_module(module)
    known = {f"PADDOCK_{field.upper()}" for field in settings.Settings.model_fields}
    for workload in of_kind(render(values), kind):
        found = {name: "x" if value is None else value for name, value in environment(workload).items()}
        assert {name for name in found if name.startswith("PADDOCK_")} <= known
        read = getattr(settings, "load_settings", None) or settings.Settings.from_environment
        read(found)


def test_servers_can_be_given_for_every_backend_that_is_known() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["$defs"]["servers"]["properties"].keys() == known_backends()


# --- rights


@every_value_set
def test_no_right_is_a_wildcard_or_escalates(values: Object) -> None:
    objects = render(values)
    for role in of_kind(objects, "Role") + of_kind(objects, "ClusterRole"):
        for right in rights(role):
            assert "*" not in right
            assert right.split()[0] not in ("escalate", "bind", "impersonate")
            assert not right.endswith(("pods/exec", "pods/attach", "serviceaccounts/token"))


def test_the_operator_may_do_what_it_does_and_no_more() -> None:
    assert operator_rights() == {
        "create /events",
        "create /persistentvolumeclaims",
        "create /persistentvolumes",
        "create /pods",
        "create /secrets",
        "create /services",
        "create coordination.k8s.io/leases",
        "create paddock.dev/gpus",
        "delete /persistentvolumeclaims",
        "delete /persistentvolumes",
        "delete /pods",
        "delete paddock.dev/gpus",
        "get /persistentvolumeclaims",
        "get /persistentvolumes",
        "get /pods",
        "get /pods/log",
        "get /secrets",
        "get /services",
        "get coordination.k8s.io/leases",
        "get paddock.dev/gpus",
        "list /nodes",
        "list /persistentvolumes",
        "list /pods",
        "list /services",
        "list node.k8s.io/runtimeclasses",
        "list paddock.dev/gpus",
        "list paddock.dev/modeldeployments",
        "list paddock.dev/placementpolicies",
        "patch /pods/status",
        "patch paddock.dev/modeldeployments/status",
        "update coordination.k8s.io/leases",
        "update paddock.dev/gpus/status",
        "watch /nodes",
        "watch /pods",
        "watch node.k8s.io/runtimeclasses",
        "watch paddock.dev/gpus",
        "watch paddock.dev/modeldeployments",
        "watch paddock.dev/placementpolicies",
    }


def test_claims_are_a_right_only_where_they_are_used() -> None:
    assert operator_rights({"dra": {"enabled": True}}) - operator_rights() == {
        "create resource.k8s.io/resourceclaims",
        "get resource.k8s.io/resourceclaims",
        "list resource.k8s.io/resourceslices",
    }


def test_pods_are_changed_only_where_the_kubelet_is_asked() -> None:
    assert operator_rights({"agent": {"podResources": True}}) - operator_rights() == {"patch /pods"}


@pytest.mark.parametrize("mode", ["Enabled", "Removed"])
def test_the_status_of_nodes_is_written_only_where_it_counts_memory(mode: str) -> None:
    assert operator_rights({"nodeCapacity": {"mode": mode}}) - operator_rights() == {"patch /nodes/status"}


def test_holders_are_a_right_in_the_own_namespace_alone() -> None:
    named_spaces = {"watchNamespaces": ["team-a"], "agent": {"podResources": True}}
    more = operator_rights({**named_spaces, "holderPods": {"enabled": True}}) - operator_rights(named_spaces)
    assert more == {"create /pods", "delete /pods"}


def test_who_asks_the_kubelet_is_root_without_any_right(everything: list[Object], defaults: list[Object]) -> None:
    for agent in of_kind(everything, "DaemonSet"):
        pod = agent["spec"]["template"]["spec"]
        (relay,) = pod["initContainers"]
        assert relay["restartPolicy"] == "Always"
        security = relay["securityContext"]
        assert security["runAsUser"] == 0
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert {one["name"]: one.get("readOnly", False) for one in relay["volumeMounts"]} == {
            "pod-resources": True,
            "relay": False,
        }
        mounted = [one["name"] for one in pod["containers"][0]["volumeMounts"]]
        assert "relay" in mounted
        assert "pod-resources" not in mounted, "the agent itself has no folder of the kubelet"
    (agent,) = of_kind(defaults, "DaemonSet")
    assert "initContainers" not in agent["spec"]["template"]["spec"]


def test_the_cache_needs_the_same_rights_as_model_roots() -> None:
    assert operator_rights({"modelRoots": [], "modelCache": {"hostPath": "/srv/cache"}}) == operator_rights()


def test_agents_look_at_the_cache_and_write_nothing(everything: list[Object], defaults: list[Object]) -> None:
    for agent in of_kind(everything, "DaemonSet"):
        pod = agent["spec"]["template"]["spec"]
        (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "cache")
        assert mount == {"name": "cache", "mountPath": "/model-cache", "readOnly": True}
        (volume,) = (one for one in pod["volumes"] if one["name"] == "cache")
        assert volume["hostPath"] == {"path": "/srv/cache", "type": "DirectoryOrCreate"}
    (agent,) = of_kind(defaults, "DaemonSet")
    assert "cache" not in [one["name"] for one in agent["spec"]["template"]["spec"]["volumes"]]


def test_without_model_roots_there_is_no_right_to_make_volumes() -> None:
    lost = operator_rights() - operator_rights({"modelRoots": []})
    assert lost == {
        "create /persistentvolumeclaims",
        "create /persistentvolumes",
        "delete /persistentvolumeclaims",
        "delete /persistentvolumes",
        "list /persistentvolumes",
    }


def test_secrets_are_reachable_in_the_own_namespace_alone(defaults: list[Object]) -> None:
    assert "secrets" not in " ".join(rights(named(defaults, "ClusterRole", "paddock-operator")))
    own = named(defaults, "Role", "paddock-operator")
    assert own["metadata"]["namespace"] == NAMESPACE
    secrets = [rule for rule in own["rules"] if rule["resources"] == ["secrets"]]
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in secrets] == [
        (["create"], None),
        (["get"], ["paddock-agent"]),
    ]


def test_with_named_namespaces_no_namespaced_right_holds_elsewhere(everything: list[Object]) -> None:
    whole = rights(named(render({**EVERYTHING, "watchNamespaces": []}), "ClusterRole", "paddock-operator"))
    cluster = rights(named(everything, "ClusterRole", "paddock-operator"))
    assert {right.split("/")[1] for right in cluster} == {
        "gpus",
        "nodes",
        "persistentvolumes",
        "placementpolicies",
        "resourceslices",
        "runtimeclasses",
    }
    roles = [role for role in of_kind(everything, "Role") if role["metadata"]["name"] == "paddock-operator-deployments"]
    assert [role["metadata"]["namespace"] for role in roles] == ["team-a", "team-b"]
    for role in roles:
        assert rights(role) | cluster == whole
    bound = {
        each["metadata"]["namespace"]
        for each in of_kind(everything, "RoleBinding")
        if each["roleRef"]
        == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": roles[0]["metadata"]["name"]}
    }
    assert bound == {"team-a", "team-b"}


def test_roles_of_users(defaults: list[Object], everything: list[Object]) -> None:
    viewer, editor = (named(defaults, "ClusterRole", f"paddock-{name}") for name in ("viewer", "editor"))
    assert {right.split()[0] for right in rights(viewer)} == {"get", "list", "watch"}
    assert viewer["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in editor["metadata"]["labels"]
    assert "create paddock.dev/modeldeployments" in rights(editor)
    assert not [role for role in of_kind(everything, "ClusterRole") if "viewer" in role["metadata"]["name"]][1:]
    (binding,) = (
        each for each in of_kind(everything, "ClusterRoleBinding") if "gpu-viewer" in each["metadata"]["name"]
    )
    assert binding["subjects"][0]["name"] == "system:authenticated"


# --- bad values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"operater": {}}, "additional properties 'operater' not allowed"),
        ({"operator": {"replica": 2}}, "at '/operator': additional properties 'replica' not allowed"),
        ({"operator": {"replicas": "two"}}, "at '/operator/replicas': got string, want integer"),
        ({"operator": {"leaseSeconds": 1}}, "at '/operator/leaseSeconds': minimum: got 1, want 5"),
        ({"operator": {"env": {"DEBUG": 1}}}, "at '/operator/env/DEBUG': got number, want string"),
        ({"operator": {"env": {"A-B": "x"}}}, "at '/operator/env': additional properties 'A-B' not allowed"),
        ({"agents": [{"runtimeClassName": "nvidia"}]}, "at '/agents/0': missing property 'name'"),
        ({"agents": [{"name": "NVIDIA"}]}, "at '/agents/0/name': 'NVIDIA' does not match pattern"),
        ({"agents": {"name": "nvidia"}}, "at '/agents': got object, want array"),
        ({"modelRoots": [{"path": "/models"}]}, "at '/modelRoots/0': missing property 'hostPath'"),
        ({"modelRoots": [{"path": "models", "hostPath": "/m"}]}, "at '/modelRoots/0/path': 'models' does not match"),
        ({"modelRoots": [{"path": "/m", "hostPath": "/m/../etc"}]}, "at '/modelRoots/0/hostPath': '/m/../etc' does"),
        ({"modelCache": {"hostPath": "cache"}}, "at '/modelCache/hostPath': 'anyOf' failed"),
        ({"modelCache": {"size": "many"}}, "at '/modelCache/size': 'many' does not match"),
        ({"fetch": {"hub": "https://me:secret@hub.example"}}, "at '/fetch/hub': "),
        ({"fetch": {"env": {"HOME": "/"}}}, "invalid propertyName 'HOME'"),
        ({"images": {"pullPolicy": "always"}}, "at '/images/pullPolicy': value must be one of 'Always'"),
        ({"images": {"operator": {"tag": "a b"}}}, "at '/images/operator/tag': 'a b' does not match pattern"),
        ({"images": {"operator": None}}, "at '/images': missing property 'operator'"),
        ({"images": {"servers": {"cuda": "x"}}}, "at '/images/servers': additional properties 'cuda' not allowed"),
        ({"watchNamespaces": ["Team"]}, "at '/watchNamespaces/0': 'Team' does not match pattern"),
        ({"watchNamespaces": "team"}, "at '/watchNamespaces': got string, want array"),
        ({"server": {"user": 0}}, "at '/server/user': minimum: got 0, want 1"),
        ({"server": {"hostBudget": "auto"}}, "at '/server/hostBudget': 'auto' does not match pattern"),
        ({"server": {"reserve": "1 GB"}}, "at '/server/reserve': '1 GB' does not match pattern"),
        ({"log": {"level": "trace"}}, "at '/log/level': value must be one of 'debug'"),
        (
            {"agent": {"devicePlugin": {"kubeletFolder": "device-plugins"}}},
            "at '/agent/devicePlugin/kubeletFolder': 'device-plugins' does not match pattern",
        ),
        ({"agent": {"port": 443}}, "at '/agent/port': minimum: got 443, want 1,024"),
        ({"guardRails": {"actions": ["Deny", "Warn"]}}, "at '/guardRails/actions': 'not' failed"),
        ({"guardRails": {"exemptUsers": ["a'b"]}}, "at '/guardRails/exemptUsers/0'"),
        ({"guardRails": {"variables": []}}, "at '/guardRails/variables': minItems: got 0, want 1"),
        ({"networkPolicy": {"servers": {"from": []}}}, "at '/networkPolicy/servers/from'"),
    ],
)
def test_bad_values_are_refused_with_a_message_that_names_them(values: Object, message: str) -> None:
    done = template(values)
    assert done.returncode != 0
    assert message in done.stderr


def test_two_pools_of_one_name_are_refused() -> None:
    done = template({"agents": [{"name": "a"}, {"name": "a"}]})
    assert "two entries of agents are named a" in done.stderr


def test_no_root_takes_the_place_of_the_cache() -> None:
    values = {"modelRoots": [{"path": "/model-cache", "hostPath": "/a"}], "modelCache": {"hostPath": "/b"}}
    assert "the path /model-cache is the cache's" in template(values).stderr


def test_holders_need_the_kubelets_word() -> None:
    refused = template({"holderPods": {"enabled": True}})
    assert refused.returncode != 0
    assert "holderPods.enabled needs agent.podResources" in refused.stderr


def test_two_roots_of_one_path_are_refused() -> None:
    roots = [{"path": "/models", "hostPath": "/a"}, {"path": "/models", "hostPath": "/b"}]
    assert "two entries of modelRoots have the path /models" in template({"modelRoots": roots}).stderr


# --- texts


def test_values_that_remedies_name_exist() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    sections = "|".join(values)
    texts = [entry.remedy for entry in [*REASONS.values(), *VERDICTS.values()]]
    named_values = {path for text in texts for path in re.findall(rf"`((?:{sections})(?:\.\w+)*)`", text)}
    assert {"images.allowed", "modelRoots", "runtimeClasses.nvidia"} <= named_values
    for path in named_values:
        node = values
        for name in path.split("."):
            node = node[name]

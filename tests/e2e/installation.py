"""Install the chart in the test cluster, with pauses that suit tests."""

from typing import Any

from cluster.local import LocalCluster
from e2e.api import listed
from e2e.kit import GPU_1060, GPU_4080, GPU_6000, GPU_INTEL, OPERATOR, SYSTEM, gpus, run
from support.cluster import eventually, get, kubectl
from support.helm import CHART, helm

AGENT_ENVIRONMENT = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "utility,compute,graphics",
    # A lie of a device is found when devices are listed; ten minutes are too long for a test.
    "PADDOCK_LISTING_INTERVAL": "8",
    "PADDOCK_LISTING_TIMEOUT": "10",
    "PADDOCK_FAULT_HOLD": "6",
    # So that a test may say that the node was booted.
    "PADDOCK_BOOT_ID_FILE": "/models/.boot-id",
}
VALUES: dict[str, Any] = {
    "operator": {"leaseSeconds": 6, "agentTtlSeconds": 10},
    "agents": [
        {
            "name": "nvidia",
            "tolerations": [{"operator": "Exists"}],
            "runtimeClassName": "nvidia",
            "env": AGENT_ENVIRONMENT,
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "2Gi"}},
        }
    ],
}
_FILES = "find operator/paddock images -name '*.py' -o -name '*.Dockerfile' | sort"
_CODE = f"{_FILES} | xargs sha256sum | sha256sum | cut -c1-16"
"""As in tests/demo/demo.sh, so that neither restarts what the other has just started."""


def upgrade(release: str = "paddock", *options: str, values: dict[str, Any] | None = None) -> None:
    """Install or upgrade, and wait until it runs."""
    done = try_upgrade(release, *options, values=values)
    assert done is None, done


def try_upgrade(release: str = "paddock", *options: str, values: dict[str, Any] | None = None) -> str | None:
    """Install or upgrade; gives what helm says when it fails."""
    kubeconfig = str(LocalCluster().kubeconfig)
    where = ["-n", SYSTEM, "--create-namespace", "--kubeconfig", kubeconfig, "--wait", "--timeout", "90s"]
    done = helm("upgrade", "--install", release, str(CHART), *where, *options, values={**VALUES, **(values or {})})
    return None if done.returncode == 0 else done.stderr


def releases() -> list[str]:
    """Give the names of the releases that are installed."""
    done = helm("list", "-n", SYSTEM, "-q", "-a", "--kubeconfig", str(LocalCluster().kubeconfig))
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def uninstall(release: str = "paddock") -> None:
    """Uninstall a release and wait until its pods are gone."""
    kubeconfig = str(LocalCluster().kubeconfig)
    done = helm("uninstall", release, "-n", SYSTEM, "--kubeconfig", kubeconfig, "--wait", "--timeout", "90s")
    assert done.returncode == 0, done.stderr
    eventually("no pod of the release", lambda: not listed("pods", SYSTEM), 60)


def install() -> None:
    """Install the present code, and wait until every GPU of the cluster is listed."""
    for other in set(releases()) - {"paddock"}:
        uninstall(other)
    upgrade("paddock", "--take-ownership", "--wait=false")
    code = run("sh", "-c", _CODE).stdout.strip()
    known = get("namespace", SYSTEM)["metadata"].get("annotations", {}).get("code")
    failing = any(
        one["restartCount"] and not one["ready"]
        for pod in listed("pods", SYSTEM)
        for one in pod["status"].get("containerStatuses", [])
    )
    if known != code or failing:  # what failed with older code would be tried again only after minutes
        kubectl("-n", SYSTEM, "rollout", "restart", "deployment,daemonset", "-l", "app.kubernetes.io/name=paddock")
        kubectl("annotate", "--overwrite", "namespace", SYSTEM, f"code={code}")
    for kind in ("deployment", "daemonset"):
        kubectl("-n", SYSTEM, "rollout", "status", kind, "-l", "app.kubernetes.io/name=paddock", "--timeout", "120s")
    wait_listed()


def wait_led() -> None:
    """Wait until agents are those of the last upgrade, and the operator that acts is the only one."""
    kubectl("-n", SYSTEM, "rollout", "status", "daemonset", "-l", "app.kubernetes.io/name=paddock", "--timeout", "120s")

    def led() -> bool:
        pods = [pod["metadata"]["name"] for pod in listed("pods", SYSTEM, OPERATOR)]
        (lease,) = [one for one in listed("leases", SYSTEM) if one["metadata"]["name"] == "paddock-operator"]
        return pods == [lease["spec"].get("holderIdentity")]

    eventually("one operator, which leads", led, 90)


def wait_listed() -> None:
    """Wait until all four devices are there and usable."""

    def all_ready() -> bool:
        found = gpus()
        return all(
            name in found and any(one["type"] == "Ready" and one["status"] == "True" for one in conditions(found[name]))
            for name in (GPU_1060, GPU_4080, GPU_6000, GPU_INTEL)
        )

    def conditions(gpu: dict[str, Any]) -> list[dict[str, Any]]:
        return list(gpu.get("status", {}).get("conditions", []))

    eventually("every GPU listed", all_ready, 60)

"""One cluster with one installation for all end-to-end tests; each test in a namespace of its own."""

import os
import re
import shutil
from collections.abc import Iterator

import pytest

from e2e import api, installation, kit
from e2e.installation import install
from support.cluster import apply, clear_lies, ensure_cluster, eventually, kubectl, node_up

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Bring up the cluster with the present code, and install the chart. PADDOCK_E2E_AS_IS=1: take what is there."""
    as_is = bool(os.environ.get("PADDOCK_E2E_AS_IS"))
    if not as_is:
        ensure_cluster()
    for node in kit.NODES:
        clear_lies(node)
        kit.boot(node)
        kit.write_tiny(kit.models(node) / "tiny.gguf")
    kubectl("uncordon", *kit.NODES)
    kubectl("delete", "namespace", "-l", "paddock-e2e", "--ignore-not-found")
    if not as_is:
        install()
    kit.believe()
    yield
    eventually("no server of a test is left", lambda: not left(), 90)
    kit.nothing_double_booked()
    for node in kit.NODES:
        shutil.rmtree(kit.models(node))


def left() -> list[str]:
    """Give the pods and reservations that tests left behind; those of other namespaces are none of their business."""
    pods = [pod["metadata"]["namespace"] for pod in api.listed("pods", None, "app.kubernetes.io/managed-by=paddock")]
    held = [one["deployment"] for gpu in kit.gpus().values() for one in gpu["status"].get("reservations", [])]
    return [each for each in (*pods, *held) if each.startswith("e2e-")]


@pytest.fixture(scope="module")
def whole_fleet(cluster: None) -> Iterator[None]:  # noqa: ARG001 the cluster must be up
    """Have every card free: what others than tests serve (a demonstration) is suspended for as long."""
    others = [
        one["metadata"]
        for one in api.listed("modeldeployments")
        if not one["metadata"]["namespace"].startswith("e2e-") and not one["spec"].get("suspend")
    ]

    def suspend(truth: str) -> None:
        for one in others:
            patch = f'{{"spec": {{"suspend": {truth}}}}}'
            kubectl("patch", "mdep", "-n", one["namespace"], one["name"], "--type=merge", "-p", patch)

    suspend("true")
    try:
        eventually(
            "no card has a server",
            lambda: not any(one["status"].get("reservations") for one in kit.gpus().values()),
            90,
        )
        yield
    finally:
        suspend("false")


@pytest.fixture
def namespace(cluster: None, request: pytest.FixtureRequest) -> Iterator[str]:  # noqa: ARG001 the cluster must be up
    """Give a namespace that enforces restricted Pod Security; afterwards nothing of it is reserved."""
    name = "e2e-" + re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_"))[:40].strip("-")
    labels = {**RESTRICTED, "paddock-e2e": "true"}
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    yield name
    clear(name)


@pytest.fixture
def free_cards(namespace: str) -> str:
    """Give the namespace when nothing of other tests is left on any card."""
    eventually("free cards", lambda: not left(), 90)
    return namespace


def clear(name: str) -> None:
    """Delete a test's namespace. Its reservations must go by themselves: the end of the session waits for that."""
    kubectl("delete", "mdep", "--all", "-n", name, "--wait=false")
    # As any user may do who does not want to wait for the usual pause of the servers' end.
    kubectl("delete", "pods", "--all", "-n", name, "--grace-period=1", "--wait=false")
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def truth() -> Iterator[None]:
    """Have every device tell the truth afterwards, and every node run."""
    yield
    for node in kit.NODES:
        clear_lies(node)
    node_up("node2")
    kit.believe()
    installation.wait_listed()

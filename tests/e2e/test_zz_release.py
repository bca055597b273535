"""The chart's life: upgraded with other values, uninstalled and installed again, for one namespace only.

Last of all tests, since it does not wait until the usual installation runs again.
"""

import json
from collections.abc import Iterator

import pytest

from e2e import api, installation, kit
from support.cluster import RTX_4080, apply, eventually, kubectl

pytestmark = pytest.mark.e2e


@pytest.fixture
def restored() -> Iterator[None]:
    """Have the usual installation again afterwards."""
    yield
    if "second" in installation.releases():
        installation.uninstall("second")
    installation.upgrade("paddock", "--take-ownership", "--wait=false")


@pytest.fixture
def watched(cluster: None) -> Iterator[str]:  # noqa: ARG001 the cluster must be up
    """Give another namespace, without the operator's attention."""
    apply(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "e2e-elsewhere", "labels": {"paddock-e2e": "true"}},
        }
    )
    yield "e2e-elsewhere"
    kubectl("delete", "mdep", "--all", "-n", "e2e-elsewhere", "--wait=false", check=False)
    kubectl("delete", "namespace", "e2e-elsewhere", "--wait=false")


def test_upgrade_uninstall_and_install_again(namespace: str, watched: str, restored: None) -> None:  # noqa: ARG001
    kit.put(namespace, kit.deployment("survivor", {"uuid": RTX_4080}))
    kit.wait_available(namespace, "survivor")
    servers = kit.containers(namespace)
    check_upgrade()
    assert kit.containers(namespace) == servers, "an upgrade restarted a server"

    installation.uninstall()
    assert {one["metadata"]["name"] for one in api.listed("customresourcedefinitions")} >= {
        "gpus.paddock.dev",
        "modeldeployments.paddock.dev",
    }
    assert kit.containers(namespace) == servers
    assert set(kit.reservations(namespace)) == set(servers)
    assert kit.chat(kit.address_of(namespace, "survivor"))[0] == 200

    # Under another name, and for one namespace only.
    kit.put(watched, kit.deployment("nobody-cares"))
    kit.put(namespace, kit.deployment("waited"))
    values = {"watchNamespaces": [namespace]}
    refused = installation.try_upgrade("second", values=values)
    assert refused is not None, "the definitions belong to the old release"
    assert "invalid ownership metadata" in refused
    installation.upgrade("second", "--take-ownership", values=values)
    check_one_namespace(namespace, watched)
    assert kit.containers(namespace).items() >= servers.items(), "a healthy server was restarted"


def check_upgrade() -> None:
    """Check that changed values arrive."""
    installation.upgrade(values={"log": {"format": "json"}, "server": {"reserve": "1Gi"}})
    (operator,) = eventually(
        "one operator",
        lambda: found if len(found := api.listed("pods", kit.SYSTEM, kit.OPERATOR)) == 1 else None,
        60,
    )
    lines = kubectl("logs", "-n", kit.SYSTEM, operator["metadata"]["name"]).splitlines()
    assert lines
    assert all(json.loads(line) for line in lines)


def check_one_namespace(namespace: str, elsewhere: str) -> None:
    """Assert that the operator serves one namespace, and has no right in others."""
    kit.wait_available(namespace, "survivor", "waited")
    assert "status" not in kit.mdep(elsewhere, "nobody-cares")
    (account,) = (
        one["metadata"]["name"]
        for one in api.listed("serviceaccounts", kit.SYSTEM)
        if one["metadata"]["name"].endswith("operator")
    )
    user = f"--as=system:serviceaccount:{kit.SYSTEM}:{account}"
    may = {
        where: kit.run("kubectl", "auth", "can-i", "create", "pods", "-n", where, user, check=False).stdout.strip()
        for where in (namespace, elsewhere)
    }
    assert may == {namespace: "yes", elsewhere: "no"}
    assert api.found("services", elsewhere, "nobody-cares") is None

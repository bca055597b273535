"""A private API server on which helm installs the chart."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from support.apiserver import ApiServer, api_server
from support.helm import CHART, NAMESPACE, helm

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Site:
    """An API server, and helm that talks to it."""

    server: ApiServer
    kubeconfig: Path

    def helm(self, *arguments: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        return helm("--kubeconfig", str(self.kubeconfig), "--namespace", NAMESPACE, *arguments, values=values)

    def install(self, *options: str, chart: Path = CHART, values: dict[str, Any] | None = None) -> str:
        """Install or upgrade, with these values alone, and give the notes."""
        done = self.helm("upgrade", "--install", "--reset-values", "paddock", str(chart), *options, values=values or {})
        assert done.returncode == 0, done.stderr
        return done.stdout

    def allowed(self, user: str, verb: str, resource: str, namespace: str = "", name: str = "") -> bool:
        """Ask whether a user may; `resource` is like pods/log or gpus.paddock.dev."""
        plain, _, group = resource.partition(".")
        plain, _, subresource = plain.partition("/")
        attributes = {"verb": verb, "group": group, "resource": plain, "subresource": subresource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": {**attributes, "namespace": namespace, "name": name}},
        }
        answer = self.server.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer.body["status"]["allowed"])

    def as_account(self, namespace: str, name: str) -> ApiServer:
        """Give the server as a ServiceAccount sees it, which is made when it is missing."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        assert self.server.call("POST", path, account).status in (201, 409)
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
        answer = self.server.call("POST", f"{path}/{name}/token", request)
        assert answer.status == 201, answer
        return replace(self.server, token=answer.body["status"]["token"])


@contextlib.contextmanager
def new_site(folder: Path) -> Iterator[Site]:
    with api_server(folder) as server:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": server.url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": server.token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        kubeconfig = folder / "kubeconfig"
        kubeconfig.touch(0o600)
        kubeconfig.write_text(json.dumps(config))
        for name in (NAMESPACE, "team-a", "team-b"):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            assert server.call("POST", "/api/v1/namespaces", namespace).status == 201
        yield Site(server, kubeconfig)

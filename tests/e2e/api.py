"""Asks the API server within this process: a kubectl for each look would be most of what the tests cost."""

import base64
import http.client
import json
import ssl
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from cluster.local import LocalCluster

Object = dict[str, Any]
_GROUPS = {
    "customresourcedefinitions": "/apis/apiextensions.k8s.io/v1",
    "endpointslices": "/apis/discovery.k8s.io/v1",
    "gpus": "/apis/paddock.dev/v1alpha1",
    "leases": "/apis/coordination.k8s.io/v1",
    "modeldeployments": "/apis/paddock.dev/v1alpha1",
    "nodes": "/api/v1",
    "pods": "/api/v1",
    "resourceclaims": "/apis/resource.k8s.io/v1",
    "resourceslices": "/apis/resource.k8s.io/v1",
    "serviceaccounts": "/api/v1",
    "services": "/api/v1",
}


@cache
def _login() -> tuple[str, int, ssl.SSLContext]:
    """Give host, port and the administrator's credentials, from the cluster's kubeconfig, which is JSON."""
    config = json.loads(LocalCluster().kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "login.pem"
        parts = (user["client-certificate-data"], user["client-key-data"])
        file.write_bytes(b"\n".join(base64.b64decode(part) for part in parts))
        context.load_cert_chain(file)
    where = urlsplit(cluster["server"])
    return str(where.hostname), where.port or 443, context


def _read(path: str) -> Object | None:
    return _ask("GET", path)


def _ask(method: str, path: str, content: Object | None = None) -> Object | None:
    host, port, context = _login()
    connection = http.client.HTTPSConnection(host, port, context=context, timeout=30)
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    try:
        connection.request(method, path, json.dumps(content) if content is not None else None, headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status == 404:
            return None
        assert answer.status in (200, 201), f"{method} {path}: {answer.status} {body[:500]!r}"
        return dict(json.loads(body))
    finally:
        connection.close()


def _path(kind: str, namespace: str | None, name: str = "") -> str:
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"{_GROUPS[kind]}{where}/{kind}" + (f"/{name}" if name else "")


def found(kind: str, namespace: str | None, name: str) -> Object | None:
    """Give an object; None when there is none."""
    return _read(_path(kind, namespace, name))


def create(kind: str, namespace: str, body: Object) -> None:
    """Create an object, at once: kubectl takes longer to start than this takes."""
    assert _ask("POST", _path(kind, namespace), body) is not None, f"there is no namespace {namespace}"


def listed(kind: str, namespace: str | None = None, selector: str = "") -> list[Object]:
    """Give all objects of a kind, of a namespace or of all, with these labels."""
    answer = _read(_path(kind, namespace) + (f"?labelSelector={quote(selector)}" if selector else ""))
    return list(answer["items"]) if answer is not None else []

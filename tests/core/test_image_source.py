"""Models in container images, which Kubernetes mounts: what names them, and what pods get for them."""

from __future__ import annotations

import pytest

from paddock.core.objects import inspector_name, inspector_pod, mounted_of
from paddock.core.pod import PodSettings, server_pod
from paddock.core.source import ClaimSource, ImageSource, parse_any
from support.builders import RTX_4080, bound, deployment, record
from support.restricted import violations

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "reference", "path"),
    [
        ("image://ghcr.io/org/models:1/gemma.gguf", "ghcr.io/org/models:1", "gemma.gguf"),
        ("image://registry.example:5000/a/b:v2/models/x.gguf", "registry.example:5000/a/b:v2", "models/x.gguf"),
        (f"image://ghcr.io/org/models@{DIGEST}/x.gguf", f"ghcr.io/org/models@{DIGEST}", "x.gguf"),
    ],
)
def test_an_image_and_the_file_in_it(text: str, reference: str, path: str) -> None:
    assert parse_any(text, []) == ImageSource(reference, path)


@pytest.mark.parametrize(
    "text",
    ["image://ghcr.io/org/models:1", "image://ghcr.io/org/models/x.gguf", "image://x", "image://h/r:1/a//x.gguf"],
)
def test_what_names_no_file_of_an_image(text: str) -> None:
    assert "is not of the form image://" in str(parse_any(text, []))


def test_reader_and_server_mount_the_image_and_nothing_else() -> None:
    source = ImageSource("ghcr.io/org/models:1", "sub/x.gguf")
    of = deployment(model={"source": "image://ghcr.io/org/models:1/sub/x.gguf"})
    reader = inspector_pod(of, source, "agent:1", "IfNotPresent", 65532)
    mounted = mounted_of(source, "node1", 5)
    server = server_pod(of, 0, record(RTX_4080), bound(RTX_4080), mounted, PodSettings("r", "p"))
    image = {"name": "model", "image": {"reference": "ghcr.io/org/models:1", "pullPolicy": "IfNotPresent"}}
    for pod in (reader, server):
        assert pod["spec"]["volumes"][0] == image
        mount = pod["spec"]["containers"][0]["volumeMounts"][0]
        assert (mount["name"], mount["mountPath"], mount["readOnly"]) == ("model", "/model-image", True)
        assert violations(pod) == []
    assert reader["spec"]["containers"][0]["command"][-2:] == ["/model-image/sub/x.gguf", "/model-image"]
    assert server["spec"]["containers"][0]["args"][:2] == ["-m", "/model-image/sub/x.gguf"]
    assert "initContainers" not in server["spec"]
    assert inspector_name("ns", source) != inspector_name("ns", ClaimSource("other", "sub/x.gguf"))

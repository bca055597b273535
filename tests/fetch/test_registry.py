"""oci:// from a real registry, ollama:// from a likeness of one."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from paddock.core.source import RegistrySource
from paddock.fetch.credentials import Credentials, Login
from paddock.fetch.failures import FetchError
from support.fetch_site import Handler, add_artifact, sha256
from support.gguf_writer import write_split
from support.stores import PASSWORD, USER, Registry, registry

from .conftest import parsed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .conftest import Node

TITLE = "org.opencontainers.image.title"
GGUF = "application/vnd.docker.ai.gguf.v3"
LOGIN = {"username": USER, "password": PASSWORD}


def titled(path: Path, kind: str = GGUF) -> tuple[Path, dict[str, Any]]:
    return path, {"mediaType": kind, "annotations": {TITLE: path.name}}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("registry")) as running:
        running.push("org/model", "1", [titled(model)])
        running.push("org/untitled", "1", [(model, {"mediaType": GGUF})])
        yield running


def settings_of(node: Node, real: Registry) -> Any:
    return node.settings(mirrors=f"{real.host}=http://{real.host}")


def test_a_model_of_a_real_registry_is_fetched_with_a_login(node: Node, real: Registry, model: Path) -> None:
    credentials = Credentials(logins={real.host: Login(USER, PASSWORD)})
    done = node.get(f"oci://{real.host}/org/model:1", credentials, settings_of(node, real))
    assert done.files[0].name == "model.gguf"
    assert done.files[0].digest == "sha256:" + sha256(model)
    pinned = parsed(node.cache.models()[0].pinned)
    assert isinstance(pinned, RegistrySource)
    assert pinned.digest is not None
    assert node.get(str(pinned)).fetched == 0  # needs neither login nor network


def test_a_layer_without_a_title_gets_a_name(node: Node, real: Registry, model: Path) -> None:
    done = node.get(f"oci://{real.host}/org/untitled:1", Credentials(**LOGIN), settings_of(node, real))
    assert done.files[0].name == f"untitled-{sha256(model)[:12]}.gguf"


@pytest.mark.parametrize(
    ("source", "credentials", "failure"),
    [
        ("org/model:1", Credentials(), "Unauthorized"),
        ("org/model:1", Credentials(username=USER, password="wr0ng"), "Unauthorized"),
        ("org/model:2", Credentials(**LOGIN), "NotFound"),
        ("org/none:1", Credentials(**LOGIN), "NotFound"),
        ("org/model@sha256:" + "0" * 64, Credentials(**LOGIN), "NotFound"),
        ("org/model:1/other.gguf", Credentials(**LOGIN), "NotFound"),
    ],
)
def test_what_a_real_registry_refuses_has_its_kind(
    node: Node, real: Registry, source: str, credentials: Credentials, failure: str
) -> None:
    with pytest.raises(FetchError) as caught:
        node.get(f"oci://{real.host}/{source}", credentials, settings_of(node, real))
    assert caught.value.failure == failure
    assert "wr0ng" not in caught.value.message


def test_parts_and_companions_in_one_artifact(node: Node, real: Registry, model: Path, tmp_path: Path) -> None:
    parts = write_split(tmp_path, "big", 2)
    projector = tmp_path / "mmproj-big.gguf"
    projector.write_bytes(model.read_bytes())
    archive = (model, {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"})
    real.push("org/big", "1", [archive, titled(projector), *(titled(path) for path in reversed(parts))])
    settings, login = settings_of(node, real), Credentials(**LOGIN)
    done = node.get(f"oci://{real.host}/org/big:1", login, settings)
    assert [file.name for file in done.files] == [path.name for path in parts]
    done = node.get(f"oci://{real.host}/org/big:1/mmproj-big.gguf", login, settings)
    assert [file.name for file in done.files] == ["mmproj-big.gguf"]


def test_several_models_in_one_artifact_want_a_name(node: Node, real: Registry, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(model.read_bytes())
    real.push("org/two", "1", [titled(model), titled(other)])
    with pytest.raises(FetchError, match=r"holds 2 models: add /FILE for one of model\.gguf, other\.gguf"):
        node.get(f"oci://{real.host}/org/two:1", Credentials(**LOGIN), settings_of(node, real))


def test_a_token_is_bought_where_the_registry_says(node: Node, model: Path) -> None:
    add_artifact(node.site, "org/model", "1", [{"mediaType": GGUF}], [model])
    host = node.site.address.removeprefix("http://")
    login = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    def guarded(handler: Handler) -> bool:
        if handler.path.startswith("/token?service=reg&scope=repository%3Aorg%2Fmodel%3Apull"):
            if handler.headers.get("Authorization") != login:
                handler.status(401)
            else:
                handler.document({"token": "bought"}, {})
            return True
        if handler.headers.get("Authorization") != "Bearer bought":
            realm = f'Bearer realm="{node.site.address}/token",service="reg",scope="repository:org/model:pull"'
            handler.status(401, WWW_Authenticate=realm)
            return True
        return False

    node.site.behaviour = guarded
    settings = node.settings(mirrors=f"{host}={node.site.address}")
    assert node.get(f"oci://{host}/org/model:1", Credentials(**LOGIN), settings).fetched
    with pytest.raises(FetchError) as caught:
        node.get(f"oci://{host}/org/model:1", Credentials(username=USER, password="wr0ng"), settings)
    assert caught.value.failure == "Unauthorized"


def test_a_manifest_that_is_not_what_its_digest_says_is_corrupt(node: Node, model: Path) -> None:
    digest = add_artifact(node.site, "org/model", "1", [{"mediaType": GGUF}], [model])
    document = node.site.documents[f"/v2/org/model/manifests/{digest}"]
    node.site.documents[f"/v2/org/model/manifests/{digest}"] = document + b" "
    host = node.site.address.removeprefix("http://")
    with pytest.raises(FetchError) as caught:
        node.get(f"oci://{host}/org/model@{digest}", settings=node.settings(mirrors=f"{host}={node.site.address}"))
    assert caught.value.failure == "Corrupt"


def test_an_index_of_one_artifact_is_followed_and_one_of_many_is_not(node: Node, model: Path) -> None:
    digest = add_artifact(node.site, "org/model", "1", [{"mediaType": GGUF}], [model])
    index = "application/vnd.oci.image.index.v1+json"
    host = node.site.address.removeprefix("http://")
    settings = node.settings(mirrors=f"{host}={node.site.address}/v2".removesuffix("/v2"))
    for count in (1, 2):
        listed = {"mediaType": index, "manifests": [{"digest": digest}] * count}
        node.site.documents[f"/v2/org/model/manifests/many{count}"] = json.dumps(listed).encode()
    assert node.get(f"oci://{host}/org/model:many1", settings=settings).fetched
    with pytest.raises(FetchError, match="is a list of 2 images, not an artifact"):
        node.get(f"oci://{host}/org/model:many2", settings=settings)


def test_a_model_of_an_ollama_registry(node: Node, model: Path, tmp_path: Path) -> None:
    licence = tmp_path / "license"
    licence.write_text("Apache License")
    kinds = ["application/vnd.ollama.image.model", "application/vnd.ollama.image.license"]
    add_artifact(node.site, "library/gemma3", "270m", [{"mediaType": kind} for kind in kinds], [model, licence])
    done = node.get("ollama://gemma3:270m")
    assert done.files[0].name == "gemma3.gguf"
    assert done.files[0].digest == "sha256:" + sha256(model)
    pinned = node.cache.models()[0].pinned
    assert pinned.startswith("ollama://library/gemma3@sha256:")
    node.cache.clear()
    assert node.get(pinned, key=done.key).fetched == done.bytes
    with pytest.raises(FetchError) as caught:
        node.get("ollama://gemma3:1b")
    assert caught.value.failure == "NotFound"


def test_without_an_own_mirror_a_registry_is_asked_by_https(node: Node) -> None:
    host = node.site.address.removeprefix("http://")
    with pytest.raises(FetchError) as caught:
        node.get(f"oci://{host}/org/model:1", settings=node.settings(patience=0.1))
    assert caught.value.failure == "Unreachable"
    assert node.site.asked == []

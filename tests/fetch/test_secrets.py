"""Credentials come as files of a Secret, and their values stay there; certificates and proxies."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest

from paddock.fetch.credentials import Login, read_credentials
from paddock.fetch.failures import FetchError
from support.fetch_site import Handler, add_repository, site

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Node

SECRET = "s3cretvalue"


def folder(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)
    return path


def test_every_kind_of_secret_is_read(tmp_path: Path) -> None:
    auth = base64.b64encode(b"ann:pass:word").decode()
    docker = {"auths": {"ghcr.io": {"auth": auth}, "https://index.docker.io/v1/": {"username": "b", "password": "p"}}}
    found = read_credentials(
        folder(
            tmp_path / "s",
            token="hf_x\n",
            accessKeyId="id",
            secretAccessKey="key",
            endpoint="https://minio",
            region="eu",
            __dockerconfigjson=json.dumps(docker),
            serviceAccount__json='{\n"a": 1\n}',
            other="is passed over",
        )
    )
    assert (found.token, found.access_key_id, found.secret_access_key) == ("hf_x", "id", "key")
    assert (found.endpoint, found.region, found.service_account) == ("https://minio", "eu", '{\n"a": 1\n}')
    assert found.logins == {"ghcr.io": Login("ann", "pass:word"), "index.docker.io": Login("b", "p")}
    for word in ("hf_x", "key'", "pass"):
        assert word not in repr(found)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"other": "x"}, "holds none of the keys token,"),
        ({"token": ""}, "the key token of the Secret is empty"),
        ({"token": f"{SECRET}\n{SECRET}"}, "not one line of text"),
        ({"token": SECRET * 10000}, "too long"),
        ({"__dockerconfigjson": json.dumps({"auths": {"ghcr.io": {"auth": SECRET}}})}, "is not of the usual form"),
    ],
)
def test_what_is_wrong_with_a_secret_is_said_without_its_values(
    tmp_path: Path, files: dict[str, str], words: str
) -> None:
    with pytest.raises(FetchError) as caught:
        read_credentials(folder(tmp_path / "s", **files))
    assert caught.value.failure == "Unauthorized"
    assert words in caught.value.message
    assert SECRET not in caught.value.message


def test_a_secret_that_is_not_mounted_is_said(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="the Secret with the credentials cannot be read: No such file"):
        read_credentials(tmp_path / "none")


def test_no_value_is_in_arguments_environment_or_output(node: Node, model: Path, tmp_path: Path) -> None:
    add_repository(node.site, "org/repo", {"model.gguf": model})
    node.site.authorization = f"Bearer {SECRET}"
    secret = folder(tmp_path / "s", token=SECRET)
    node.site.bytes_per_second = 1e6
    cache = str(node.cache.folder)
    process = node.start("get", "hf://org/repo/model.gguf", "--cache", cache, "--credentials", str(secret))
    assert process.stdout is not None
    first = process.stdout.readline()
    for what in ("cmdline", "environ"):
        with open(f"/proc/{process.pid}/{what}", "rb") as stream:  # noqa: PTH123 - as the system says it
            assert SECRET.encode() not in stream.read()
    node.site.bytes_per_second = 0
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert SECRET not in first + output + errors
    assert not any(SECRET in one.read_text() for one in node.cache.folder.rglob("*.json"))
    node.site.behaviour = lambda handler: handler.status(401) or True  # type: ignore[func-returns-value] # a short way to do and say yes
    code, lines, said = node.run("get", "hf://org/repo@x/model.gguf", "--cache", cache, "--credentials", str(secret))
    assert (code, lines[-1]["failure"], lines[-1]["retry"]) == (3, "Unauthorized", False)
    assert SECRET not in said


def test_a_presigned_address_is_not_kept_and_not_said(node: Node, model: Path) -> None:
    node.site.files["/signed.gguf"] = model
    source = f"{node.site.address}/signed.gguf?X-Amz-Signature={SECRET}"
    code, _, said = node.run("get", source, "--cache", str(node.cache.folder))
    assert code == 0
    assert SECRET not in said
    everything = b"".join(
        one.read_bytes()
        for one in node.cache.folder.rglob("*")
        if one.is_file() and "blobs" not in one.parts and one.suffix != ".gguf"
    )
    assert SECRET.encode() not in everything


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a certificate for the loopback address, signed by itself."""
    place = tmp_path_factory.mktemp("tls")
    key, certificate = place / "key.pem", place / "certificate.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=test",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            key,
            "-out",
            certificate,
        ],
        check=True,
        capture_output=True,
    )
    return key, certificate


def test_a_private_certificate_is_trusted_once_it_is_given(
    node: Node, model: Path, certificate: tuple[Path, Path]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    with site(tls=context, files={"/model.gguf": model}) as encrypted:
        encrypted.bytes_per_second = 1e9  # without sendfile on the raw socket
        source = encrypted.address + "/model.gguf"
        with pytest.raises(FetchError) as caught:
            node.get(source)
        assert (caught.value.failure, caught.value.transient) == ("Untrusted", False)
        assert "is not trusted: self-signed certificate" in caught.value.message
        settings = node.settings(plain_http=False, ca_file=certificate[1])
        assert node.get(source, settings=settings).fetched == model.stat().st_size
    with pytest.raises(FetchError, match="holds no certificates"):
        node.get(source, settings=node.settings(ca_file="/dev/null"))


def test_all_requests_go_through_the_proxy(node: Node, model: Path) -> None:
    with site() as proxy:

        def forward(handler: Handler) -> bool:
            path = handler.path.removeprefix("http://models.example")
            if path == "/model.gguf":
                handler.path = path
            return False

        proxy.behaviour = forward
        proxy.files["/model.gguf"] = model
        settings = node.settings(proxy=proxy.address)
        done = node.get("http://models.example/model.gguf", settings=settings)
        assert done.fetched == model.stat().st_size
        assert all(path.startswith("http://models.example/") for path, _ in proxy.asked)
        asked = len(proxy.asked)
        node.get(node.site.address + "/model.gguf", settings=node.settings(proxy=proxy.address, no_proxy="127.0.0.1"))
        assert len(proxy.asked) == asked

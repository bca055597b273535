"""s3:// from a real S3 server; gs:// from one of that interface and az:// from a likeness, which check no signature."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from paddock.fetch.credentials import Credentials
from paddock.fetch.failures import FetchError
from support.fetch_site import Site, sha256
from support.gguf_writer import write_split
from support.stores import ACCESS, SECRET, gcs, google_account, s3

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .conftest import Node

BUCKET = "models"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[tuple[Path, Credentials]]:
    folder = tmp_path_factory.mktemp("s3")
    with s3(folder, BUCKET) as address:
        data = folder / "data" / BUCKET
        (data / "sub").mkdir()
        shutil.copy(model, data / "sub" / "model.gguf")
        for path in write_split(tmp_path_factory.mktemp("split"), "big", 2):
            shutil.copy(path, data / path.name)
        yield data, Credentials(access_key_id=ACCESS, secret_access_key=SECRET, endpoint=address, region="us-east-1")


def test_an_object_is_fetched_by_ranges(node: Node, model: Path, store: tuple[Path, Credentials]) -> None:
    done = node.get(f"s3://{BUCKET}/sub/model.gguf", store[1], digests={"": "sha256:" + sha256(model)})
    assert (node.cache.folder / done.path).read_bytes() == model.read_bytes()
    assert done.fetched == model.stat().st_size
    assert node.get(f"s3://{BUCKET}/sub/model.gguf", store[1]).fetched == 0
    assert node.leftovers() == []


def test_all_parts_of_a_split_model_are_fetched(node: Node, store: tuple[Path, Credentials]) -> None:
    done = node.get(f"s3://{BUCKET}/big-00001-of-00002.gguf", store[1])
    assert [file.name for file in done.files] == ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"]


@pytest.mark.parametrize(
    ("key", "changed", "failure"),
    [
        ("none.gguf", {}, "NotFound"),
        ("sub/model.gguf", {"secret_access_key": "wr0ng"}, "Unauthorized"),
        ("sub/model.gguf", {"access_key_id": "nobody"}, "Unauthorized"),
        ("sub/model.gguf", {"access_key_id": None, "secret_access_key": None}, "Unauthorized"),
        ("sub/model.gguf", {"endpoint": "http://127.0.0.1:1"}, "Unreachable"),
    ],
)
def test_what_a_real_store_refuses_has_its_kind(
    node: Node, store: tuple[Path, Credentials], key: str, changed: dict[str, str | None], failure: str
) -> None:
    credentials = replace(store[1], **changed)  # type: ignore[arg-type] # fields by name
    with pytest.raises(FetchError) as caught:
        node.get(f"s3://{BUCKET}/{key}", credentials, node.settings(patience=0.2))
    assert caught.value.failure == failure
    assert "wr0ng" not in caught.value.message
    assert SECRET not in caught.value.message


def test_a_bucket_that_is_not_there_is_not_found(node: Node, store: tuple[Path, Credentials]) -> None:
    with pytest.raises(FetchError) as caught:
        node.get("s3://nobucket/model.gguf", store[1], node.settings(patience=0.2))
    assert caught.value.failure == "NotFound"


def test_plain_http_is_refused_unless_it_is_allowed(node: Node, store: tuple[Path, Credentials]) -> None:
    with pytest.raises(FetchError) as caught:
        node.get(f"s3://{BUCKET}/sub/model.gguf", store[1], node.settings(plain_http=False, patience=0.2))
    assert caught.value.failure == "Untrusted"


def put(site: Site, path: str, model: Path) -> None:
    site.files[path] = model
    site.headers[path] = {"Last-Modified": "Mon, 30 Nov 2026 10:00:00 GMT"}


def google(address: str) -> Credentials:
    return Credentials(service_account=google_account(address))


@pytest.fixture(scope="module")
def google_store(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Credentials]:
    folder = tmp_path_factory.mktemp("gcs")
    bucket = folder / "data" / BUCKET
    (bucket / "a").mkdir(parents=True)
    shutil.copy(model, bucket / "a" / "model.gguf")
    for path in write_split(tmp_path_factory.mktemp("gcs-split"), "big", 2):
        shutil.copy(path, bucket / path.name)
    with gcs(folder) as address:
        yield google(address)


def test_an_object_of_google_is_fetched_by_ranges_and_once(node: Node, model: Path, google_store: Credentials) -> None:
    source = f"gs://{BUCKET}/a/model.gguf"
    done = node.get(source, google_store, digests={"": "sha256:" + sha256(model)})
    assert (node.cache.folder / done.path).read_bytes() == model.read_bytes()
    assert done.fetched == model.stat().st_size
    assert node.get(source, google_store).fetched == 0
    assert node.leftovers() == []


def test_all_parts_of_a_split_model_come_from_google(node: Node, google_store: Credentials) -> None:
    done = node.get(f"gs://{BUCKET}/big-00001-of-00002.gguf", google_store)
    assert [file.name for file in done.files] == ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"]


@pytest.mark.parametrize("source", [f"gs://{BUCKET}/none.gguf", "gs://nobucket/model.gguf"])
def test_what_google_does_not_have_is_not_found(node: Node, google_store: Credentials, source: str) -> None:
    with pytest.raises(FetchError) as caught:
        node.get(source, google_store, node.settings(patience=0.2))
    assert caught.value.failure == "NotFound"


def test_google_out_of_reach_is_unreachable(node: Node) -> None:
    with pytest.raises(FetchError) as caught:
        node.get(f"gs://{BUCKET}/model.gguf", google("http://127.0.0.1:1"), node.settings(patience=0.2))
    assert caught.value.failure == "Unreachable"


def test_a_blob_of_azure(node: Node, model: Path) -> None:
    put(node.site, "/container/a/model.gguf", model)
    credentials = Credentials(account_name="acc", sas_token="sv=1&sig=s3cret", endpoint=node.site.address)
    done = node.get("az://container/a/model.gguf", credentials)
    assert done.files[0].digest == "sha256:" + sha256(model)
    assert any("sig=s3cret" in path for path, _ in node.site.asked)
    with pytest.raises(FetchError) as caught:
        node.get("az://container/none.gguf", credentials)
    assert caught.value.failure == "NotFound"
    with pytest.raises(FetchError, match="needs a Secret with accountName"):
        node.get("az://container/none.gguf")

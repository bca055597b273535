"""Sources that have to be fetched: what users write, to values or to a sentence that says what is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.core.source import (
    BucketSource,
    ClaimSource,
    HubSource,
    OllamaSource,
    RegistrySource,
    RemoteSource,
    WebSource,
    names_one_version,
    parse_any,
    parse_remote,
)

DIGEST = "sha256:" + "0f" * 32


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hf://org/repo/file.gguf", HubSource("org/repo", None, "file.gguf")),
        ("hf://org/repo@v1.0/a/b.gguf", HubSource("org/repo", "v1.0", "a/b.gguf")),
        ("hf://org/repo@refs%2Fpr%2F1/b.gguf", HubSource("org/repo", "refs/pr/1", "b.gguf")),
        ("hf://org/repo:Q4_K_M", HubSource("org/repo", None, None, "Q4_K_M")),
        ("hf://org/re.po-1@abc:UD-Q4_K_XL", HubSource("org/re.po-1", "abc", None, "UD-Q4_K_XL")),
        ("https://host/x.gguf", WebSource("https://host/x.gguf")),
        ("https://host:8443/a/x.gguf?sig=1", WebSource("https://host:8443/a/x.gguf?sig=1")),
        ("s3://bucket/a/x.gguf", BucketSource("s3", "bucket", "a/x.gguf")),
        ("gs://bucket/x.gguf", BucketSource("gs", "bucket", "x.gguf")),
        ("az://container/x.gguf", BucketSource("az", "container", "x.gguf")),
        ("oci://ghcr.io/org/model:1", RegistrySource("ghcr.io", "org/model", "1")),
        ("oci://[::1]:5000/m@" + DIGEST, RegistrySource("[::1]:5000", "m", None, DIGEST)),
        ("oci://r:5000/org/m:1/x.gguf", RegistrySource("r:5000", "org/m", "1", None, "x.gguf")),
        ("ollama://gemma3", OllamaSource("library/gemma3")),
        ("ollama://gemma3:270m", OllamaSource("library/gemma3", None, "270m")),
        ("ollama://me/mine:1", OllamaSource("me/mine", None, "1")),
        ("ollama://host:11434/library/gemma3:1b", OllamaSource("library/gemma3", "host:11434", "1b")),
        ("ollama://gemma3@" + DIGEST, OllamaSource("library/gemma3", None, None, DIGEST)),
    ],
)
def test_what_users_write_is_understood(text: str, source: RemoteSource) -> None:
    assert parse_remote(text) == source
    assert parse_remote(str(source)) == source or "?" in text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gemma.gguf", "begin with one of hf://"),
        ("ftp://host/x.gguf", "begin with one of hf://"),
        ("hf://org/repo", "is not of the form hf://OWNER/NAME[@REVISION]/FILE.gguf"),
        ("hf://repo/file.gguf", "is not of the form"),
        ("hf://org/repo/model.safetensors", "does not name a .gguf file"),
        ("hf://org/repo/../x.gguf", "must not contain empty, . or .. segments"),
        ("hf://org/repo@..%2Fx/x.gguf", "names no revision"),
        ("hf://org/repo:Q4 K", "without spaces"),
        ("hf://org/repo:", "is not a quantization"),
        ("https://user:pass@host/x.gguf", "holds a user or password: put it into a Secret"),
        ("https://host", "names a folder, not a file"),
        ("https://host/x.gguf#part", "must not have a # part"),
        ("https://host:99999/x.gguf", "is not an address"),
        ("https:///x.gguf", "names no server"),
        ("https://huggingface.co/org/repo/blob/main/x.gguf", "write hf://OWNER/NAME/FILE"),
        ("s3://bucket", "names a folder, not a file"),
        ("s3://b_?/x", "is not of the form s3://BUCKET/KEY"),
        ("az:///x", "is not of the form az://CONTAINER/BLOB"),
        ("oci://ghcr.io/org/model", "is not of the form oci://REGISTRY/REPOSITORY:TAG"),
        ("oci://ghcr.io/Org/model:1", "is not of the form"),
        ("oci://ghcr.io/org/model:1/../x", "must not contain empty, . or .. segments"),
        ("ollama://a/b/c/d", "is not of the form ollama://"),
        ("https://host/" + "x" * 1100, "at most 1024"),
        ("https://host/a\nb", "printable"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(text: str, why: str) -> None:
    found = parse_remote(text)
    assert isinstance(found, str)
    assert why in found


def test_no_password_and_no_signature_is_repeated() -> None:
    for text in ("https://user:s3cret@host/x.gguf", "https://host/?X-Signature=s3cret", "ftp://u:s3cret@host/x"):
        found = parse_remote(text)
        assert isinstance(found, str)
        assert "s3cret" not in found
    assert "s3cret" not in str(parse_remote("https://host/x.gguf?X-Signature=s3cret"))


def test_local_sources_are_parsed_as_before() -> None:
    assert parse_any("pvc://claim/x.gguf", []) == ClaimSource("claim", "x.gguf")
    assert parse_any("ollama://gemma3", []) == OllamaSource("library/gemma3")
    assert isinstance(parse_any("file:///x.gguf", []), str)


@given(st.sampled_from(["hf", "https", "s3", "oci", "ollama", "gs"]), st.text(max_size=40))
def test_any_text_gives_a_source_or_a_sentence(scheme: str, rest: str) -> None:
    found = parse_remote(f"{scheme}://{rest}")
    if not isinstance(found, str | WebSource):
        assert parse_remote(str(found)) == found


@pytest.mark.parametrize(
    ("text", "one"),
    [
        (f"hf://org/repo@{'0' * 40}/x.gguf", True),
        (f"hf://org/repo@{'0' * 39}/x.gguf", False),
        ("hf://org/repo@main/x.gguf", False),
        ("hf://org/repo/x.gguf", False),
        (f"oci://ghcr.io/org/model@sha256:{'a' * 64}", True),
        ("oci://ghcr.io/org/model:1", False),
        (f"ollama://name@sha256:{'a' * 64}", True),
        ("ollama://name:latest", False),
        ("https://host/x.gguf", False),
        ("s3://bucket/x.gguf", False),
    ],
)
def test_only_a_commit_or_a_digest_names_one_version(text: str, one: bool) -> None:
    found = parse_remote(text)
    assert not isinstance(found, str)
    assert names_one_version(found) is one

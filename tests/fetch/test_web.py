"""Models from web servers that behave, and from those that do not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from paddock.fetch.credentials import Credentials
from paddock.fetch.failures import FetchError
from support.fetch_site import Handler, basic, sha256, site
from support.gguf_writer import write_not_gguf, write_split, write_truncated

if TYPE_CHECKING:
    from pathlib import Path

    from paddock.api.fetched import FailureClass

    from .conftest import Node


def address(node: Node) -> str:
    return node.site.address + "/model.gguf"


def failure(node: Node, source: str | None = None, **options: object) -> FetchError:
    with pytest.raises(FetchError) as caught:
        node.get(source or address(node), **options)  # type: ignore[arg-type] # of several kinds
    return caught.value


def test_a_model_is_fetched_whole_and_checked(node: Node, model: Path) -> None:
    done = node.get(address(node), digests={"": "sha256:" + sha256(model)})
    assert (node.cache.folder / done.path).read_bytes() == model.read_bytes()
    assert done.files[0].digest == "sha256:" + sha256(model)
    assert done.fetched == done.bytes == model.stat().st_size
    assert node.lines[-1].percent == 100
    assert node.leftovers() == []
    assert (node.cache.folder / done.path).stat().st_mode & 0o777 == 0o444


@pytest.mark.usefixtures("small_blocks")
def test_ranges_are_fetched_in_parallel_and_none_twice(node: Node, model: Path) -> None:
    node.get(address(node), settings=node.settings(connections=4))
    first, *ranges = node.site.ranges_asked("/model.gguf")
    assert first == "bytes=0-1048575"
    bounds = sorted(tuple(map(int, one.removeprefix("bytes=").split("-"))) for one in ranges)
    assert [end + 1 for _, end in bounds] == [start for start, _ in bounds[1:]] + [model.stat().st_size]
    assert bounds[0][0] == 0
    assert max(end - start for start, end in bounds) < 8 * 64 * 1024


def test_a_second_fetch_reads_nothing_of_the_file_again(node: Node) -> None:
    node.get(address(node))
    before = node.site.sent
    assert node.get(address(node)).fetched == 0
    assert node.site.sent - before <= 1024 * 1024  # the look whether it has changed


def test_a_file_that_has_changed_is_another_model(node: Node) -> None:
    first = node.get(address(node))
    node.site.etags["/model.gguf"] = '"other"'
    second = node.get(address(node))
    assert second.key != first.key
    assert [file.digest for file in second.files] == [file.digest for file in first.files]
    assert len(list((node.cache.folder / "blobs").iterdir())) == 1  # the bytes are the same: they are kept once


def test_a_key_that_the_source_no_longer_has_is_refused(node: Node) -> None:
    error = failure(node, key="0" * 32)
    assert error.failure == "Corrupt"
    assert "has changed: its content is" in error.message


@pytest.mark.parametrize(
    ("status", "headers", "expected", "words"),
    [
        (401, {}, "Unauthorized", "refuses access: a credential is missing, wrong or not enough (status 401)"),
        (403, {}, "Unauthorized", "(status 403)"),
        (403, {"X_Error_Code": "GatedRepo"}, "Unauthorized", "the repository is gated"),
        (404, {}, "NotFound", "there is no such file (status 404)"),
        (410, {}, "NotFound", "(status 410)"),
        (418, {}, "Unreachable", "answers in a way that is not understood (status 418)"),
        (416, {}, "Corrupt", "is empty at its source"),
    ],
)
def test_a_refusal_stops_at_once_with_its_kind(
    node: Node, status: int, headers: dict[str, str], expected: FailureClass, words: str
) -> None:
    node.site.behaviour = lambda handler: handler.status(status, **headers) or True  # type: ignore[func-returns-value] # a short way to do and say yes
    error = failure(node)
    assert (error.failure, error.transient) == (expected, False)
    assert words in error.message
    assert len(node.site.asked) == 1


def test_a_server_without_a_program_behind_it_is_unreachable(node: Node) -> None:
    with site() as closed:
        pass
    error = failure(node, closed.address + "/x.gguf", settings=node.settings(patience=0.2))
    assert (error.failure, error.transient) == ("Unreachable", True)
    assert "cannot be reached: Connection refused" in error.message


def test_a_silent_server_is_unreachable(node: Node) -> None:
    def silent(handler: Handler) -> bool:
        handler.connection.recv(1)  # until the client gives up
        return True

    node.site.behaviour = silent
    error = failure(node, settings=node.settings(silence=0.3, patience=0.2))
    assert error.failure == "Unreachable"
    assert error.message.endswith("is silent")


def test_faults_of_the_server_are_tried_again(node: Node) -> None:
    answers = iter([500, 503, 429, 502])

    def faulty(handler: Handler) -> bool:
        status = next(answers, 0) if len(node.site.asked) > 1 else 0
        if status:
            handler.status(status)
        return bool(status)

    node.site.behaviour = faulty
    assert node.get(address(node)).fetched
    assert next(answers, None) is None


def test_a_server_that_asks_to_wait_is_obeyed(node: Node) -> None:
    times: list[float] = []

    def busy(handler: Handler) -> bool:
        times.append(time.monotonic())
        if len(times) == 2:
            handler.status(429, Retry_After="1")
        return len(times) == 2

    node.site.behaviour = busy
    node.get(address(node), settings=node.settings(connections=1, patience=0.5))
    assert times[2] - times[1] >= 1


@pytest.mark.usefixtures("small_blocks")
def test_connections_that_are_reset_are_taken_up_where_they_were(node: Node, model: Path) -> None:
    def rude(handler: Handler) -> bool:
        if len(node.site.asked) in (2, 3, 5, 8):
            handler.send_response(206)
            first = int(handler.headers["Range"].partition("=")[2].partition("-")[0])
            last = int(handler.headers["Range"].rpartition("-")[2])
            handler.send_header("Content-Range", f"bytes {first}-{last}/{model.stat().st_size}")
            handler.send_header("ETag", node.site.etag("/model.gguf"))
            handler.send_header("Content-Length", str(last - first + 1))
            handler.end_headers()
            handler.send_bytes(model, first, first + 100_000)
            handler.reset()
            return True
        return False

    node.site.behaviour = rude
    done = node.get(address(node))
    assert done.files[0].digest == "sha256:" + sha256(model)
    whole_again = 4 * 8 * 64 * 1024
    assert done.fetched < model.stat().st_size + whole_again


def lie_about_bytes(handler: Handler) -> bool:
    handler.send_response(206)
    asked = handler.headers["Range"].partition("=")[2].split("-")
    first, last, size = int(asked[0]), int(asked[1]), handler.site.files["/model.gguf"].stat().st_size
    last = min(last, size - 1)
    handler.send_header("Content-Range", f"bytes {first}-{last}/{size}")
    handler.send_header("ETag", handler.site.etag("/model.gguf"))
    handler.send_header("Content-Length", str(last - first + 1))
    handler.end_headers()
    raw = bytearray(handler.site.files["/model.gguf"].read_bytes()[first : last + 1])
    raw[-1] ^= 1
    handler.wfile.write(raw)
    return True


def test_wrong_bytes_are_corrupt_where_a_digest_is_given(node: Node, model: Path) -> None:
    node.site.behaviour = lie_about_bytes
    error = failure(node, digests={"": "sha256:" + sha256(model)})
    assert (error.failure, error.transient) == ("Corrupt", False)
    assert "arrived with the digest sha256:" in error.message
    assert node.leftovers() == []
    assert list((node.cache.folder / "blobs").iterdir()) == []


def test_wrong_bytes_once_are_fetched_again(node: Node, model: Path) -> None:
    node.site.behaviour = lambda handler: 2 <= len(node.site.asked) <= 2 and lie_about_bytes(handler)
    done = node.get(address(node), digests={"": "sha256:" + sha256(model)})
    assert done.files[0].digest == "sha256:" + sha256(model)


def test_another_range_than_was_asked_for_is_corrupt(node: Node) -> None:
    def shifted(handler: Handler) -> bool:
        handler.send_response(206)
        handler.send_header("Content-Range", "bytes 1-10/3000000")
        handler.send_header("Content-Length", "10")
        handler.end_headers()
        handler.wfile.write(bytes(10))
        return True

    node.site.behaviour = shifted
    assert failure(node).message.endswith("answers with another range than was asked for")


def test_a_file_that_ends_early_is_no_whole_model(node: Node, tmp_path: Path) -> None:
    node.site.files["/short.gguf"] = write_truncated(tmp_path / "short.gguf")
    error = failure(node, node.site.address + "/short.gguf")
    assert error.failure == "Corrupt"
    assert "short.gguf is no whole GGUF file" in error.message
    assert node.leftovers() == []


def test_another_format_is_no_model(node: Node, tmp_path: Path) -> None:
    node.site.files["/x.gguf"] = write_not_gguf(tmp_path / "x.gguf")
    error = failure(node, node.site.address + "/x.gguf")
    assert (error.failure, error.transient) == ("Corrupt", False)


@pytest.mark.usefixtures("small_blocks")
def test_a_file_that_changes_in_the_middle_is_begun_again(node: Node, tmp_path: Path, model: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(model.read_bytes()[:-100] + bytes(100))

    def changing(_: Handler) -> bool:
        if len(node.site.asked) == 4:
            node.site.files["/model.gguf"] = other
        return False

    node.site.behaviour = changing
    done = node.get(address(node), settings=node.settings(connections=1))
    assert done.files[0].digest == "sha256:" + sha256(other)


def test_a_server_without_ranges_gives_the_whole_file(node: Node, model: Path) -> None:
    node.site.ranges = False
    done = node.get(address(node))
    assert done.files[0].digest == "sha256:" + sha256(model)
    assert len(node.site.asked) == 2


def test_a_web_page_is_no_model(node: Node) -> None:
    node.site.documents["/page"] = b"<html>sign in</html>"
    node.site.headers["/page"] = {"Content-Type": "text/html; charset=utf-8"}
    error = failure(node, node.site.address + "/page")
    assert error.failure == "NotFound"
    assert "is a web page" in error.message


def test_a_token_goes_to_the_server_that_was_named_and_to_no_other(node: Node, model: Path) -> None:
    with site(files={"/cdn.gguf": model}) as other:
        node.site.authorization = "Bearer s3cret"
        node.site.redirects["/login.gguf"] = other.address + "/cdn.gguf?Signature=x"
        done = node.get(node.site.address + "/login.gguf", Credentials(token="s3cret"))
        assert done.fetched == model.stat().st_size
        assert all("Authorization" not in headers for headers in other.headers_seen)
        assert len(node.site.asked) == 1  # where it leads is remembered


def test_user_and_password_are_sent(node: Node) -> None:
    node.site.authorization = basic("ann", "s3cret")
    assert node.get(address(node), Credentials(username="ann", password="s3cret")).fetched
    error = failure(node, credentials=Credentials(username="ann", password="wr0ng"))
    assert error.failure == "Unauthorized"
    assert "wr0ng" not in error.message


def test_a_signature_that_expires_is_asked_for_again(node: Node, model: Path) -> None:
    with site(files={"/cdn.gguf": model}) as other:
        node.site.redirects["/x.gguf"] = other.address + "/cdn.gguf?Signature=x"
        other.behaviour = lambda handler: len(other.asked) == 2 and (handler.status(403) or True)  # type: ignore[func-returns-value] # a short way to do and say yes
        assert node.get(node.site.address + "/x.gguf", settings=node.settings(connections=1)).fetched
        assert len(node.site.asked) == 2


@pytest.mark.parametrize("target", ["http://127.0.0.1:1/x.gguf", "ftp://127.0.0.1/x.gguf", "file:///etc/passwd"])
def test_a_redirect_to_what_is_not_encrypted_or_not_the_web_is_not_followed(node: Node, target: str) -> None:
    node.site.redirects["/x.gguf"] = target
    settings = node.settings(patience=0.2)
    error = failure(node, node.site.address + "/x.gguf", settings=settings)
    assert error.failure == ("Unreachable" if target.startswith("http:") else "Untrusted")


def test_redirects_in_a_circle_end(node: Node) -> None:
    node.site.redirects["/x.gguf"] = "/x.gguf"
    assert failure(node, node.site.address + "/x.gguf").message.endswith("redirects more than 5 times")


def test_plain_http_is_refused_unless_it_is_allowed(node: Node) -> None:
    error = failure(node, settings=node.settings(plain_http=False))
    assert error.failure == "Untrusted"
    assert "which the settings do not allow" in error.message
    assert node.site.asked == []


def test_link_local_addresses_are_never_asked(node: Node) -> None:
    settings = node.settings(patience=0.2, silence=0.5)
    error = failure(node, "http://169.254.169.254/latest/meta-data", settings=settings)
    assert error.failure in ("Untrusted", "Unreachable")  # the latter where there is no such host at all


def test_all_parts_of_a_split_model_are_fetched(node: Node, tmp_path: Path) -> None:
    for path in write_split(tmp_path, "big", 3):
        node.site.files[f"/m/{path.name}"] = path
    done = node.get(node.site.address + "/m/big-00001-of-00003.gguf")
    assert [file.name for file in done.files] == [f"big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    folder = (node.cache.folder / done.path).parent
    assert all((folder / file.name).stat().st_size == file.bytes for file in done.files)


def test_a_missing_part_is_not_found_before_anything_is_fetched(node: Node, tmp_path: Path) -> None:
    first, *_ = write_split(tmp_path, "big", 3)
    node.site.files[f"/m/{first.name}"] = first
    assert failure(node, f"{node.site.address}/m/{first.name}").failure == "NotFound"
    assert node.leftovers() == []

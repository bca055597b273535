import base64
import io
import json

import pytest
import typing_extensions

from cli.fake import FakeApi, Shell, completion, serving
from paddock.cli.problem import ApiError

PATH = "/api/v1/namespaces/default/services/gemma:http/proxy/v1/chat/completions"


class Terminal(io.StringIO):
    """Standard input at which a person sits."""

    @typing_extensions.override
    def isatty(self) -> bool:
        return True


def test_a_prompt_is_answered(shell: Shell, api: FakeApi) -> None:
    api.answers = [completion("Because.\n")]
    assert shell.run("chat", "gemma", "Why?", "--max-tokens", "7") == (0, "Because.\n")
    body = {"model": "gemma", "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 7}
    assert api.asked == [(PATH, body, {})]


def test_json_is_the_whole_answer(shell: Shell, api: FakeApi) -> None:
    api.answers = [completion("Because.")]
    assert json.loads(shell.run("chat", "gemma", "Why?", "--json")[1]) == json.loads(completion("Because."))


def test_text_on_standard_input_is_the_prompt(
    shell: Shell, api: FakeApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api.answers = [completion("Yes.")]
    monkeypatch.setattr("sys.stdin", io.StringIO("A long\nquestion\n"))
    assert shell.run("chat", "gemma") == (0, "Yes.\n")
    assert api.asked[0][1]["messages"] == [{"role": "user", "content": "A long\nquestion"}]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert shell.run("chat", "gemma")[0] == 2
    assert "nothing to say" in capsys.readouterr().err


def test_a_conversation_remembers(shell: Shell, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.answers = [completion("One."), completion("Two.")]
    monkeypatch.setattr("sys.stdin", Terminal("first\nsecond\n\nnever sent\n"))
    status, text = shell.run("chat", "gemma", width=80)
    assert status == 0
    assert "One." in text
    assert "Two." in text
    assert [one["content"] for one in api.asked[1][1]["messages"]] == ["first", "One.", "second"]
    assert len(api.asked) == 2


def test_a_thought_is_shown_when_nothing_else_was_said(shell: Shell, api: FakeApi) -> None:
    api.answers = [json.dumps({"choices": [{"message": {"content": "", "reasoning_content": "Hm."}}]}).encode()]
    assert shell.run("chat", "gemma", "x")[1] == "Hm.\n"


@pytest.fixture
def locked(api: FakeApi) -> FakeApi:
    api.deployments = [serving(serving={"apiKeySecretRef": {"name": "keys", "key": "one"}})]
    api.answers = [completion("In.")]
    return api


def test_the_key_comes_from_the_secret(shell: Shell, locked: FakeApi) -> None:
    locked.secrets["keys"] = {"data": {"one": base64.b64encode(b"s3cret\n").decode()}}
    assert shell.run("chat", "gemma", "x") == (0, "In.\n")
    assert locked.asked[0][2] == {"X-Api-Key": "s3cret"}


def test_the_key_can_be_given(shell: Shell, locked: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    locked.answers *= 2
    assert shell.run("chat", "gemma", "x", "--api-key", "mine")[0] == 0
    monkeypatch.setenv("PADDOCK_API_KEY", "other")
    assert shell.run("chat", "gemma", "x")[0] == 0
    assert [headers["X-Api-Key"] for _, _, headers in locked.asked] == ["mine", "other"]


@pytest.mark.parametrize(
    ("failure", "data", "said"),
    [
        (ApiError(403, "Forbidden", "secrets is forbidden"), {}, "you may not read it; pass --api-key KEY"),
        (None, None, "it does not exist; pass --api-key KEY"),
        (None, {"two": ""}, "Secret keys has no key 'one'; pass --api-key KEY"),
    ],
)
def test_a_key_that_cannot_be_read(
    shell: Shell,
    locked: FakeApi,
    capsys: pytest.CaptureFixture[str],
    failure: ApiError | None,
    data: dict[str, str] | None,
    said: str,
) -> None:
    if failure:
        locked.failures["/api/v1/namespaces/default/secrets/"] = failure
    if data is not None:
        locked.secrets["keys"] = {"data": data}
    assert shell.run("chat", "gemma", "x")[0] == 1
    assert said in capsys.readouterr().err
    assert not locked.asked


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ApiError(503, "ServiceUnavailable", "no endpoints available"), "gemma cannot be reached: no endpoints"),
        (ApiError(401, "", "Invalid API Key"), "pass --api-key KEY"),
        (ApiError(404, "NotFound", 'services "gemma" not found'), "gemma has no Service"),
        (ApiError(0, "Unreachable", "https://x: refused"), "the API server does not answer"),
        (b"<html>", "no completion; see paddock logs gemma"),
        (b'{"choices": []}', "no completion; see paddock logs gemma"),
        (b'{"choices": [{"message": null}]}', "no completion; see paddock logs gemma"),
    ],
)
def test_failures(
    shell: Shell, api: FakeApi, capsys: pytest.CaptureFixture[str], answer: bytes | ApiError, said: str
) -> None:
    api.answers = [answer]
    assert shell.run("chat", "gemma", "x") == (1, "")
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("mode", "path"), [("Embedding", "/v1/embeddings"), ("Rerank", "/v1/rerank")])
def test_other_modes_say_where_to_post(
    shell: Shell, api: FakeApi, capsys: pytest.CaptureFixture[str], mode: str, path: str
) -> None:
    api.deployments = [serving(serving={"mode": mode})]
    assert shell.run("chat", "gemma", "x")[0] == 1
    assert f"post to {path} of http://gemma.default.svc:8080 instead" in capsys.readouterr().err


def test_one_that_is_not_ready_is_not_asked(shell: Shell, api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run("chat", "large", "x")[0] == 1
    assert "large is not ready (WaitingForDevice:" in capsys.readouterr().err
    assert not api.asked

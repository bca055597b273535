import pytest

from cli.fake import FakeApi, Shell, pod
from paddock.cli.problem import ApiError

LOG = "/api/v1/namespaces/default/pods/gemma-1a2b3c4d-0/log"


@pytest.fixture
def two(api: FakeApi) -> FakeApi:
    api.pods = [pod("gemma", 1), pod("gemma", 0), pod("other", 0)]
    api.logs = {"gemma-1a2b3c4d-0": "first\nsecond\n", "gemma-1a2b3c4d-1": "third\n", "other-1a2b3c4d-0": "no\n"}
    return api


def test_one_server_is_shown_as_it_is(shell: Shell, api: FakeApi) -> None:
    api.logs = {"gemma-1a2b3c4d-0": "a\tb \x1b[1mbold\nlast"}
    assert shell.run("logs", "gemma", width=20) == (0, "a\tb \x1b[1mbold\nlast\n")
    assert api.log_calls == [("gemma-1a2b3c4d-0", None, False)]


def test_several_have_their_number_in_front(shell: Shell, two: FakeApi) -> None:
    assert shell.run("logs", "gemma") == (0, "[0] first\n[0] second\n[1] third\n")
    assert [tail for _, tail, _ in two.log_calls] == [1000, 1000]


def test_one_of_several(shell: Shell, two: FakeApi) -> None:
    assert shell.run("logs", "gemma", "--replica", "1", "--tail", "5", "--previous") == (0, "third\n")
    assert two.log_calls == [("gemma-1a2b3c4d-1", 5, True)]


def test_follow(shell: Shell, two: FakeApi) -> None:
    assert two.pods
    assert shell.run("logs", "gemma", "-f", "--replica", "0") == (0, "first\nsecond\n")
    assert sorted(shell.run("logs", "gemma", "-f")[1].splitlines()) == ["[0] first", "[0] second", "[1] third"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["logs", "large"], 1, "large has no server now (WaitingForDevice:"),
        (["logs", "gemma", "--replica", "4"], 1, "gemma has no replica 4; it has: 0"),
        (["logs", "gemma", "-f", "-p"], 2, "use either --follow or --previous"),
        (["logs", "../gemma"], 1, "no ModelDeployment '../gemma' in namespace default; it has: gemma, large"),
        (["logs", "nobody"], 1, "no ModelDeployment 'nobody' in namespace default; it has: gemma, large"),
    ],
)
def test_problems(
    shell: Shell, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    assert shell.run(*arguments) == (status, "")
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [([], "has not started yet"), (["-f"], "has not started yet"), (["-p"], "has not ended before")],
)
def test_a_container_without_a_log(
    shell: Shell, api: FakeApi, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    api.failures[LOG] = ApiError(400, "BadRequest", "container is waiting to start: ContainerCreating")
    assert shell.run("logs", "gemma", *options)[0] == 1
    assert said in capsys.readouterr().err

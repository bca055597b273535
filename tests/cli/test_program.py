"""The program as it is installed: versions, definitions, names, completion, start-up, errors in one line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cli.fake import GROUP, FakeApi, Shell
from paddock import __version__
from paddock.cli.main import program_name, run
from paddock.cli.problem import ApiError

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
OPERATOR = {
    "metadata": {
        "name": "paddock-operator",
        "namespace": "paddock-system",
        "labels": {"app.kubernetes.io/version": "9.9.9"},
    }
}


def program(*arguments: str, name: str = "paddock", **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG")}
    return subprocess.run(
        [BIN / name, *arguments], env=clean | environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_versions(shell: Shell, api: FakeApi) -> None:
    assert shell.run("version") == (0, f"client: {__version__}\nserver: unknown (no operator is installed)\n")
    api.operators = [OPERATOR]
    _, text = shell.run("version")
    assert text.splitlines()[1:] == [
        "server: 9.9.9 (namespace paddock-system)",
        "Client and server differ; install paddock 9.9.9 here.",
    ]
    assert json.loads(shell.run("version", "-o", "json")[1]) == {
        "client": {"version": __version__},
        "server": {"version": "9.9.9", "namespace": "paddock-system", "name": "paddock-operator"},
    }
    api.failures["/apis/apps/v1/deployments"] = ApiError(403, "Forbidden", "forbidden")
    assert "server: unknown (you may not list" in shell.run("version")[1]
    api.failures["/apis/apps/v1/deployments"] = ApiError(0, "Unreachable", "nobody answers")
    status, text = shell.run("version")
    assert status != 0
    assert text.startswith(f"client: {__version__}\n"), "told whether there is a cluster or not"


def test_definitions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["crds"]) == 0
    found = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [one["metadata"]["name"] for one in found] == [
        "modeldeployments.paddock.dev",
        "gpus.paddock.dev",
        "placementpolicies.paddock.dev",
    ]


@pytest.mark.parametrize("program_", ["paddock", "kubectl-paddock"])
def test_both_programs_say_their_own_name(program_: str) -> None:
    found = program("get", "--help", name=program_)
    assert found.returncode == 0
    assert f"Usage: {program_name(program_)} get" in found.stdout


def test_the_client_version_is_told_without_loading_a_client() -> None:
    code = (
        "import sys; from paddock.cli.main import run; status = run(['version', '--client']); "
        "heavy = {'kubernetes', 'aiohttp', 'asyncio', 'rich.console', 'yaml', 'kopf'} & set(sys.modules); "
        "sys.exit(status or ', '.join(sorted(heavy)) or 0)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (found.stdout, found.stderr.strip()) == (f"client: {__version__}\n", "")


@pytest.mark.parametrize("shell_", ["bash", "zsh", "fish"])
def test_completion(shell_: str) -> None:
    script = program("--show-completion", shell_, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_PADDOCK_COMPLETE" in script.stdout
    plugin = program(
        "--show-completion", shell_, name="kubectl-paddock", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"
    )
    assert plugin.stdout == script.stdout
    words = {"bash": {"COMP_WORDS": "paddock dev", "COMP_CWORD": "1"}}.get(
        shell_, {"_TYPER_COMPLETE_ARGS": "paddock dev"}
    )
    found = program(_PADDOCK_COMPLETE=f"complete_{shell_}", _TYPER_COMPLETE_FISH_ACTION="get-args", **words)
    assert "devices" in found.stdout
    assert "restart" not in found.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gett"], "error: No such command 'gett'. Did you mean 'get'?; see paddock --help"),
        (["get", "--nope"], "No such option"),
        (["get", "-o", "xml"], "'--output' / '-o': 'xml' is not one of"),
        (["explain"], "Missing argument"),
        (["logs", "gemma", "--replica", "-1"], "'--replica': Input should be greater"),
        (["chat", "gemma", "x", "--max-tokens", "many"], "'--max-tokens': Input should be a valid integer"),
    ],
)
def test_wrong_usage_is_one_line(
    shell: Shell, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert shell.run(*arguments) == (2, "")
    error = capsys.readouterr().err
    assert said in error
    assert re.fullmatch(r"error: [^\n]+; see paddock [^\n]*--help\n", error)


@pytest.mark.parametrize(
    "command", [["devices"], ["get"], ["get", "gemma"], ["explain", "gemma"], ["restart", "gemma"]]
)
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ApiError(403, "Forbidden", 'User "eve" cannot list resource'), 'not allowed: User "eve" cannot list'),
        (ApiError(401, "Unauthorized", "Unauthorized"), "log in again"),
        (ApiError(0, "Unreachable", "https://1.2.3.4:6443: refused"), "is the cluster up"),
        (ApiError(404, "NotFound", "the server could not find the requested resource"), "install the chart"),
        (ApiError(500, "InternalError", "etcd\nis gone"), "the API server refused: etcd is gone"),
    ],
)
def test_refusals_are_one_line(
    shell: Shell, api: FakeApi, capsys: pytest.CaptureFixture[str], command: list[str], error: ApiError, said: str
) -> None:
    api.failures[GROUP] = error
    assert shell.run(*command) == (1, "")
    text = capsys.readouterr().err
    assert said in text
    assert re.fullmatch(r"error: [^\n]+\n", text)


def test_what_nobody_expected_is_one_line_too(
    shell: Shell, api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api.gpus = [{"no": "metadata"}]
    assert shell.run("devices")[0] == 1
    assert re.fullmatch(r"error: unexpected KeyError: [^\n]+PADDOCK_DEBUG=1[^\n]+\n", capsys.readouterr().err)
    monkeypatch.setenv("PADDOCK_DEBUG", "1")
    with pytest.raises(KeyError):
        shell.run("devices")


def test_no_kubeconfig(tmp_path: Path) -> None:
    found = program("devices", HOME=str(tmp_path))
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == (
        f"error: no kubeconfig found (looked for {tmp_path}/.kube/config); set KUBECONFIG or pass --kubeconfig FILE\n"
    )


def test_help_without_arguments() -> None:
    assert "devices" in program().stdout


def test_the_page_is_what_the_generator_writes() -> None:
    found = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate_cli.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")

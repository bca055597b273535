"""Commands that print tables: golden pictures at several widths, and the same data as JSON and YAML."""

import json
from collections.abc import Callable

import pytest
import yaml
from rich.cells import cell_len

from cli.fake import GROUP, FakeApi, Shell, condition, deployment, gpu, pod, serving
from paddock.cli.devices import show
from paddock.cli.problem import ApiError
from paddock.cli.reading import gpus_of
from paddock.cli.screen import Screen

Golden = Callable[[str, str], None]
WIDTHS = [(None, "pipe"), (60, "60"), (80, "80"), (100, "100"), (160, "160")]
COMMANDS = [
    ("devices", ["devices"]),
    ("get", ["get"]),
    ("explain", ["explain", "gemma"]),
    ("explain-waiting", ["explain", "large"]),
]


@pytest.mark.parametrize(("width", "label"), WIDTHS)
@pytest.mark.parametrize(("name", "arguments"), COMMANDS)
def test_pictures(shell: Shell, golden: Golden, name: str, arguments: list[str], width: int | None, label: str) -> None:
    status, text = shell.run(*arguments, width=width)
    assert status == 0
    golden(f"{name}-{label}.txt", text)


@pytest.mark.parametrize("width", [20, 34, 47, 60, 61, 73, 80, 99, 100, 101, 137, 200])
@pytest.mark.parametrize(("name", "arguments"), COMMANDS)
def test_no_line_is_wider_than_the_terminal(shell: Shell, name: str, arguments: list[str], width: int) -> None:
    shell.api.deployments.append(serving("a-deployment-with-a-name-of-forty-letters"))
    _, text = shell.run(*arguments, width=width)
    assert name
    assert max(cell_len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize(("name", "arguments"), [*COMMANDS, ("wide", ["devices", "-o", "wide"])])
def test_a_pipe_gets_plain_lines(shell: Shell, name: str, arguments: list[str]) -> None:
    shell.api.gpus[0]["status"]["description"] = "Bad\tname\x1b[31m red\nsecond line"
    _, text = shell.run(*arguments)
    assert name
    assert not set("\t\x1b\u2026\u2500\u2502\u2588") & set(text)
    assert all(line == line.rstrip() for line in text.splitlines())


def test_what_others_have_is_shown_where_there_is_any(shell: Shell, api: FakeApi) -> None:
    _, text = shell.run("devices")
    assert "FOREIGN" not in text
    api.gpus[0]["status"]["memory"]["foreign"] = "3072Mi"
    for width in (None, 60, 80, 100):
        _, text = shell.run("devices", width=width)
        assert "FOREIGN" in text
        assert "3 GiB" in text


def test_devices_are_in_the_order_of_node_and_index(shell: Shell, api: FakeApi) -> None:
    api.gpus.reverse()
    _, text = shell.run("devices")
    assert [line.split()[:3] for line in text.splitlines()] == [
        ["NODE", "INDEX", "DEVICE"],
        ["node1", "0", "CUDA0"],
        ["node1", "1", "CUDA1"],
        ["node1", "2", "Vulkan0"],
        ["node2", "0", "CUDA0"],
    ]


def test_a_device_that_is_not_ready_says_why_even_when_narrow(shell: Shell, api: FakeApi) -> None:
    api.gpus.append(gpu("x", ready=False, node="node3", name="CUDA0", type="Discrete", memory={}))
    for width in (None, 80, 100):
        _, text = shell.run("devices", width=width)
        assert "no: AgentSilent" in text
    assert "5 GPUs on 3 nodes, 4 ready." in text


@pytest.mark.parametrize("width", [None, 80])
def test_wide_devices_show_identities_whole(shell: Shell, width: int | None) -> None:
    _, text = shell.run("devices", "-o", "wide", width=width)
    row = next(line for line in text.splitlines() if "CUDA1" in line)
    for part in ("0000:02:00.0", "GPU-4080b7e2-91c3-4f0d-a5d8-6c2b1e47f802", "CUDA, Vulkan", "4.0 x8 of 4.0 x16"):
        assert part in row
    assert "file:///models/gemma.gguf" in shell.run("get", "-o", "wide", width=width)[1]


def test_no_gpu_at_all_tells_where_to_look(shell: Shell, api: FakeApi) -> None:
    api.gpus = []
    status, text = shell.run("devices")
    assert status == 0
    assert "node-agent" in text


def test_devices_as_json_are_the_objects(shell: Shell, api: FakeApi) -> None:
    status, text = shell.run("devices", "-o", "json", width=60)
    value = json.loads(text)
    assert status == 0
    assert value["kind"] == "List"
    assert [one["metadata"]["name"] for one in value["items"]] == sorted(one["metadata"]["name"] for one in api.gpus)
    assert all("managedFields" not in one["metadata"] for one in value["items"])
    assert shell.run("devices", "-o", "json")[1] == text
    assert yaml.safe_load(shell.run("devices", "-o", "yaml")[1]) == value


def test_get_one_as_json_is_the_object(shell: Shell, api: FakeApi) -> None:
    expected = {**api.deployments[0]}
    expected["metadata"] = {key: value for key, value in expected["metadata"].items() if key != "managedFields"}
    assert json.loads(shell.run("get", "gemma", "-o", "json")[1]) == expected
    assert yaml.safe_load(shell.run("get", "gemma", "-o", "yaml")[1]) == expected
    assert json.loads(shell.run("get", "-o", "json")[1])["kind"] == "List"


def test_get_looks_in_one_namespace_or_all(shell: Shell, api: FakeApi) -> None:
    api.deployments = [serving("mine"), serving("theirs", namespace="other")]
    assert "theirs" not in shell.run("get")[1]
    assert "mine" not in shell.run("get", "-n", "other")[1]
    _, text = shell.run("get", "-A")
    assert [line.split()[:2] for line in text.splitlines()] == [
        ["NAMESPACE", "NAME"],
        ["default", "mine"],
        ["other", "theirs"],
    ]


def test_get_with_a_name_and_all_namespaces_is_wrong_usage(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run("get", "gemma", "-A")[0] == 2
    assert "-n NAMESPACE" in capsys.readouterr().err


def test_get_of_nothing_says_so(shell: Shell, api: FakeApi) -> None:
    api.deployments = []
    assert shell.run("get") == (0, "No ModelDeployment in namespace default (-A looks in all).\n")


def test_get_works_without_the_right_to_read_gpus(shell: Shell, api: FakeApi) -> None:
    api.failures[f"{GROUP}/gpus"] = ApiError(403, "Forbidden", "gpus.paddock.dev is forbidden")
    status, text = shell.run("get", "gemma")
    assert status == 0
    assert "CUDA0   node2" in text


def test_get_shows_a_lie_of_the_server(shell: Shell, api: FakeApi) -> None:
    liar = serving("liar")
    liar["status"]["readyReplicas"] = 0
    liar["status"]["conditions"][2:4] = [
        condition("Verified", "False", "CpuFallback", "liar-0: 279 MiB of weights are in host memory"),
        condition("Available", "False", "CpuFallback", "0 of 1 replicas ready; liar-0: 279 MiB of weights"),
    ]
    api.deployments = [liar]
    _, text = shell.run("get")
    assert "no: CpuFallback" in text
    assert text.splitlines()[1].endswith("CpuFallback: liar-0: 279 MiB of weights")


def test_get_counts_further_devices(shell: Shell, api: FakeApi) -> None:
    two = serving("two", replicas=2)
    two["status"]["placements"][1]["node"] = "node1"
    two["status"]["placements"][1]["devices"][0].update(gpu="unknown", name="CUDA1")
    api.deployments = [two]
    row = shell.run("get")[1].splitlines()[1]
    assert "2/2" in row
    assert "Edition +1   node2 +1" in row


def test_a_new_deployment_has_no_status_yet(shell: Shell, api: FakeApi) -> None:
    api.deployments = [deployment("fresh")]
    assert "not looked at yet" in shell.run("get")[1]
    status, text = shell.run("explain", "fresh")
    assert status == 0
    assert "the operator has not looked at it" in text
    assert "No GPU can be judged before the need is known." in text


def test_colours_only_in_terminals_and_not_with_no_color(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus = gpus_of([*FakeApi().gpus])
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    show(Screen.of_process(), gpus)
    assert "\x1b[" not in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    show(Screen.of_process(), gpus)
    assert "\x1b[32m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    show(Screen.of_process(), gpus)
    assert "\x1b[32m" not in capsys.readouterr().out


def test_a_deployment_is_explained_by_replica(shell: Shell, api: FakeApi) -> None:
    api.deployments = [serving("two", replicas=2)]
    api.pods = [pod("two", 0), pod("two", 1)]
    _, text = shell.run("explain", "two", "--replica", "1")
    assert "two (replica 0) is on NVIDIA" in text
    assert "Replica 1" in text
    assert "asked for 1 GiB for replica 1, as if two held nothing" in text


@pytest.mark.parametrize(
    ("asked", "words"), [("Auto", "Auto"), ({"min": 4096, "preferred": 65536}, "4096 to 65536"), (8192, None)]
)
def test_a_context_that_was_chosen_is_shown(shell: Shell, api: FakeApi, asked: object, words: str | None) -> None:
    one = serving("gemma", serving={"contextLength": asked})
    one["status"]["context"] = None if words is None else {"length": 49152, "spec": "x"}
    api.deployments[:] = [one]
    wide = shell.run("get", "-o", "wide")[1]
    explained = shell.run("explain", "gemma")[1]
    recorded = json.loads(shell.run("explain", "gemma", "-o", "json")[1])["recorded"]
    if words is None:
        assert "8192" in wide
        assert "Context" not in explained
        assert recorded["context"] is None
    else:
        assert f"49152 ({words})" in wide
        assert f"49152 ({words}) tokens a request; kept until the spec changes" in explained
        assert recorded["context"]["length"] == 49152

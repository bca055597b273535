"""`paddock plan`, `fleet` and `simulate`: on the cluster's fleet and on saved ones; nothing is written."""

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from PIL import Image

from cli.fake import GROUP, GTX, PRO, FakeApi, Shell, placement, serving, waiting
from paddock.cli.fleetfile import objects_of, workload_of
from paddock.cli.picture import WIDTH
from paddock.cli.problem import ApiError
from support.builders import NOW
from support.companion_writer import write_adapter
from support.gguf_writer import Model, write_model

CARDS = """
gpus:
  - {node: box1, memory: 6Gi, bandwidth: 192, name: NVIDIA GeForce GTX 1060}
  - {count: 2, node: box2, memory: 24Gi, bandwidth: 936, name: NVIDIA RTX 3090, labels: {pool: a}}
"""
TRACE = """arrival,departure,name,memory,priority
0,100,a,20Gi,0
0,100,b,20Gi,0
10,200,c,20Gi,5
10,,d,4Gi,
"""


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def manifest(folder: Path, **spec: Any) -> str:
    body = {
        "kind": "ModelDeployment",
        "metadata": {"name": "new"},
        "spec": {"model": {"source": "file:///m/x"}, **spec},
    }
    return write(folder, "model.yaml", yaml.safe_dump(body))


def planned(shell: Shell, *arguments: str) -> list[dict[str, Any]]:
    status, text = shell.run("plan", *arguments, "-o", "json")
    assert status == 0
    found: list[dict[str, Any]] = json.loads(text)
    return found


def test_a_plan_asks_the_cluster_as_it_is_and_writes_nothing(shell: Shell, api: FakeApi, tmp_path: Path) -> None:
    (one,) = planned(shell, "-f", manifest(tmp_path), "--need", "1Gi")
    assert (one["name"], one["placed"], one["gpu"], one["node"]) == ("new", True, PRO, "node2")
    assert {each["gpu"]: each["verdict"] for each in one["devices"]}[GTX] == "Fits"
    assert not api.patches
    table = shell.run("plan", "-f", manifest(tmp_path), "--need", "1Gi")[1]
    assert "fastest of 3 devices that fit (policy Auto)" in table


def test_replicas_and_several_files_are_placed_one_after_the_other(shell: Shell, tmp_path: Path) -> None:
    fleet = write(tmp_path, "fleet.yaml", CARDS)
    first = planned(shell, "--fleet", fleet, "-f", manifest(tmp_path, replicas=3), "--need", "20Gi")
    assert [one["gpu"] for one in first] == ["box2-1-0", "box2-1-1", None]
    assert "WaitingForDevice" not in first[2]["answer"]
    assert first[2]["answer"].startswith("0 of 3 devices fit: 2 NoRoom, 1 ModelTooBig")


def test_a_plan_says_what_would_help(shell: Shell, tmp_path: Path) -> None:
    fleet = write(tmp_path, "fleet.yaml", CARDS)
    narrow = manifest(tmp_path, placement={"selector": {"gpuLabels": {"pool": "b"}}})
    (one,) = planned(shell, "--fleet", fleet, "-f", narrow, "--need", "1Gi")
    assert one["wouldHelp"] == ["without placement.selector: box2-1-0"]


def crowded(tmp_path: Path) -> str:
    """Give a saved fleet whose one large card holds a small model that could be elsewhere."""
    pod = {"pod": "default/small-1-0", "deployment": "default/small", "uid": "u", "bytes": 4 * 2**30, "since": NOW}
    objects = objects_of([Path(write(tmp_path, "cards.yaml", "gpus: [{memory: 24Gi}, {memory: 8Gi, node: other}]"))])
    objects[0]["status"]["reservations"] = [pod]
    model = serving("small")
    model["status"]["placements"] = [{**placement("small"), "podName": "small-1-0"}]
    return write(tmp_path, "fleet.yaml", yaml.safe_dump({"kind": "List", "items": [*objects, model]}))


def test_a_plan_says_whom_to_move_and_whom_to_evict(shell: Shell, tmp_path: Path) -> None:
    wanted = manifest(tmp_path, priority=1)
    (one,) = planned(shell, "--fleet", crowded(tmp_path), "-f", wanted, "--need", "22Gi")
    assert one["wouldHelp"] == [
        "with default/small (4 GiB) moved to other-1-0: new-0-0",
        "with default/small (4 GiB, priority 0) evicted: new-0-0",
        "without default/small (4 GiB): new-0-0",
    ]


def test_a_plan_names_the_policies_that_would_choose_otherwise(shell: Shell, tmp_path: Path) -> None:
    fleet = write(tmp_path, "fleet.yaml", CARDS)
    arguments = ("--fleet", fleet, "-f", manifest(tmp_path, placement={"policy": "BestFit"}), "--need", "1Gi")
    (one,) = planned(shell, *arguments)
    assert one["gpu"] == "box1-0-0"
    assert "with policy Fastest: box2-1-0" in one["otherPolicies"]
    assert "new would go elsewhere with policy Fastest: box2-1-0" in shell.run("plan", *arguments)[1]


def test_a_plan_with_the_model_s_file_knows_the_need_and_what_less_would_do(shell: Shell, tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model.gguf"))
    fleet = write(tmp_path, "fleet.yaml", "gpus: [{memory: 2Gi}]")
    wanted = manifest(tmp_path, serving={"contextLength": 8_388_608})
    (one,) = planned(shell, "--fleet", fleet, "-f", wanted, "--gguf", model)
    assert not one["placed"]
    (help_,) = [each for each in one["wouldHelp"] if each.startswith("with contextLength")]
    tokens = int(help_.removeprefix("with contextLength ").partition(":")[0])
    less = manifest(tmp_path, serving={"contextLength": tokens})
    (one,) = planned(shell, "--fleet", fleet, "-f", less, "--gguf", model)
    assert one["placed"]
    more = manifest(tmp_path, serving={"contextLength": tokens + 256})
    (one,) = planned(shell, "--fleet", fleet, "-f", more, "--gguf", model)
    assert not one["placed"]


def test_a_plan_grows_a_context_on_the_cpu_to_the_memory_that_is_set(shell: Shell, tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model.gguf", Model(layers=16, context=1_048_576)))
    fleet = write(tmp_path, "fleet.yaml", "gpus: [{memory: 2Gi}]")
    serving = {"contextLength": "Auto", "gpuLayers": 0}

    def chosen(**resources: dict[str, str]) -> int:
        asked = manifest(tmp_path, serving=serving, placement={"allowCPU": True}, server={"resources": resources})
        (one,) = planned(shell, "--fleet", fleet, "-f", asked, "--gguf", model)
        return int(one["context"].removesuffix(" (Auto)"))

    assert chosen() == 4096 < chosen(requests={"memory": "1Gi"}) < chosen(limits={"memory": "2Gi"})


def test_a_plan_counts_the_files_beside_the_model(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = Model()
    model = str(write_model(tmp_path / "model.gguf", base))
    adapter = str(write_adapter(tmp_path / "adapter.gguf", base))
    draft = str(write_model(tmp_path / "draft.gguf", Model(vocabulary=20_000, width=1024)))
    fleet = write(tmp_path, "fleet.yaml", "gpus: [{memory: 24Gi}]")
    beside = {"loraAdapters": [{"source": "file:///m/a"}], "draft": {"source": "file:///m/d"}}
    with_both = manifest(tmp_path, model={"source": "file:///m/x", **beside})
    arguments = ("--fleet", fleet, "-f", with_both, "--gguf", model)
    assert shell.run("plan", *arguments, "--lora", adapter)[0] == 2
    assert "new is served with 1 x draft model: give --draft as often" in capsys.readouterr().err
    assert shell.run("plan", *arguments, "--lora", draft, "--draft", draft)[0] == 1
    assert "the file is a model, no adapter" in capsys.readouterr().err
    assert shell.run("plan", "--fleet", fleet, "-f", with_both, "--draft", draft)[0] == 2
    assert "give --gguf, too" in capsys.readouterr().err

    (whole,) = planned(shell, *arguments, "--lora", adapter, "--draft", draft)
    bare = manifest(tmp_path)
    (alone,) = planned(shell, "--fleet", fleet, "-f", bare, "--gguf", model)
    assert whole["placed"]
    assert needed(whole) >= needed(alone) + Path(draft).stat().st_size // 2**30


def needed(one: dict[str, Any]) -> float:
    """Give the GiB that a plan speaks of."""
    found = re.search(r"needs ([0-9.]+) (GiB|MiB)", one["answer"])
    assert found is not None, one["answer"]
    return float(found[1]) / (1024 if found[2] == "MiB" else 1)


def test_explain_asks_for_the_files_beside_the_model(
    shell: Shell, api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = waiting("large", 95)
    one["spec"]["model"]["draft"] = {"source": "file:///m/d"}
    api.deployments = [one]
    model = str(write_model(tmp_path / "model.gguf"))
    assert shell.run("explain", "large", "--gguf", model)[0] == 2
    assert "give --draft as often" in capsys.readouterr().err
    assert shell.run("explain", "large", "--gguf", model, "--draft", model)[0] == 0


def test_explain_says_whom_to_move(shell: Shell, api: FakeApi) -> None:
    api.deployments = [serving("gemma"), waiting("large", 95)]
    status, text = shell.run("explain", "large", "-o", "json")
    assert status == 0
    (move, *_) = json.loads(text)["now"]["wouldHelp"]
    assert move.startswith("with default/gemma (1 GiB) moved to gpu-")
    assert move.endswith(f" it would get {PRO}")


def test_a_deployment_with_its_status_needs_no_size(shell: Shell, api: FakeApi, tmp_path: Path) -> None:
    path = write(tmp_path, "live.yaml", yaml.safe_dump(api.deployments[0]))
    assert planned(shell, "-f", path)[0]["placed"]
    path = manifest(tmp_path)
    assert shell.run("plan", "-f", path)[0] == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: Secret", "the files hold no ModelDeployment"),
        ("- 1", "holds something else than objects"),
        ("a: [", "is no YAML"),
        ("gpus: [{memory: lots}]", "'lots' is not a Kubernetes quantity"),
        ("gpus: [{count: 2}]", "memory: Field required"),
    ],
)
def test_files_that_cannot_be_read_are_told(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    path = write(tmp_path, "bad.yaml", text)
    assert shell.run("plan", "-f", path, "--need", "1Gi")[0] == 1
    assert words in capsys.readouterr().err
    assert shell.run("plan", "-f", str(tmp_path / "absent"), "--need", "1Gi")[0] == 1


def test_a_fleet_that_was_saved_gives_the_same_answer(shell: Shell, api: FakeApi, tmp_path: Path) -> None:
    api.policies = [{"metadata": {"name": "team"}, "spec": {"gpus": {"maxMemory": "8Gi"}}}]
    saved = write(tmp_path, "saved.yaml", shell.run("fleet")[1])
    arguments = ("-f", manifest(tmp_path), "--need", "1Gi")
    live = planned(shell, *arguments)
    assert live == planned(shell, "--fleet", saved, *arguments)
    assert live[0]["gpu"] == GTX


def test_who_may_not_list_gpus_is_told_what_to_do(
    shell: Shell, api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.failures[f"{GROUP}/gpus"] = ApiError(403, "Forbidden", "no")
    assert shell.run("plan", "-f", manifest(tmp_path), "--need", "1Gi")[0] == 1
    assert "use --fleet" in capsys.readouterr().err


def simulated(shell: Shell, *arguments: str) -> dict[str | None, dict[str, Any]]:
    status, text = shell.run("simulate", *arguments, "-o", "json")
    assert status == 0
    return {one["policy"]: one for one in json.loads(text)}


def test_a_workload_is_played_for_each_policy_and_more_cards_help(shell: Shell, tmp_path: Path) -> None:
    trace, fleet = write(tmp_path, "trace.csv", TRACE), write(tmp_path, "fleet.yaml", CARDS)
    more = write(tmp_path, "more.yaml", "gpus: [{memory: 24Gi, node: box3}]")
    now = simulated(shell, "--fleet", fleet, "--workload", trace)
    assert list(now) == [None, "Auto", "MostMemory", "BestFit", "Fastest", "JustFastEnough", "Spread"]
    assert (now["BestFit"]["placed"], now["BestFit"]["atOnce"], now["BestFit"]["waitedSeconds"]) == (4, 3, 90)
    then = simulated(shell, "--fleet", fleet, "--fleet", more, "--workload", trace, "--policy", "BestFit")
    assert (then["BestFit"]["atOnce"], then["BestFit"]["servedShare"]) == (4, 1.0)


def test_a_workload_in_yaml_has_outages_and_replicas(shell: Shell, tmp_path: Path) -> None:
    text = """
models:
  - {memory: 20Gi, replicas: 2, departure: 100}
outages:
  - {gpu: box2-1-0, start: 10, end: 20}
"""
    trace, fleet = write(tmp_path, "trace.yaml", text), write(tmp_path, "fleet.yaml", CARDS)
    one = simulated(shell, "--fleet", fleet, "--workload", trace, "--policy", "Auto")["Auto"]
    assert (one["jobs"], one["placed"], one["interrupted"], one["waitedSeconds"]) == (2, 2, 1, 10)


CROWDED = """arrival,departure,name,memory,priority,value
0,100,small,4Gi,0,10
1,100,low,21Gi,-5,10
2,100,large,22Gi,0,30
3,100,high,23Gi,5,50
"""


def test_moves_and_evictions_are_played_beside_each_policy(shell: Shell, tmp_path: Path) -> None:
    trace, fleet = write(tmp_path, "trace.csv", CROWDED), write(tmp_path, "fleet.yaml", CARDS)
    arguments = ("--fleet", fleet, "--workload", trace, "--policy", "Fastest")
    status, text = shell.run("simulate", *arguments, "--moves", "2", "--evictions", "4", "-o", "json")
    assert status == 0
    plain, free = json.loads(text)
    assert [plain[key] for key in ("maxMoves", "maxEvictions", "moves", "evictions", "placed")] == [0, 0, 0, 0, 2]
    # Small makes room for large, which nothing else could; low gives way to high, and nobody takes it.
    assert [free[key] for key in ("maxMoves", "maxEvictions", "moves", "evictions", "placed")] == [2, 4, 1, 1, 4]
    assert free["valueShare"] > plain["valueShare"]
    assert (plain["searches"], free["searches"] > 0, free["movedBytes"]) == (0, True, 4 * 2**30)
    table = shell.run("simulate", *arguments, "--moves", "2", "--evictions", "4")[1]
    assert "Fastest, moves and evictions" in table
    assert "EVICTIONS" in table
    assert "EVICTIONS" not in shell.run("simulate", *arguments)[1]


def test_the_value_of_a_model_is_its_memory_doubled_for_each_lower_priority(tmp_path: Path) -> None:
    trace = write(tmp_path, "trace.csv", "memory,priority,value\n1Gi,0,\n2Gi,-9,\n1Gi,7,\n1Gi,7,5\n")
    assert [one.value for one in workload_of(Path(trace), [])[0]] == [8, 8, 16, 5]


def test_the_picture_is_drawn_as_png_too(shell: Shell, tmp_path: Path) -> None:
    trace, fleet = write(tmp_path, "trace.csv", TRACE), write(tmp_path, "fleet.yaml", CARDS)
    picture = tmp_path / "out.png"
    arguments = ("simulate", "--fleet", fleet, "--workload", trace, "--policy", "Auto", "--png", str(picture))
    assert shell.run(*arguments)[0] == 0
    with Image.open(picture) as drawn:
        assert (drawn.format, drawn.width) == ("PNG", WIDTH)
        colours = {colour for _, colour in drawn.convert("RGB").getcolors(1 << 16) or ()}
    assert {(255, 255, 255), (0x4A, 0x7F, 0xB5), (0, 0, 0)} <= colours


def test_a_png_without_pillow_says_what_to_install(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    trace, fleet = write(tmp_path, "trace.csv", TRACE), write(tmp_path, "fleet.yaml", CARDS)
    path = str(tmp_path / "out.png")
    assert shell.run("simulate", "--fleet", fleet, "--workload", trace, "--policy", "Auto", "--png", path)[0] == 1
    assert "pip install 'paddock[picture]'" in capsys.readouterr().err


def test_the_cluster_s_own_fleet_is_taken_empty(shell: Shell, api: FakeApi, tmp_path: Path) -> None:
    api.gpus[3]["status"]["memory"]["free"] = "0Mi"
    trace = write(tmp_path, "trace.csv", "memory\n90Gi\n")
    assert simulated(shell, "--workload", trace, "--policy", "Auto")["Auto"]["placed"] == 1


def test_a_table_and_a_picture_show_memory_over_time(shell: Shell, tmp_path: Path) -> None:
    trace, fleet = write(tmp_path, "trace.csv", TRACE), write(tmp_path, "fleet.yaml", CARDS)
    picture = tmp_path / "out.svg"
    status, text = shell.run(
        "simulate", "--fleet", fleet, "--workload", trace, "--policy", "Auto", "--svg", str(picture)
    )
    assert status == 0
    assert "Auto" in text
    assert "█" in text or "▇" in text
    drawn = ET.fromstring(picture.read_text())  # noqa: S314 our own file
    assert len(drawn.findall("{http://www.w3.org/2000/svg}polygon")) == 3
    assert (
        shell.run("simulate", "--fleet", fleet, "--workload", trace, "--svg", str(tmp_path / "no" / "out.svg"))[0] == 1
    )


def test_a_plan_names_the_context_where_it_is_open(shell: Shell, tmp_path: Path) -> None:
    auto = manifest(tmp_path, serving={"contextLength": "Auto"})
    (one,) = planned(shell, "-f", auto, "--need", "1Gi")
    assert one["context"] == "Auto"
    head, row, *_ = shell.run("plan", "-f", auto, "--need", "1Gi")[1].splitlines()
    assert "CONTEXT" in head
    assert "Auto" in row
    assert "CONTEXT" not in shell.run("plan", "-f", manifest(tmp_path), "--need", "1Gi")[1]


def test_a_plan_with_the_model_s_file_grows_an_open_context(shell: Shell, tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "model.gguf", Model(context=16_777_216)))
    fleet = write(tmp_path, "fleet.yaml", "gpus: [{memory: 4Gi}]")
    for replicas in (1, 2):
        auto = manifest(tmp_path, serving={"contextLength": "Auto"}, replicas=replicas)
        rows = planned(shell, "--fleet", fleet, "-f", auto, "--gguf", model)
        tokens = int(rows[0]["context"].removesuffix(" (Auto)"))
        assert 4096 < tokens < 16_777_216
        assert [one["context"] for one in rows] == [f"{tokens} (Auto)"] * replicas
        assert all(one["placed"] for one in rows)
        assert f"with a context of {tokens} tokens" in rows[0]["answer"]
        for number, fits in ((tokens, True), (tokens + 256, False)):
            fixed = manifest(tmp_path, serving={"contextLength": number}, replicas=replicas)
            found = planned(shell, "--fleet", fleet, "-f", fixed, "--gguf", model)
            assert all(one["placed"] for one in found) == fits
    ranged = manifest(tmp_path, serving={"contextLength": {"min": 8192, "preferred": 12_288}})
    (one,) = planned(shell, "--fleet", fleet, "-f", ranged, "--gguf", model)
    assert one["context"].startswith("12288 (")

"""`paddock estimate`: a contract for scripts, a picture for people, and a word for everything that is wrong."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rich.cells import cell_len

from cli.fake import JSON, Shell
from estimate import table
from estimate.corpus import SHAPES, metadata, tensors
from estimate.measuring import libraries, write_sparse
from paddock.cli.estimating import Asked, _checked, answer, bytes_of, find_library, to_dict
from paddock.cli.model import Model, read_model
from paddock.cli.problem import Problem
from paddock.core.counsel import Wish
from paddock.core.estimate import Options
from paddock.core.quantity import human
from support import gguf_writer as writer

Golden = Callable[[str, str], None]
GIB = 1024**3
LIBRARIES = libraries()
WIDTHS = [(None, "pipe"), (60, "60"), (80, "80"), (100, "100")]
CASES = [
    (
        "estimate-fits",
        "llama-3.1-8b",
        ["--context", "32768", "--parallel", "4", "--budget", "12GiB"],
    ),
    ("estimate-too-big", "mixtral-8x7b", ["--context", "8192", "--budget", "24GiB", "--bandwidth", "1008"]),
    ("estimate-cards", "llama-3.1-8b", ["--context", "8192"]),
]


@pytest.fixture(autouse=True)
def _no_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PADDOCK_LLAMA_CPP", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], str]:
    """Write a model of that shape and give its path."""

    def write(name: str) -> str:
        values = {**metadata(SHAPES[name]), "general.name": name}
        return str(writer.write_gguf(tmp_path / f"{name}.gguf", values, tensors(SHAPES[name])))

    return write


@pytest.mark.parametrize(("width", "label"), WIDTHS)
@pytest.mark.parametrize(("title", "name", "arguments"), CASES)
def test_pictures(  # noqa: PLR0917 fixtures and parameters
    shell: Shell,
    golden: Golden,
    model: Callable[[str], str],
    title: str,
    name: str,
    arguments: list[str],
    width: int | None,
    label: str,
) -> None:
    status, text = shell.run("estimate", model(name), *arguments, width=width)
    assert status == 0
    golden(f"{title}-{label}.txt", text)


@pytest.mark.parametrize("width", [20, 34, 47, 60, 61, 73, 80, 99, 137, 200])
@pytest.mark.parametrize(("title", "name", "arguments"), CASES)
def test_no_line_is_wider_than_the_terminal(
    shell: Shell, model: Callable[[str], str], title: str, name: str, arguments: list[str], width: int
) -> None:
    _, text = shell.run("estimate", model(name), *arguments, width=width)
    assert title
    assert max(cell_len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize(("title", "name", "arguments"), CASES)
def test_a_pipe_gets_plain_lines(
    shell: Shell, model: Callable[[str], str], title: str, name: str, arguments: list[str]
) -> None:
    _, text = shell.run("estimate", model(name), *arguments)
    assert title
    assert not set("\t\x1b\u2026\u2588\u2591\u2592\u2593") & set(text)
    assert all(line == line.rstrip() for line in text.splitlines())


def asked(shell: Shell, path: str, *arguments: str) -> JSON:
    status, text = shell.run("estimate", path, "-o", "json", *arguments)
    assert status == 0
    found: JSON = json.loads(text)
    return found


def test_the_contract(shell: Shell, model: Callable[[str], str]) -> None:
    found = asked(shell, model("llama-3.1-8b"), "--context", "8192", "--budget", "12GiB")
    assert list(found)[:7] == ["device", "host", "overhead", "total", "confidence", "addends", "advice"]
    assert list(found["device"]) == list(found["host"]) == ["weights", "kvCache", "compute"]
    assert found["device"]["kvCache"] == 8192 * 131_072
    assert found["confidence"] in ("exact", "bound")
    assert found["source"] == "formula"
    for place in ("device", "host"):
        own = [one for one in found["addends"] if one["place"] == place]
        assert found["total"][place] == sum(one["bytes"] for one in own)
        for kind in ("weights", "kvCache", "compute"):
            assert found[place][kind] == sum(one["bytes"] for one in own if one["kind"] == kind)
    assert found["overhead"] == sum(one["bytes"] for one in found["addends"] if one["kind"] == "overhead")
    assert found["total"]["device"] == sum(found["device"].values())
    assert all(set(one) == {"name", "place", "kind", "bytes", "source"} for one in found["addends"])
    assert {one["source"] for one in found["addends"]} <= {"exact", "formula", "bound", "learned"}
    assert all({"kind", "message"} <= set(one) for one in found["advice"])


def test_yaml_is_the_same(shell: Shell, model: Callable[[str], str]) -> None:
    path = model("llama-3.1-8b")
    status, text = shell.run("estimate", path, "-o", "yaml", "--context", "8192")
    assert status == 0
    assert yaml.safe_load(text) == asked(shell, path, "--context", "8192")


def test_options_reach_the_estimate(shell: Shell, model: Callable[[str], str]) -> None:
    path = model("mixtral-8x7b")
    plain = asked(shell, path, "--context", "8192")
    assert plain["options"]["contextPerRequest"] == 8192
    slots = asked(shell, path, "--context", "8192", "--parallel", "4")
    assert slots["options"]["contextPerRequest"] == 2048
    shared = asked(shell, path, "--context", "8192", "--parallel", "4", "--kv-unified")
    assert shared["options"]["contextPerRequest"] == 8192
    small = asked(shell, path, "--context", "8192", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0")
    assert small["device"]["kvCache"] * 32 == plain["device"]["kvCache"] * 17
    wide = asked(shell, path, "--context", "8192", "--ubatch", "2048")
    assert wide["device"]["compute"] > plain["device"]["compute"]
    part = asked(shell, path, "--context", "8192", "--gpu-layers", "10")
    assert part["options"]["gpuLayers"] == 10
    assert 0 < part["device"]["weights"] < plain["device"]["weights"]
    moved = asked(shell, path, "--context", "8192", "--n-cpu-moe", "10")
    assert (
        moved["host"]["weights"] - plain["host"]["weights"] == plain["device"]["weights"] - moved["device"]["weights"]
    )
    assert moved["host"]["weights"] > 5 * GIB
    assert asked(shell, path, "--context", "8192", "--gpu-layers", "all")["device"] == plain["device"]
    cuda = asked(shell, path, "--context", "8192", "--backend", "cuda")
    assert cuda["total"]["device"] > plain["total"]["device"]
    off = asked(shell, path, "--context", "8192", "--flash-attn", "off")
    assert off["device"]["compute"] > plain["device"]["compute"]
    ranks = asked(shell, path, "--context", "8192", "--embeddings")
    assert ranks["options"]["embeddings"] is True
    pooled = asked(shell, path, "--context", "8192", "--pooling", "rank")
    assert pooled["options"]["embeddings"] is True
    assert pooled["device"]["compute"] > ranks["device"]["compute"]
    trained = asked(shell, path)
    assert trained["options"]["context"] == SHAPES["mixtral-8x7b"].context


def test_a_split_model_and_its_parts(shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = writer.write_model(tmp_path / "one.gguf")
    paths = writer.write_split(tmp_path, "big", 3)
    assert asked(shell, str(paths[0]))["device"] == asked(shell, str(whole))["device"]
    assert asked(shell, f"file://{paths[0]}")["model"]["files"] == 3
    assert shell.run("estimate", str(paths[1]))[0] == 1
    assert "name the first part" in capsys.readouterr().err
    paths[2].unlink()
    assert shell.run("estimate", str(paths[0]))[0] == 1
    assert "big-00003-of-00003.gguf: No such file" in capsys.readouterr().err


WRONG = [
    (["nothing.gguf"], 1, "No such file"),
    (["FOLDER"], 1, "is not a regular file"),
    (["/dev/null"], 1, "is not a regular file"),
    (["ZIP"], 1, "it is no GGUF file"),
    (["CUT"], 1, "the file is incomplete; download it again"),
    (["CLIP"], 1, "a projector for images"),
    (["MODEL", "--budget", "lots"], 2, "is no size; write for example 24GiB"),
    (["MODEL", "--budget", "-1"], 2, "is no size"),
    (["MODEL", "--gpu-layers", "most"], 2, "a number of layers, or all"),
    (["MODEL", "--gpu-layers", "-1"], 2, "a number of layers, or all"),
    (["MODEL", "--context", "-5"], 2, "--context"),
    (["MODEL", "--parallel", "0"], 2, "--parallel"),
    (["MODEL", "--parallel", "257"], 2, "--parallel"),
    (["MODEL", "--cache-type-k", "q9"], 2, "'q8_0'"),
    (["MODEL", "--cache-type-v", "q8_0", "--flash-attn", "off"], 2, "needs FlashAttention"),
    (["MODEL", "--cache-type-k", "q8_0"], 2, "heads that are a multiple of 32"),
    (["MODEL", "--backend", "abacus"], 2, "'generic'"),
    (["MODEL", "--measure"], 1, "name their folder by --library"),
    (["MODEL", "--measure", "--library", "FOLDER"], 1, "not measured: there is no libggml-base.so"),
    ([], 2, "Missing argument 'FILE|URL'"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), WRONG, ids=[" ".join(case[0]) or "none" for case in WRONG])
def test_what_is_wrong_is_told_in_one_line(
    shell: Shell,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    model = writer.Model()
    places = {
        "FOLDER": tmp_path,
        "ZIP": writer.write_not_gguf(tmp_path / "a.zip"),
        "CUT": writer.write_truncated(tmp_path / "cut.gguf"),
        "CLIP": writer.write_model(tmp_path / "clip.gguf", writer.Model(architecture="clip")),
        "MODEL": writer.write_model(tmp_path / "m.gguf", model),
    }
    status, text = shell.run("estimate", *(str(places.get(one, one)) for one in arguments))
    error = capsys.readouterr().err
    assert (status, text) == (code, "")
    assert message in error
    assert error.count("\n") == 1
    assert error.startswith("error: ")


@pytest.mark.parametrize("name", [*table.architectures(), *SHAPES])
def test_what_llama_server_refuses_is_refused_and_nothing_else(name: str) -> None:
    model = Model(name, table.summary(name), (), None)
    for key, found in table.measured(name).items():
        refused = isinstance(found, str) and found != "llama.cpp ends"
        try:
            answered = _checked(model, table.options(key))
        except Problem as problem:
            assert refused, f"{key}: {problem.message}"  # noqa: PT017 - to refuse nothing is right too
        else:
            assert not refused, f"{key}: {found}"
            assert answered.context > 0


def test_every_architecture_gets_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for name in table.architectures():
        write_sparse(path, *table.head(name))
        model = read_model(str(path))
        for budget in (None, 2**21, GIB):
            asked_for = Asked(Options(context=4096), Wish(budget), measure=False)
            found = to_dict(answer(model, asked_for))
            assert json.loads(json.dumps(found)) == found, name
            assert found["advice"], name


def test_a_name_from_a_file_cannot_command_the_terminal(shell: Shell, tmp_path: Path) -> None:
    values = {**writer.Model().metadata(), "general.name": "Bad\x1b[31m\nname"}
    path = writer.write_gguf(tmp_path / "m.gguf", values, writer.Model().tensors())
    for width in (None, 80):
        _, text = shell.run("estimate", str(path), width=width)
        assert "\x1b" not in text
        assert text.startswith("Bad [31m name (llama")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24GiB", 24 * GIB),
        ("24Gi", 24 * GIB),
        ("24GB", 24 * 10**9),
        ("24G", 24 * 10**9),
        (" 1.5 GiB ", GIB * 3 // 2),
        ("1024", 1024),
        ("6144MiB", 6 * GIB),
    ],
)
def test_sizes_as_people_write_them(text: str, expected: int) -> None:
    assert bytes_of(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "0", "-1GiB", "24 GiB of it", "1e99", "0x10", "24gib"])
def test_what_is_no_size(text: str) -> None:
    if text == "1e99":
        assert human(bytes_of(text))
        return
    with pytest.raises(Problem, match="is no size"):
        bytes_of(text)


def test_where_libraries_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_library(tmp_path / "given") == tmp_path / "given"
    monkeypatch.setenv("PADDOCK_LLAMA_CPP", str(tmp_path))
    assert find_library(None) == tmp_path


needs_llama = pytest.mark.skipif(LIBRARIES is None, reason="llama.cpp's libraries are not built: make build")


@needs_llama
def test_with_libraries_at_hand_llama_cpp_itself_is_asked(shell: Shell, model: Callable[[str], str]) -> None:
    path, folder = model("llama-3.1-8b"), str(LIBRARIES)
    found = asked(shell, path, "--context", "8192", "--library", folder)
    plain = asked(shell, path, "--context", "8192")
    assert found["source"] == "measured"
    assert found["confidence"] == "exact"
    assert found["device"]["weights"] == plain["device"]["weights"]
    assert found["device"]["kvCache"] == plain["device"]["kvCache"]
    for one in found["measured"]["differences"]:
        assert one["kind"] == "compute"
        assert one["expected"] or abs(one["formula"] - one["measured"]) * 100 <= one["measured"]
    assert asked(shell, path, "--context", "8192", "--library", folder, "--no-measure") == plain
    _, text = shell.run("estimate", path, "--library", folder, "--context", "8192", width=100)
    assert "counted by llama.cpp itself" in text


@needs_llama
def test_a_backend_adds_what_it_needs_to_the_measured_sums(shell: Shell, model: Callable[[str], str]) -> None:
    arguments = ("--context", "8192", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0")
    arguments = (*arguments, "--library", str(LIBRARIES), "--measure")
    path = model("llama-3.1-8b")
    plain, cuda = asked(shell, path, *arguments), asked(shell, path, *arguments, "--backend", "cuda")
    copied = 2 * 2 * 8 * 128 * 8192
    assert 0 <= cuda["device"]["compute"] - plain["device"]["compute"] - copied < plain["device"]["compute"] // 100
    assert cuda["device"]["weights"] == plain["device"]["weights"]
    assert cuda["overhead"] > plain["overhead"]


@needs_llama
def test_what_llama_cpp_cannot_load_is_estimated_and_told(shell: Shell, tmp_path: Path) -> None:
    values = {**writer.Model().metadata(), "general.name": "x"}
    path = str(writer.write_gguf(tmp_path / "m.gguf", values, writer.Model().tensors()))  # without a vocabulary
    found = asked(shell, path, "--library", str(LIBRARIES))
    assert found["source"] == "formula"
    assert "does not load the model" in found["notMeasured"]
    _, text = shell.run("estimate", path, "--library", str(LIBRARIES))
    assert "not measured: llama.cpp does not load the model" in text


def test_several_devices_are_told_one_by_one(shell: Shell, model: Callable[[str], str]) -> None:
    path = model("llama-3.2-1b")
    given = ["--no-measure", "--tensor-split", "1,1", "--override-tensor", r"blk\.0\.ffn=CPU"]
    found = json.loads(shell.run("estimate", path, *given, "-o", "json")[1])
    first, second = found["devices"]
    assert first["total"] + second["total"] == found["total"]["device"]
    assert {kind: first[kind] + second[kind] for kind in found["device"]} == found["device"]
    assert (found["options"]["shares"], found["options"]["splitMode"]) == ([1.0, 1.0], "layer")
    text = shell.run("estimate", path, "--no-measure", "--tensor-split", "1/1", "--budget", "1GiB")[1]
    assert "On the device 0: " in text
    assert "On the device 1: " in text
    assert "layers over 2 devices by 1,1" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tensor-split", "1;2"], "give a number for each device, like 3,1"),
        (["--tensor-split", "0,0"], "not all 0"),
        (["--tensor-split", "1,1", "--split-mode", "row"], "only SYCL divides by rows"),
        (["--override-tensor", "exps"], "give PATTERN=WHERE"),
        (["--override-tensor", "exps=GPU7"], "GPU7 is none of the 1 devices"),
    ],
)
def test_a_division_that_cannot_be_is_refused(
    shell: Shell, model: Callable[[str], str], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    status, _ = shell.run("estimate", model("llama-3.2-1b"), "--no-measure", *arguments)
    assert status == 2
    assert words in capsys.readouterr().err


def test_what_a_server_holds_beside_its_model_is_counted(
    shell: Shell, model: Callable[[str], str], tmp_path: Path
) -> None:
    path, small = model("llama-3.2-1b"), model("smollm2-360m")
    projector = {"general.architecture": "clip", "general.type": "mmproj", "clip.vision.embedding_length": 64}
    images = writer.write_gguf(tmp_path / "images.gguf", projector, [writer.Spec("v.patch_embd.weight", (64, 64))])
    kind = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    pair = [writer.Spec(f"blk.0.attn_q.weight.lora_{letter}", (2048, 8)) for letter in "ab"]
    tuned = writer.write_gguf(tmp_path / "tuned.gguf", kind, pair)
    plain = asked(shell, path, "--context", "4096")
    given = ["--mmproj", str(images), "--lora", str(tuned), "--draft", small]
    found = asked(shell, path, "--context", "4096", *given)
    drafting = asked(shell, small, "--context", "4096")
    for kind_ in ("weights", "kvCache"):
        more = 4 * 64 * 64 + 2 * 4 * 2048 * 8 if kind_ == "weights" else 0
        assert found["device"][kind_] - plain["device"][kind_] == drafting["device"][kind_] + more
    names = {one["name"]: one["source"] for one in found["addends"]}
    assert (names["projector"], names["adapter"], names["draft model: weights"]) == ("exact", "exact", "exact")
    assert names["computing an image or sound"] == "bound"
    assert found["options"]["drafted"] == 3
    assert found["confidence"] == "bound"


@pytest.mark.parametrize(
    ("option", "words"),
    [("--mmproj", "holds no projector"), ("--lora", "no LoRA adapter"), ("--draft", "no-such-file")],
)
def test_a_file_beside_the_model_that_is_something_else_is_told(
    shell: Shell, model: Callable[[str], str], capsys: pytest.CaptureFixture[str], option: str, words: str
) -> None:
    path = model("llama-3.2-1b")
    other = "no-such-file" if option == "--draft" else path
    status, _ = shell.run("estimate", path, "--no-measure", option, other)
    assert status != 0
    assert words in capsys.readouterr().err


def test_a_head_that_is_not_there_cannot_draft(
    shell: Shell, model: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.run("estimate", model("llama-3.2-1b"), "--no-measure", "--mtp")[0] != 0
    assert "no layers that predict further tokens" in capsys.readouterr().err

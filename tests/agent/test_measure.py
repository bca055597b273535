"""Needs that llama.cpp itself counts: right where its libraries are, and a plain word wherever something fails."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from estimate import table
from estimate.corpus import SHAPES, metadata, tensors
from estimate.measuring import libraries
from paddock.agent import measure as module
from paddock.agent.measure import MeasureError, Meter, Subject, sparse_copies
from paddock.core.estimate import Options, estimate
from paddock.core.gguf import read_gguf
from paddock.core.measured import Measurement, differences, plausible
from paddock.core.summary import summarize
from support import gguf_writer as writer

FOLDER = libraries()
needs_llama = pytest.mark.skipif(FOLDER is None, reason="llama.cpp's libraries are not built: make build")
ANSWER = {
    "devices": [{"weights": 1, "kvCache": 2, "compute": 3}],
    "host": {"weights": 4, "kvCache": 5, "compute": 6},
    "context": 256,
    "version": "0.26.0",
    "seconds": 0.5,
}
OPTIONS = Options(context=512)


def child(tmp_path: Path, body: str) -> tuple[str, ...]:
    program = tmp_path / "child.py"
    program.write_text("import json, sys, time, os\nrequest = json.loads(sys.stdin.readline())\n" + body)
    return (sys.executable, str(program))


def answering(tmp_path: Path) -> tuple[str, ...]:
    """Give a child that answers, and counts how often it was asked."""
    count = f"open({str(tmp_path / 'asked')!r}, 'a').write('x')"
    return child(tmp_path, f"{count}\nprint({json.dumps(json.dumps(ANSWER))})")


def asked(tmp_path: Path) -> int:
    file = tmp_path / "asked"
    return len(file.read_text()) if file.exists() else 0


def subject(tmp_path: Path, digest: str = "abc") -> Subject:
    return Subject(tmp_path / "m.gguf", digest)


@needs_llama
@pytest.mark.parametrize("name", ["llama-3.2-1b", "mixtral-8x7b", "qwen2.5-0.5b"])
def test_what_is_measured_is_what_the_committed_table_says(name: str, tmp_path: Path) -> None:
    assert FOLDER is not None
    path = writer.write_gguf(tmp_path / "m.gguf", metadata(SHAPES[name]), tensors(SHAPES[name]))
    meter = Meter(FOLDER)
    for key in ("slots", "unified", "q8", "plain", "embedding", "partial"):
        expected = table.measured(name)[key]
        assert not isinstance(expected, str)
        found = meter.measure(Subject(path, name), table.options(key))
        assert sums(found) == (list(expected.device), list(expected.host)), key


def sums(found: Measurement) -> tuple[list[int], list[int]]:
    device, host = ([part.weights, part.kv_cache, part.compute] for part in (found.device, found.host))
    return device, host


@needs_llama
def test_experts_of_some_layers_are_measured_on_the_host(tmp_path: Path) -> None:
    assert FOLDER is not None
    shape = SHAPES["mixtral-8x7b"]
    path = writer.write_gguf(tmp_path / "m.gguf", metadata(shape), tensors(shape))
    meter = Meter(FOLDER)
    whole, some = (meter.measure(Subject(path, "x"), Options(context=512, cpu_moe=count)) for count in (0, 10))
    experts = sum(spec.bytes for spec in tensors(shape) if "_exps." in spec.name and int(spec.name.split(".")[1]) < 10)
    assert whole.device.weights - some.device.weights == experts
    assert some.host.weights - whole.host.weights == experts
    summary = table.summary("mixtral-8x7b")
    for options in (Options(context=512, cpu_moe=10), Options(context=512, cpu_moe=25, gpu_layers=20)):
        formula, measured = estimate(summary, options), meter.measure(Subject(path, "x"), options)
        assert formula.confidence == "exact"
        assert list(differences(formula, measured)) == []


@needs_llama
def test_a_header_alone_is_enough() -> None:
    """The weights are a hole: 42 GB in some kilobytes."""
    assert FOLDER is not None
    shape = SHAPES["llama-3.1-70b"]
    head = writer.header(metadata(shape), tensors(shape))
    size = len(head) + writer.data_bytes(tensors(shape))
    with sparse_copies([("m", head, size)]) as path:
        assert path.stat().st_blocks * 512 < 10 * 1024 * 1024
        found = Meter(FOLDER).measure(Subject(path, "x"), Options(context=4096))
    summary = summarize([read_gguf(lambda offset, length: head[offset : offset + length], size)])
    assert plausible(found, estimate(summary, Options(context=4096)))
    assert found.device.weights > 40 * 10**9
    assert not path.exists()


@needs_llama
def test_a_split_model_is_measured_whole(tmp_path: Path) -> None:
    assert FOLDER is not None
    model = writer.Model(extra={"llama.vocab_size": 96})
    one = writer.write_model(tmp_path / "one.gguf", model)
    parts = writer.write_split(tmp_path, "big", 3, model)
    heads = [(path.name, path.read_bytes(), path.stat().st_size) for path in parts]
    meter = Meter(FOLDER)
    with sparse_copies(heads) as path:
        found = meter.measure(Subject(path, "split"), OPTIONS)
    assert sums(found) == sums(meter.measure(Subject(one, "whole"), OPTIONS))


@needs_llama
def test_what_llama_cpp_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    assert FOLDER is not None
    path = writer.write_model(tmp_path / "m.gguf", writer.Model(architecture="no-such-thing"))
    with pytest.raises(MeasureError, match="unknown model architecture"):
        Meter(FOLDER).measure(Subject(path, "x"), OPTIONS)
    path = writer.write_model(tmp_path / "n.gguf")
    with pytest.raises(MeasureError, match="ggml's registry has no device CUDA7"):
        Meter(FOLDER).measure(Subject(path, "y"), OPTIONS, device="CUDA7")


@needs_llama
def test_recurrent_state_is_really_allocated_but_only_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hybrid's state for 256 slots takes gigabytes in the child, which must not take the node with it."""
    assert FOLDER is not None
    path = tmp_path / "m.gguf"
    name = "mamba2-dense"
    table_head, size = table.head(name)
    path.write_bytes(table_head)
    with path.open("r+b") as file:
        file.truncate(size)
    meter = Meter(FOLDER)
    small = meter.measure(Subject(path, name), Options(context=512))
    assert small.device.kv_cache > 0
    monkeypatch.setattr(module, "_memory_limit", lambda: 48 * 1024 * 1024)
    with pytest.raises(MeasureError):
        meter.measure(Subject(path, name), Options(context=262_144, parallel=256, ubatch=4096, batch=4096))


def test_answers_are_remembered_by_header_flags_and_libraries(tmp_path: Path) -> None:
    folder = tmp_path / "libraries"
    folder.mkdir()
    (folder / "libllama.so").write_bytes(b"1")
    made = {"remembered": tmp_path / "kept", "command": answering(tmp_path)}
    first = Meter(folder, **made).measure(subject(tmp_path), OPTIONS)  # type: ignore[arg-type]
    assert (first.device.weights, first.host.compute, first.context) == (1, 6, 256)
    meter = Meter(folder, **made)  # type: ignore[arg-type]
    assert meter.measure(subject(tmp_path), OPTIONS) == first
    assert meter.measure(subject(tmp_path), replace(OPTIONS, backend="cuda")) == first
    assert asked(tmp_path) == 1
    meter.measure(subject(tmp_path, "other"), OPTIONS)
    assert asked(tmp_path) == 2
    meter.measure(subject(tmp_path), replace(OPTIONS, ubatch=256))
    assert asked(tmp_path) == 3
    (folder / "libllama.so").write_bytes(b"22")
    meter.measure(subject(tmp_path), OPTIONS)
    assert asked(tmp_path) == 4


def test_a_spoiled_memory_is_asked_anew_and_an_unwritable_one_does_no_harm(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    meter = Meter(tmp_path, remembered=kept, command=answering(tmp_path))
    meter.measure(subject(tmp_path), OPTIONS)
    (spoiled,) = kept.iterdir()
    for text in ("", "{", "[]", "{}", '{"devices": 1}', json.dumps({**ANSWER, "devices": [{"weights": "x"}]})):
        spoiled.write_text(text)
        again = Meter(tmp_path, remembered=kept, command=answering(tmp_path))
        assert again.measure(subject(tmp_path), OPTIONS).device.weights == 1
    assert asked(tmp_path) == 7
    (tmp_path / "file").write_text("")
    nowhere = Meter(tmp_path, remembered=tmp_path / "file" / "x", command=answering(tmp_path))
    assert nowhere.measure(subject(tmp_path), OPTIONS).device.weights == 1


FAILURES = [
    ("exit", "sys.stderr.write('one\\ntwo\\n'); sys.exit(3)", "exited with 3; it said: one | two"),
    ("abort", "os.kill(os.getpid(), 6)", "was ended by signal 6"),
    ("silence", "", "gave no answer"),
    ("noise", "print('hello')", "gave no answer"),
    ("list", "print('[]')", "gave no answer"),
    ("half", 'print(\'{"device": {"weights": 1}}\')', "gave no answer"),
    ("error", 'print(\'{"error": "why not"}\')', "why not"),
    ("hang", "time.sleep(60)", "did not answer within 0.5 s"),
]


@pytest.mark.parametrize(("body", "message"), [case[1:] for case in FAILURES], ids=[case[0] for case in FAILURES])
def test_a_child_that_fails(tmp_path: Path, body: str, message: str) -> None:
    meter = Meter(tmp_path, command=child(tmp_path, body), seconds=0.5 if "sleep" in body else 20)
    with pytest.raises(MeasureError) as raised:
        meter.measure(subject(tmp_path), OPTIONS)
    assert message in str(raised.value)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="cannot be started"):
        Meter(tmp_path, command=(str(tmp_path / "nothing"),)).measure(subject(tmp_path), OPTIONS)


def test_folders_without_the_right_libraries(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match=r"there is no libggml-base.so in "):
        Meter(tmp_path).measure(subject(tmp_path), OPTIONS)
    for name in ("ggml-base", "ggml", "llama"):
        (tmp_path / f"lib{name}.so").write_bytes(b"no library")
    with pytest.raises(MeasureError, match="cannot be loaded"):
        Meter(tmp_path).measure(subject(tmp_path), OPTIONS)


def test_a_copy_that_no_disk_holds_is_told() -> None:
    with pytest.raises(MeasureError, match="copy of the header"), sparse_copies([("m", b"GGUF", 2**63)]):
        pass

"""What a server's own log proves, and how lies show in it."""

import os
import re
import signal
import struct
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.api.vocabulary import Reason
from paddock.core.evidence import Evidence, Expected, ServerLog, is_loaded, judge, last_error, parse_log
from paddock.core.images import BUILD
from paddock.core.pod import Mounted, arguments
from support.builders import bound, deployment
from support.gguf_writer import Model, Typed, write_model

MIB = 1024 * 1024

# As llama-server b11434 prints it: gemma-3-270m on the second device, a sliding-window model with two caches.
GOOD = """\
0.00.487.527 I llama_prepare_model_devices: using device CUDA0 (NVIDIA GeForce RTX 4080) (0000:02:00.0) - 11000 MiB free
0.01.136.987 I load_tensors: offloading output layer to GPU
0.01.137.010 I load_tensors: offloading 17 repeating layers to GPU
0.01.137.011 I load_tensors: offloaded 19/19 layers to GPU
0.01.137.020 I load_tensors:   CPU_Mapped model buffer size =   170.00 MiB
0.01.137.021 I load_tensors:        CUDA0 model buffer size =   235.16 MiB
0.01.561.317 I llama_context:        CPU  output buffer size =     1.00 MiB
0.01.561.436 I llama_kv_cache:      CUDA0 KV buffer size =     3.00 MiB
0.01.563.058 I llama_kv_cache:      CUDA0 KV buffer size =    15.00 MiB
0.01.574.023 I sched_reserve:      CUDA0 compute buffer size =    19.02 MiB
0.01.574.035 I sched_reserve:        CPU compute buffer size =     7.03 MiB
0.01.574.045 I sched_reserve: graph: nodes = 730, splits = 2, input objects = 4, input tensors = 13
"""
CPU = """\
0.00.912.537 I load_tensors: offloaded 0/19 layers to GPU
0.00.912.545 I load_tensors:   CPU_Mapped model buffer size =   235.16 MiB
0.00.912.546 I load_tensors:   CPU_REPACK model buffer size =    12.66 MiB
0.00.938.516 I llama_context:        CPU  output buffer size =     1.00 MiB
0.00.938.678 I llama_kv_cache:        CPU KV buffer size =     1.50 MiB
0.00.939.751 I llama_kv_cache:        CPU KV buffer size =     7.50 MiB
0.00.950.084 I sched_reserve:        CPU compute buffer size =    19.28 MiB
"""
EXPECTED = Expected("CUDA0", "0000:02:00.0", "NVIDIA GeForce RTX 4080", 170 * MIB, 512 * MIB)
ON_CPU = Expected(None)
KNOWN = replace(EXPECTED, device_weights=235 * MIB)


def found(text: str, expected: Expected = EXPECTED) -> Evidence:
    return judge(parse_log(text), expected)


def lie(old: str, new: str, count: int = -1) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, count)


def test_a_good_log_is_read_whole() -> None:
    log = parse_log(GOOD)
    assert [(one.name, one.description, one.pci_id) for one in log.devices] == [
        ("CUDA0", "NVIDIA GeForce RTX 4080", "0000:02:00.0")
    ]
    assert {key: round(size / MIB, 2) for key, size in log.buffers.items()} == {
        ("CPU_Mapped", "model"): 170.0,
        ("CUDA0", "model"): 235.16,
        ("CUDA0", "KV"): 18.0,
        ("CUDA0", "compute"): 19.02,
        ("CPU", "compute"): 7.03,
    }


@pytest.mark.parametrize("expected", [EXPECTED, KNOWN])
def test_a_good_log_is_believed(expected: Expected) -> None:
    assert found(GOOD, expected) == Evidence(
        True,
        Reason.BUFFERS_ON_DEVICE,
        "NVIDIA GeForce RTX 4080 (0000:02:00.0) holds 272 MiB: model 235 MiB, KV 18 MiB, compute 19 MiB",
    )


@pytest.mark.parametrize(
    "text",
    [
        re.sub(r"(?m)^[0-9.]+ I ", "", GOOD),
        GOOD.replace("\n", "\r\n"),
        "x" * 100_000 + "\n" + GOOD,
        "\x00\xff\n" + GOOD,
        GOOD.replace("CPU_Mapped", "CUDA_Host"),
        GOOD.replace("0000:02:00.0", "0000:02:00.0".upper()),
        "\n".join(line for line in GOOD.splitlines() if "KV" not in line),
        GOOD.replace("KV buffer", "RS buffer").replace("llama_kv_cache", "llama_memory_recurrent"),
        GOOD + "0.02.0 I sched_reserve:      CUDA0 compute buffer size =    99.00 MiB\n",
    ],
    ids=["no-prefix", "crlf", "long-line", "binary", "pinned", "case", "no-cache", "recurrent", "reserved-again"],
)
def test_harmless_variants_are_believed(text: str) -> None:
    assert found(text).verified, found(text)


LIES: dict[str, tuple[str, Expected, Reason, str]] = {
    "another-card": (
        lie("0000:02:00.0", "0000:01:00.0"),
        EXPECTED,
        Reason.WRONG_DEVICE,
        (
            "NVIDIA GeForce RTX 4080 (0000:01:00.0) holds 272 MiB; the model belongs on NVIDIA GeForce RTX 4080 "
            "(0000:02:00.0)"
        ),
    ),
    "second-card": (
        GOOD.splitlines()[0].replace("CUDA0", "CUDA1").replace(":02:", ":01:") + "\n" + GOOD,
        EXPECTED,
        Reason.SECOND_DEVICE,
        (
            "the server opened NVIDIA GeForce RTX 4080 (0000:01:00.0) and NVIDIA GeForce RTX 4080 (0000:02:00.0); "
            "expected only NVIDIA GeForce RTX 4080 (0000:02:00.0)"
        ),
    ),
    "cache-on-second-card": (
        lie("CUDA0 KV", "CUDA1 KV"),
        EXPECTED,
        Reason.SECOND_DEVICE,
        "CUDA1 holds 18 MiB beside NVIDIA GeForce RTX 4080 (0000:02:00.0)",
    ),
    "remote-weights": (
        GOOD + "0.1 I load_tensors: RPC0[10.0.0.1:50052] model buffer size = 10.00 MiB\n",
        EXPECTED,
        Reason.SECOND_DEVICE,
        "RPC0[10.0.0.1:50052] holds 10 MiB beside",
    ),
    "cpu-despite-offloaded-lines": (
        CPU.replace("0/19", "19/19"),
        EXPECTED,
        Reason.CPU_FALLBACK,
        "the server opened no device, its buffers are in CPU, CPU_Mapped, CPU_REPACK; expected NVIDIA",
    ),
    "opened-but-unused": (
        GOOD.splitlines()[0] + "\n" + CPU.replace("CPU_REPACK", "CPU"),
        EXPECTED,
        Reason.CPU_FALLBACK,
        "no weights are on the device, 247 MiB are in host memory; it belongs on NVIDIA GeForce RTX 4080",
    ),
    "half-of-the-weights": (
        lie("170.00", "270.00"),
        EXPECTED,
        Reason.CPU_FALLBACK,
        "270 MiB of weights are in host memory, 170 MiB expected",
    ),
    "fewer-weights-than-known": (
        lie("235.16", "135.16"),
        KNOWN,
        Reason.CPU_FALLBACK,
        "only 135 MiB of 235 MiB of weights are on the device",
    ),
    "repacked": (
        GOOD + CPU.splitlines()[2],
        KNOWN,
        Reason.CPU_FALLBACK,
        "weights were repacked for the CPU",
    ),
    "cache-in-host-memory": (
        lie("CUDA0 KV buffer size =    15", "  CPU KV buffer size =    15"),
        EXPECTED,
        Reason.CPU_FALLBACK,
        "15 MiB of key-value cache is in host memory",
    ),
    "state-in-host-memory": (
        GOOD + "0.1 I llama_memory_recurrent: CPU RS buffer size = 2.00 MiB\n",
        EXPECTED,
        Reason.CPU_FALLBACK,
        "2 MiB of recurrent state is in host memory",
    ),
    "nothing-computed-there": (
        lie("CUDA0 compute", "CUDA_Host compute"),
        EXPECTED,
        Reason.CPU_FALLBACK,
        "no compute buffer is on the device",
    ),
    "more-than-reserved": (
        GOOD,
        replace(EXPECTED, need=256 * MIB),
        Reason.OUT_OF_MEMORY,
        "holds 272 MiB, more than the 256 MiB reserved",
    ),
    "silence": ("", EXPECTED, Reason.NO_EVIDENCE, "the server's log does not say where the model's buffers are"),
    "device-line-alone": (GOOD.splitlines()[0], EXPECTED, Reason.NO_EVIDENCE, "does not say"),
    "cut-before-the-weights": (GOOD[:340], EXPECTED, Reason.NO_EVIDENCE, "does not say"),
    "no-id-and-another-name": (
        lie("(0000:02:00.0)", "(unknown id)").replace("NVIDIA GeForce RTX 4080", "NVIDIA GeForce GTX 1060"),
        EXPECTED,
        Reason.WRONG_DEVICE,
        "NVIDIA GeForce GTX 1060 (CUDA0) holds 272 MiB",
    ),
    "gpu-used-on-the-cpu": (GOOD, ON_CPU, Reason.WRONG_DEVICE, "the server uses NVIDIA GeForce RTX 4080"),
    "gpu-buffers-on-the-cpu": (
        CPU.replace("CPU KV", "CUDA0 KV"),
        ON_CPU,
        Reason.WRONG_DEVICE,
        "the server uses CUDA0; it belongs on the CPU",
    ),
    "silence-on-the-cpu": ("", ON_CPU, Reason.NO_EVIDENCE, "does not say"),
}


@pytest.mark.parametrize("case", list(LIES))
def test_a_lie_is_found_and_told(case: str) -> None:
    text, expected, reason, message = LIES[case]
    evidence = found(text, expected)
    assert (evidence.verified, evidence.reason) == (False, reason), evidence
    assert message in evidence.message


def test_the_cpu_is_believed_where_it_is_wanted() -> None:
    assert found(CPU, ON_CPU) == Evidence(
        True, Reason.BUFFERS_ON_DEVICE, "host memory holds 276 MiB, no device was opened"
    )
    assert found(CPU.replace("CPU_REPACK", "AMX"), ON_CPU).verified


def test_a_mapped_buffer_may_span_more_than_the_embeddings_once_the_device_has_all_weights() -> None:
    assert found(lie("170.00", "400.00"), KNOWN).verified


def test_without_pci_ids_name_and_description_decide() -> None:
    assert found(lie("(0000:02:00.0)", "(unknown id)")).verified
    assert found(GOOD, replace(EXPECTED, pci_id=None)).verified
    assert not found(GOOD, replace(EXPECTED, pci_id=None, name_in_pod="CUDA1")).verified


def test_text_of_the_model_is_no_evidence() -> None:
    forged = (
        "0.00.1 I llama_model_loader: - kv 1: general.name str = x: CUDA0 model buffer size = 99.00 MiB\n"
        "0.00.1 I print_info: general.name = using device CUDA0 (NVIDIA GeForce RTX 4080) (0000:02:00.0) - 1 MiB free\n"
    )
    assert parse_log(forged) == ServerLog()


@pytest.mark.parametrize(
    ("line", "loaded"),
    [
        ("0.03.716.800 I srv  llama_server: model loaded", True),
        ("0.03.716.800 I main: model loaded", True),
        ("0.00.010.000 I llama_model_loader: - kv   3: general.name str = model loaded", False),
        ("srv  llama_server: model loaded", False),
        ("You are helpful. 0.03.716.800 I main: model loaded", False),
        ("0.03.716.805 I srv  llama_server: listening on http://127.0.0.1:8080", False),
    ],
)
def test_only_the_server_itself_says_that_all_is_loaded(line: str, loaded: bool) -> None:
    assert is_loaded(f"0.00.500.000 I something before\n{line}\n0.03.716.880 I srv  update_slots: idle\n") is loaded


@given(st.text(max_size=200))
def test_any_text_is_read_without_error(text: str) -> None:
    assert not found(text).verified
    last_error(text)


@given(st.sets(st.integers(0, 11), max_size=6))
def test_a_log_with_missing_lines_is_never_believed_without_device_weights_and_compute(missing: set[int]) -> None:
    lines = [line for number, line in enumerate(GOOD.splitlines()) if number not in missing]
    if found("\n".join(lines)).verified:
        assert not {0, 5, 9} & missing


# The last words of a server


@pytest.mark.parametrize(
    ("text", "reason", "message"),
    [
        (
            'error while handling argument "-dev": invalid device: NOPE\n\nusage:\n',
            Reason.DEVICE_NOT_VISIBLE,
            'the container sees no such GPU: error while handling argument "-dev": invalid device: NOPE',
        ),
        ("error: invalid argument: --no-mmap", Reason.SERVER_FAILED, "error: invalid argument: --no-mmap"),
        (
            (
                "0.1.2.3 E llama_model_load: error loading model: device FAKE0 does not support split buffers\n"
                "0.1.2.4 E llama_model_load_from_file_impl: failed to load model\n"
                "0.1.2.5 E srv    load_model: failed to load model, '/models/x.gguf'\n"
                "0.1.2.6 E srv  llama_server: exiting due to model loading error\n"
            ),
            Reason.SERVER_FAILED,
            "llama_model_load: error loading model: device FAKE0 does not support split buffers",
        ),
        (
            "0.1.2.6 E srv  llama_server: exiting due to model loading error\n",
            Reason.SERVER_FAILED,
            "srv  llama_server: exiting due to model loading error",
        ),
        (
            (
                "0.1.2.3 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9 MiB: cudaMalloc failed: "
                "out of memory\n0.1.2.4 E llama_model_load: error loading model: unable to allocate CUDA0 buffer\n"
            ),
            Reason.OUT_OF_MEMORY,
            ("ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9 MiB: cudaMalloc failed: out of memory"),
        ),
        (
            "0.1.2.3 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
            Reason.OUT_OF_MEMORY,
            "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
        ),
        (
            "/app/ggml-cuda.cu:103: CUDA error: an illegal memory access was encountered\n",
            Reason.SERVER_FAILED,
            "/app/ggml-cuda.cu:103: CUDA error: an illegal memory access was encountered",
        ),
        ("/app/ggml.c:1: GGML_ASSERT(x) failed", Reason.SERVER_FAILED, "/app/ggml.c:1: GGML_ASSERT(x) failed"),
        (
            "terminate called after throwing an instance of 'std::bad_alloc'",
            Reason.SERVER_FAILED,
            "terminate called after throwing an instance of 'std::bad_alloc'",
        ),
    ],
)
def test_the_error_that_ended_a_server_is_found(text: str, reason: Reason, message: str) -> None:
    assert last_error("0.1 I srv: what e is\n" + text) == (reason, message)


def test_a_log_without_errors_has_no_last_words() -> None:
    assert last_error(GOOD + CPU + "0.1 I the letter E in a line\nthe e of euler\n") is None


def test_last_words_are_bounded() -> None:
    found_error = last_error("error: " + "x" * 10_000)
    assert found_error is not None
    assert len(found_error[1]) == 400


# The real server


def test_a_real_server_on_the_cpu_is_believed_and_no_device(tmp_path: Path) -> None:
    cache = Path(os.environ.get("PADDOCK_CACHE", Path.home() / ".cache/paddock"))
    program = cache / f"llama.cpp-{BUILD}/bin/llama-server"
    if not program.exists():
        pytest.skip(f"no llama-server {BUILD} in {program.parent}: tests/cluster/build.sh makes it")
    text = log_of_real_server(program, write_model(tmp_path / "tiny.gguf", Model(extra=vocabulary())), tmp_path)
    assert found(text, ON_CPU).verified, text[-2000:]
    assert found(text).reason is Reason.CPU_FALLBACK
    log = parse_log(text)
    assert not log.devices
    assert {kind for _, kind in log.buffers} == {"model", "KV", "compute"}
    assert "CUDA0 model buffer size" in text, "the model's name was meant to be in the log"
    assert last_error(text) is None


def vocabulary(size: int = 96) -> dict[str, str | int | Typed | list[str] | list[float]]:
    """Give the least vocabulary that llama-server takes, and a name that looks like evidence."""
    types = struct.pack("<IQ", 5, size) + struct.pack(f"<{size}i", 2, 3, 3, *[1] * (size - 3))
    return {
        "general.name": "x: CUDA0 model buffer size = 99.00 MiB",
        "llama.rope.dimension_count": 16,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>"] + [chr(32 + number) for number in range(size - 3)],
        "tokenizer.ggml.scores": [0.0] * size,
        "tokenizer.ggml.token_type": Typed(9, types),
    }


def log_of_real_server(program: Path, model: Path, folder: Path) -> str:
    rendered = arguments(
        deployment(serving={"gpuLayers": 0, "contextLength": 256}),
        bound(None),
        Mounted("claim", str(folder), str(model), 0),
        1,
    )
    for name, value in (("--port", "0"), ("--host", "127.0.0.1")):
        rendered[rendered.index(name) + 1] = value
    log = folder / "log"
    with log.open("wb") as out, subprocess.Popen([program, *rendered], stdout=out, stderr=out) as process:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and process.poll() is None and b"listening on" not in log.read_bytes():
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
    return log.read_text(errors="replace")

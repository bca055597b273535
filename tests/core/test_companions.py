"""What serves beside a model: what its header says, whether it fits, what it needs, what the pod gets for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from paddock.api.fetched import Origin
from paddock.api.modeldeployment import ServingSpec
from paddock.api.source import Companion, CompanionKind, LoraAdapter, ModelSpec
from paddock.core.beside import Beside, Draft
from paddock.core.companions import Group, Present, Wanted, misfit, wanted_of
from paddock.core.division import Estimator
from paddock.core.evidence import Expected, judge, parse_log
from paddock.core.fetching import Fetcher, Order, with_fetch
from paddock.core.gguf import GgufMetadata, read_gguf
from paddock.core.header import summary_of
from paddock.core.mounting import Shelved, volume_of, with_companions
from paddock.core.need import need, options_of
from paddock.core.pod import Mounted, PodSettings, server_pod
from paddock.core.source import ClaimSource, ModelRoot
from paddock.core.summary import summarize
from support import companion_writer
from support.builders import RTX_4080, bound, deployment, record
from support.gguf_writer import Model, write_model
from support.restricted import violations

if TYPE_CHECKING:
    from pathlib import Path

    from paddock.api.report import HeaderSummary

ROOTS = [ModelRoot(path="/models", host_path="/srv/models")]
SHAPE = Model(width=128, forward=256, layers=3)


def read(path: Path) -> GgufMetadata:
    data = path.read_bytes()
    return read_gguf(lambda offset, length: data[offset : offset + length], len(data))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, GgufMetadata]:
    companion_writer.write_projector(tmp_path / "p.gguf", companion_writer.TINY)
    companion_writer.write_adapter(tmp_path / "a.gguf", SHAPE)
    write_model(tmp_path / "m.gguf", SHAPE)
    write_model(tmp_path / "d.gguf", Model(width=64))
    return {name: read(tmp_path / f"{name}.gguf") for name in "pamd"}


def summary(files: dict[str, GgufMetadata], name: str) -> HeaderSummary:
    return summary_of([files[name]])


def test_the_need_is_that_of_the_command_line(files: dict[str, GgufMetadata]) -> None:
    """`paddock estimate --mmproj --lora --draft` reads whole headers; the operator has their summaries."""
    serving = ServingSpec()
    model = summary(files, "m")
    group = Group(
        (("Projector", summary(files, "p")), ("Adapter", summary(files, "a")), ("Draft", summary(files, "d")))
    )
    beside = Beside(files["p"], (files["a"],), Draft([files["d"]], summary(files, "d")))
    for gpu, backend in ((True, "CUDA"), (True, "Vulkan"), (False, None)):
        options = replace(options_of(serving, gpu=gpu, backend=backend), drafted=3)
        expected = Estimator([files["m"]], summarize([files["m"]]), beside)(options)
        found = need(model, serving, gpu=gpu, backend=backend, beside=group)
        assert (found.device_bytes, found.host_bytes) == (expected.device_total, expected.host_total), (gpu, backend)
    plain = need(model, serving, gpu=True, backend="CUDA")
    both = need(model, serving, gpu=True, backend="CUDA", beside=group)
    drafted = both.device_weights - both.device_beside - plain.device_weights
    assert drafted == sum(one.bytes for one in (summary(files, "d").layer_tensors, summary(files, "d").output_tensors))


def test_a_file_that_cannot_serve_as_what_it_is_named_as_is_refused(
    files: dict[str, GgufMetadata], tmp_path: Path
) -> None:
    def problem(kind: CompanionKind, name: str) -> str | None:
        spec = Companion(source="file:///models/x.gguf")
        wanted = Wanted(kind, spec, ClaimSource("mine", "x.gguf"))
        return misfit(wanted.kind, summary(files, name), summary(files, "m"))

    assert [problem("Projector", "p"), problem("Adapter", "a"), problem("Draft", "d")] == [None, None, None]
    assert problem("Projector", "m") == "the file is a model, no projector"
    assert problem("Adapter", "p") == "the file is a projector, no adapter"
    assert problem("Draft", "a") == "the file is an adapter, no model"

    def adapter(shape: Model, *names: str) -> str | None:
        companion_writer.write_adapter(tmp_path / "other.gguf", shape, names or ("attn_q",))
        files["other"] = read(tmp_path / "other.gguf")
        return problem("Adapter", "other")

    assert "changes a attn_q.weight of 64 x 64" in (adapter(Model(width=64)) or "")
    assert "of the architecture qwen3" in (adapter(Model(architecture="qwen3", width=128)) or "")
    files["m"] = replace(files["m"], tensors=tuple(one for one in files["m"].tensors if "attn_q" not in one.name))
    assert "this one has no attn_q.weight" in (problem("Adapter", "a") or "")


def test_where_companions_are_is_checked_like_the_model(files: dict[str, GgufMetadata]) -> None:  # noqa: ARG001
    model = ModelSpec(
        source="file:///models/m.gguf",
        projector=Companion(source="hf://org/repo/mmproj.gguf"),
        lora_adapters=[LoraAdapter(source="pvc://mine/a.gguf"), LoraAdapter(source="file:///models/b.gguf", scale=0.5)],
        draft=Companion(source="file:///models/d.gguf"),
    )
    found = wanted_of(model, ROOTS)
    assert isinstance(found, tuple)
    assert [one.title for one in found] == ["projector", "adapter", "adapter 2", "draft model"]
    assert [one.scale for one in found] == [1.0, 1.0, 0.5, 1.0]
    refused = wanted_of(ModelSpec(source="file:///models/m.gguf", draft=Companion(source="file:///etc/d.gguf")), ROOTS)
    assert refused == "draft model: /etc/d.gguf is not below a model root (/models)"
    comma = ModelSpec(source="file:///models/m.gguf", lora_adapters=[LoraAdapter(source="file:///models/a,b.gguf")])
    assert "neither , nor :" in str(wanted_of(comma, ROOTS))


def origin(key: str, size: int) -> Origin:
    pinned = f"hf://org/{key}@0123456789abcdef/{key}.gguf"
    return Origin(source=pinned, pinned=pinned, key=key, path=f"models/{key}/{key}.gguf", files=[], bytes=size)


def test_a_pod_mounts_fetches_and_names_all_of_them(files: dict[str, GgufMetadata]) -> None:
    of = deployment(
        model={
            "source": "pvc://mine/m.gguf",
            "projector": {"source": "hf://org/p/p.gguf", "secretRef": {"name": "hub"}},
            "loraAdapters": [{"source": "pvc://mine/l/a.gguf", "scale": 0.5}, {"source": "pvc://other/a.gguf"}],
            "draft": {"source": "hf://org/d/d.gguf", "secretRef": {"name": "hub2"}, "sha256": "a" * 64},
        }
    )
    assert of.spec is not None
    wanted = wanted_of(of.spec.model, ROOTS)
    assert isinstance(wanted, tuple)
    origins = {"Projector": origin("p", 10), "Draft": origin("d", 20)}
    present = [Present(one, summary(files, one.kind[0].lower()), origins.get(one.kind)) for one in wanted]
    places = [
        Mounted("cache", "/model-cache", "/model-cache/models/p/p.gguf", 10),
        Mounted("mine", "/model-volume", "/model-volume/l/a.gguf", 1),
        Mounted("other", "/model-volume", "/model-volume/a.gguf", 1),
        Mounted("cache", "/model-cache", "/model-cache/models/d/d.gguf", 20),
    ]
    model = Mounted("mine", "/model-volume", "/model-volume/m.gguf", 100)
    pod = server_pod(of, 0, record(RTX_4080), bound(RTX_4080), model, PodSettings("r", "p"))
    shelved = [Shelved(one, place) for one, place in zip(present, places, strict=True)]
    pod = with_companions(pod, shelved, "CUDA0")
    orders = [Order(one.origin, one.wanted.spec, one.wanted.title) for one in present if one.origin is not None]
    pod = with_fetch(pod, of, orders, Fetcher("agent:1"), volume_of(pod, "cache"))

    server, hold = pod["spec"]["containers"]
    args = " ".join(server["args"])
    mounts = {one["mountPath"]: one for one in server["volumeMounts"]}
    other = next(path for path in mounts if path.startswith("/model-volume-"))
    assert "--mmproj /model-cache/models/p/p.gguf --mmproj-offload" in args
    assert f"--lora-scaled /model-volume/l/a.gguf:0.5,{other}/a.gguf:1" in args
    assert "-md /model-cache/models/d/d.gguf -devd CUDA0 -ngld all" in args
    assert all(one.get("readOnly") for path, one in mounts.items() if path.startswith("/model"))
    (fetch,) = pod["spec"]["initContainers"]
    command = fetch["command"]
    assert command[command.index("--name") + 1] == "projector"
    further = json.loads(command[command.index("--beside") + 1])
    assert further == {
        "source": origins["Draft"].pinned,
        "name": "draft model",
        "key": "d",
        "bytes": 20,
        "sha256": "a" * 64,
        "credentials": "/etc/paddock/source-1",
    }
    assert hold["command"][3:6] == ["hold", "p", "d"]
    secrets = {one["secret"]["secretName"] for one in pod["spec"]["volumes"] if "secret" in one}
    assert secrets == {"hub", "hub2"}
    assert not [one for one in hold["volumeMounts"] + server["volumeMounts"] if "secret" in one["name"]]
    cache = next(one for one in pod["spec"]["volumes"] if one["name"] == volume_of(pod, "cache"))
    assert "readOnly" not in cache["persistentVolumeClaim"]
    assert violations(pod) == []

    bare = server_pod(of, 0, record(None), bound(None), model, PodSettings("r", "p"))
    on_cpu = " ".join(with_companions(bare, shelved, None)["spec"]["containers"][0]["args"])
    assert "--no-mmproj-offload" in on_cpu
    assert "-devd none -ngld 0" in on_cpu


def log(*lines: str) -> str:
    device = "0.00.1 I llama_prepare_model_devices: using device CUDA0 (RTX) (0000:02:00.0) - 5000 MiB free"
    buffers = [
        f"0.00.1 I {name}: CUDA0 {kind} buffer size = {size} MiB"
        for name, kind, size in (
            ("load_tensors", "model", "90.00"),
            ("llama_kv_cache", "KV", "2.00"),
            ("sched_reserve", "compute", "3.00"),
        )
    ]
    return "\n".join([device, *buffers, *lines])


EXPECTED = Expected("CUDA0", "0000:02:00.0", "RTX", 0, 200 * 2**20, 110 * 2**20)


def test_a_draft_model_is_proven_with_the_model() -> None:
    assert not judge(parse_log(log()), EXPECTED).verified, "the draft's weights are missing"
    draft = "0.00.2 I load_tensors: CUDA0 model buffer size = 20.00 MiB"
    again = "0.00.2 I llama_prepare_model_devices: using device CUDA0 (RTX) (0000:02:00.0) - 4000 MiB free"
    assert judge(parse_log(log(again, draft)), EXPECTED).verified
    elsewhere = again.replace("CUDA0", "CUDA1").replace("02:00", "03:00")
    assert judge(parse_log(log(elsewhere, draft)), EXPECTED).reason == "SecondDevice"
    on_cpu = "0.00.2 I load_tensors: CPU_Mapped model buffer size = 20.00 MiB"
    assert judge(parse_log(log(on_cpu)), EXPECTED).reason == "CpuFallback"


def test_a_projector_is_proven_to_be_where_the_model_is() -> None:
    expected = replace(EXPECTED, device_weights=90 * 2**20)
    said = "0.00.2 I clip_ctx: CLIP using {} backend"
    assert judge(parse_log(log(said.format("CUDA0"))), expected).verified
    assert judge(parse_log(log(said.format("CPU"))), expected).reason == "CpuFallback"
    assert judge(parse_log(log(said.format("CUDA1"))), expected).reason == "SecondDevice"
    adapter = "0.00.2 I llama_adapter_lora_init_impl: CUDA0 LoRA buffer size = 5.00 MiB"
    assert "LoRA 5 MiB" in judge(parse_log(log(adapter)), expected).message

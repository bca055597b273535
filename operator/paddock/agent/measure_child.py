"""The short-lived process that asks llama.cpp itself what a model takes: `python -m paddock.agent.measure_child`.

Reads one line of JSON from standard input and prints one. llama.cpp loads the model with `no_alloc`: it reads the
header, makes buffers of no size and counts. That is not safe for threads, leaks, and ends the process on a failed
assertion; hence a process of its own. The structures are those of build 11434; `_defaults` refuses a library that has
others.
"""

import ctypes as c
import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_ROOM: Final = 512
"""Bytes behind each structure, so that a library with a longer one overwrites nothing."""
_CPU: Final = 0
_MOST_BUFFERS: Final = 64
_MOST_DEVICES: Final = 16
"""LLAMA_MAX_DEVICES."""
_CONNECT_SECONDS: Final = 5.0
_EXPERTS: Final = r"blk\.{}\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Tensors that --n-cpu-moe keeps on the host (common/common.h)."""
_FLASH: Final = {"auto": -1, "off": 0, "on": 1}
_POOLING: Final = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
_WARNING: Final = 3
_P = c.c_void_p


class _ModelParams(c.Structure):
    """llama_model_params (include/llama.h)."""

    _fields_ = (
        ("devices", _P),
        ("overrides", _P),
        *((name, c.c_int32) for name in ("n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")),
        *((name, _P) for name in ("tensor_split", "progress", "progress_data", "kv_overrides")),
        *((name, c.c_bool) for name in ("vocab_only", "check_tensors", "use_extra_bufts", "no_host")),
        ("no_alloc", c.c_bool),
        ("load_mtp", c.c_bool),
        ("room", c.c_char * _ROOM),
    )


class _ContextParams(c.Structure):
    """llama_context_params (include/llama.h)."""

    _fields_ = (
        *((name, c.c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq")),
        *((name, c.c_uint32) for name in ("n_outputs_max", "n_outputs_max_per_seq")),
        *((name, c.c_int32) for name in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type")),
        *((name, c.c_int32) for name in ("pooling_type", "attention_type", "flash_attn_type")),
        *((name, c.c_float) for name in ("rope_base", "rope_scale", "yarn_ext", "yarn_attn", "yarn_fast", "yarn_slow")),
        ("yarn_orig_ctx", c.c_uint32),
        ("defrag_thold", c.c_float),
        ("cb_eval", _P),
        ("cb_eval_data", _P),
        ("type_k", c.c_int32),
        ("type_v", c.c_int32),
        ("abort", _P),
        ("abort_data", _P),
        *(
            (name, c.c_bool)
            for name in ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")
        ),
        ("samplers", _P),
        ("n_samplers", c.c_size_t),
        ("ctx_other", _P),
        ("room", c.c_char * _ROOM),
    )


class _Override(c.Structure):
    """llama_model_tensor_buft_override."""

    _fields_ = (("pattern", c.c_char_p), ("buffer_type", _P))


class _Map(c.Structure):
    """std::map of libstdc++; its nodes have the key at byte 32."""

    _fields_ = (
        *((name, c.c_size_t) for name in ("compare", "color")),
        *((name, _P) for name in ("parent", "left", "right")),
        ("count", c.c_size_t),
    )


class MeasureError(Exception):
    """Nothing was measured; the text says why."""


class _Libraries:
    """llama.cpp's libraries in one folder, with what they logged."""

    def __init__(self, folder: Path) -> None:
        self.base = _load(folder, "ggml-base")
        self.ggml = _load(folder, "ggml")
        self.llama = _load(folder, "llama")
        self.said: list[str] = []
        self._logger = c.CFUNCTYPE(None, c.c_int, c.c_char_p, _P)(self._log)
        self.call(self.llama, "llama_log_set", None, _P, _P)(c.cast(self._logger, _P), None)
        by_name = self.call(self.ggml, "ggml_backend_reg_by_name", _P, c.c_char_p)
        if not by_name(b"CPU"):  # built with loadable backends
            self.call(self.ggml, "ggml_backend_load_all_from_path", None, c.c_char_p)(os.fsencode(folder))
        self.call(self.llama, "llama_backend_init", None)()

    def _log(self, level: int, text: bytes, _: int | None) -> None:
        if level >= _WARNING:
            self.said.append(text.decode(errors="replace").strip())

    def call(self, library: c.CDLL, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """Give a function of a library; raises MeasureError when it lacks it."""
        try:
            function = library[name]
        except AttributeError as error:
            raise MeasureError(f"the libraries lack {name}, so they are not of a build like b11434") from error
        function.restype = result
        function.argtypes = arguments
        return function

    def version(self) -> str:
        """Give ggml's version and commit."""
        parts = (self.call(self.base, name, c.c_char_p)() for name in ("ggml_version", "ggml_commit"))
        return " ".join(part.decode(errors="replace") for part in parts if part)

    def why(self, what: str) -> MeasureError:
        """Give an error that ends with what the libraries said."""
        said = "; ".join(line for line in self.said[-2:] if line)
        return MeasureError(f"{what}: {said}" if said else what)


def _load(folder: Path, name: str) -> c.CDLL:
    path = next((p for p in (folder / f"lib{name}.so", folder / f"lib{name}.so.0") if p.exists()), None)
    if path is None:
        raise MeasureError(f"there is no lib{name}.so in {folder}")
    try:
        return c.CDLL(str(path), mode=c.RTLD_GLOBAL)
    except OSError as error:
        raise MeasureError(f"{path} cannot be loaded: {error}") from error


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Measure one model with one set of options; raises MeasureError."""
    began = time.monotonic()
    libraries = _Libraries(Path(request["folder"]))
    model_params, context_params = _defaults(libraries)
    options = request["options"]
    devices = _devices(libraries, request.get("device"), request["memory_limit"], max(len(options["shares"]), 1))
    array = (_P * (len(devices) + 1))(*devices, None)
    model_params.devices = c.cast(array, _P)
    model_params.no_alloc, model_params.load_mode = True, 0
    _apply(options, model_params, context_params)
    kept = _divide(libraries, options, model_params, devices)
    load = libraries.call(libraries.llama, "llama_model_load_from_file", _P, c.c_char_p, _ModelParams)
    model = load(os.fsencode(request["path"]), model_params)
    if not model:
        raise libraries.why("llama.cpp does not load the model")
    context = libraries.call(libraries.llama, "llama_init_from_model", _P, _P, _ContextParams)(model, context_params)
    if not context:
        raise libraries.why("llama.cpp makes no context with these options")
    del kept
    found = _breakdown(libraries, context, devices)
    tokens = libraries.call(libraries.llama, "llama_n_ctx", c.c_uint32, _P)(context)
    seconds = time.monotonic() - began
    return {**found, "context": tokens, "version": libraries.version(), "seconds": round(seconds, 4)}


def _defaults(libraries: _Libraries) -> tuple[_ModelParams, _ContextParams]:
    """Give the libraries' default parameters after a check that their layout is the known one."""
    model: _ModelParams = libraries.call(libraries.llama, "llama_model_default_params", _ModelParams)()
    context: _ContextParams = libraries.call(libraries.llama, "llama_context_default_params", _ContextParams)()
    found = (
        *(model.n_gpu_layers, model.split_mode, model.main_gpu, model.vocab_only, model.use_extra_bufts),
        *(model.no_alloc, context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max),
        *(context.flash_attn_type, context.yarn_ext, context.type_k, context.type_v, context.offload_kqv),
        *(context.swa_full, context.kv_unified, context.n_samplers, context.ctx_other),
    )
    known = (-1, 1, 0, False, True, False, 512, 2048, 512, 1, -1, -1.0, 1, 1, True, True, False, 0, None)
    if found != known:
        raise MeasureError("the libraries lay out their parameters in an unknown way; b11434 is known")
    return model, context


def _apply(options: dict[str, Any], model: _ModelParams, context: _ContextParams) -> None:
    """Set the parameters as llama-server does."""
    layers = options["gpu_layers"]
    model.n_gpu_layers = -1 if layers is None else layers
    batch, slots = options["batch"], options["parallel"]
    if options["embeddings"]:  # tools/server/server.cpp: an input is computed at once
        batch = min(batch, options["ubatch"])
    outputs = batch if options["embeddings"] else max(1, min(batch, slots * (1 + options["drafted"])))
    context.n_ctx, context.n_batch, context.n_ubatch = options["context"], batch, options["ubatch"]
    context.n_seq_max, context.kv_unified, context.embeddings = slots, options["kv_unified"], options["embeddings"]
    context.n_outputs_max, context.n_outputs_max_per_seq = outputs, 1 + options["drafted"]
    if options["pooling"] is not None:
        context.pooling_type = _POOLING[options["pooling"]]
    context.n_rs_seq = options["drafted"] if options["mtp"] else 0
    context.type_k, context.type_v = options["type_k"], options["type_v"]
    context.flash_attn_type, context.swa_full = _FLASH[options["flash_attention"]], False


def _divide(libraries: _Libraries, options: dict[str, Any], model: _ModelParams, devices: list[int]) -> tuple[Any, ...]:
    """Set what is where; gives what must live until the model is loaded."""
    shares = (c.c_float * _MOST_DEVICES)(*options["shares"])
    if options["shares"]:
        model.tensor_split = c.cast(shares, _P)
    type_of = libraries.call(libraries.base, "ggml_backend_dev_buffer_type", _P, _P)
    on_host = type_of(_host_device(libraries))
    rows = [(_EXPERTS.format(layer).encode(), on_host) for layer in range(options["cpu_moe"])]
    for pattern, where in options["overrides"]:
        number = where[len(where.rstrip("0123456789")) :]
        rows.append((pattern.encode(), on_host if where == "CPU" else type_of(devices[int(number or 0)])))
    array = (_Override * (len(rows) + 1))(*[_Override(*row) for row in rows])
    if rows:
        model.overrides = c.cast(array, _P)
    return shares, rows, array


def _host_device(libraries: _Libraries) -> int:
    found = libraries.call(libraries.ggml, "ggml_backend_dev_by_type", _P, c.c_int)(_CPU)
    if not found:
        raise MeasureError("the libraries have no CPU backend")
    return int(found)


def _devices(libraries: _Libraries, name: str | None, limit: int, count: int) -> list[int]:
    """Give the device of that name, or plain ones: the CPU behind a loopback connection, as a GPU without extras."""
    if name is None:
        return [_plain_device(libraries, limit) for _ in range(count)]
    found = libraries.call(libraries.ggml, "ggml_backend_dev_by_name", _P, c.c_char_p)(name.encode())
    if not found:
        raise MeasureError(f"ggml's registry has no device {name}")
    return [int(found)]


def _plain_device(libraries: _Libraries, limit: int) -> int:
    registry = libraries.call(libraries.ggml, "ggml_backend_reg_by_name", _P, c.c_char_p)(b"RPC")
    if not registry:
        raise MeasureError("the libraries are built without the RPC backend, which stands for a plain device")
    address = libraries.call(libraries.base, "ggml_backend_reg_get_proc_address", _P, _P, c.c_char_p)
    start = address(registry, b"ggml_backend_rpc_start_server")
    add = address(registry, b"ggml_backend_rpc_add_server")
    if not start or not add:
        raise MeasureError("the RPC backend lacks its functions")
    # Recurrent state is really allocated here: src/llama-memory-recurrent.cpp has no branch for no_alloc.
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    devices = (_P * 1)(_host_device(libraries))
    serve = c.CFUNCTYPE(None, c.c_char_p, c.c_char_p, c.c_size_t, c.c_size_t, _P)(start)
    threading.Thread(target=serve, args=(endpoint.encode(), None, 1, 1, c.cast(devices, _P)), daemon=True).start()
    _await(endpoint)
    server = c.CFUNCTYPE(_P, c.c_char_p)(add)(endpoint.encode())
    device = libraries.call(libraries.base, "ggml_backend_reg_dev_get", _P, _P, c.c_size_t)(server, 0) if server else 0
    if not device:
        raise libraries.why("the plain device does not answer")
    return int(device)


def _await(endpoint: str) -> None:
    """Wait until the server listens."""
    host, _, port = endpoint.partition(":")
    deadline = time.monotonic() + _CONNECT_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            time.sleep(0.005)
        else:
            return
    raise MeasureError("the plain device did not start")


def _breakdown(libraries: _Libraries, context: int, devices: list[int]) -> dict[str, Any]:
    """Sum llama_get_memory_breakdown's map of buffer types by place."""
    table: _Map = libraries.call(libraries.llama, "_Z26llama_get_memory_breakdownPK13llama_context", _Map, _P)(context)
    if not 0 < table.count <= _MOST_BUFFERS:
        raise MeasureError("llama.cpp's table of buffers cannot be read")
    try:
        standard = c.CDLL("libstdc++.so.6")
    except OSError as error:
        raise MeasureError(f"libstdc++ cannot be loaded: {error}") from error
    following = libraries.call(standard, "_ZSt18_Rb_tree_incrementPSt18_Rb_tree_node_base", _P, _P)
    is_host = libraries.call(libraries.base, "ggml_backend_buft_is_host", c.c_bool, _P)
    device_of = libraries.call(libraries.base, "ggml_backend_buft_get_device", _P, _P)
    on_host, by_device = [0, 0, 0], {device: [0, 0, 0] for device in devices}
    node = table.left
    for number in range(table.count):
        buffer_type, *sizes = (c.c_size_t * 4).from_address(node + 32)
        place = on_host if is_host(buffer_type) else by_device.get(device_of(buffer_type), on_host)
        place[:] = [before + size for before, size in zip(place, sizes, strict=True)]
        if number < table.count - 1:
            node = following(node)
    kinds = ("weights", "kvCache", "compute")
    rows = [dict(zip(kinds, sizes, strict=True)) for sizes in (*by_device.values(), on_host)]
    return {"devices": rows[:-1], "host": rows[-1]}


def main() -> None:
    """Answer one request."""
    answer_to = os.dup(1)
    os.dup2(2, 1)  # libraries that print must not spoil the answer
    try:
        answer = measure(json.loads(sys.stdin.readline()))
    except MeasureError as error:
        answer = {"error": str(error)}
    os.write(answer_to, (json.dumps(answer) + "\n").encode())
    os._exit(0)  # destructors of the libraries have nothing to save, and the server's thread never ends


if __name__ == "__main__":
    main()

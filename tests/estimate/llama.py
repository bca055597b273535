"""Asks llama.cpp (build 11434) itself what a model needs: a load without allocation, in this short-lived process.

Run as `python llama.py LIBRARIES MODEL` with one JSON object of options per line on stdin; prints one JSON line each.
The device is llama.cpp's own RPC server on its CPU backend: 32-byte alignment, no extras of a backend. The layout of
the two parameter structures and of std::map is that of this build on x86-64 with libstdc++.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time
from typing import Any

BUILD = 11434
TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
FLASH = {"auto": -1, "off": 0, "on": 1}
HOST, DEVICE = "host", "device"

_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # LLM_FFN_EXPS_REGEX
_POINTER = ctypes.c_void_p
_LOGGER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_STARTED = 20.0


class ModelParameters(ctypes.Structure):
    """struct llama_model_params."""

    _fields_ = (
        ("devices", _POINTER),
        ("overrides", _POINTER),
        ("n_gpu_layers", ctypes.c_int32),
        ("split_mode", ctypes.c_int),
        ("load_mode", ctypes.c_int),
        ("lazy_mode", ctypes.c_int),
        ("main_gpu", ctypes.c_int32),
        ("tensor_split", _POINTER),
        ("progress", _POINTER),
        ("progress_data", _POINTER),
        ("kv_overrides", _POINTER),
        *((name, ctypes.c_bool) for name in ("vocab_only", "check", "extra", "no_host", "no_alloc", "load_mtp")),
    )


_WORDS = ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max", "n_outputs_max_per_seq")
_NUMBERS = ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling", "pooling", "attention", "flash_attn_type")
_FLAGS = ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")


class ContextParameters(ctypes.Structure):
    """struct llama_context_params."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in _WORDS),
        *((name, ctypes.c_int32) for name in _NUMBERS),
        *((f"rope_{number}", ctypes.c_float) for number in range(6)),
        ("yarn_orig_ctx", ctypes.c_uint32),
        ("defrag", ctypes.c_float),
        ("eval_callback", _POINTER),
        ("eval_data", _POINTER),
        ("type_k", ctypes.c_int),
        ("type_v", ctypes.c_int),
        ("abort_callback", _POINTER),
        ("abort_data", _POINTER),
        *((name, ctypes.c_bool) for name in _FLAGS),
        ("samplers", _POINTER),
        ("n_samplers", ctypes.c_size_t),
        ("other", _POINTER),
    )


class Override(ctypes.Structure):
    """struct llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", _POINTER))


class Map(ctypes.Structure):
    """Header of a std::map of libstdc++."""

    _fields_ = (
        ("compare", ctypes.c_size_t),
        ("color", ctypes.c_size_t),
        ("parent", _POINTER),
        ("first", _POINTER),
        ("last", _POINTER),
        ("count", ctypes.c_size_t),
    )


def signed(function: Any, result: Any, *arguments: Any) -> Any:
    """Give a function of a library with its types."""
    function.restype, function.argtypes = result, arguments
    return function


class Llama:
    """llama.cpp's libraries in a folder, with one device at an RPC server."""

    def __init__(self, folder: str, endpoint: str | None) -> None:
        loaded = {
            name: ctypes.CDLL(f"{folder}/lib{name}.so", mode=ctypes.RTLD_GLOBAL)
            for name in ("ggml-base", "ggml", "ggml-rpc", "llama")
        }
        self._base, self._ggml, self._rpc, self._llama = loaded.values()
        self._next = signed(
            ctypes.CDLL("libstdc++.so.6")["_ZSt18_Rb_tree_incrementPSt18_Rb_tree_node_base"], _POINTER, _POINTER
        )
        self.errors: list[str] = []
        self._logger = _LOGGER(self._log)
        signed(self._llama.llama_log_set, None, _LOGGER, _POINTER)(self._logger, None)
        signed(self._ggml.ggml_backend_load, _POINTER, ctypes.c_char_p)(f"{folder}/libggml-cpu.so".encode())
        self._llama.llama_backend_init()
        self._device = self._register(endpoint) if endpoint else None

    def _log(self, level: int, text: bytes, _: Any) -> None:
        if level >= 3:  # warnings and errors
            self.errors = [*self.errors[-3:], text.decode("utf-8", "replace").strip()]

    def serve(self, endpoint: str) -> None:
        """Serve the CPU as a device; never returns."""
        cpu = signed(self._ggml.ggml_backend_dev_by_type, _POINTER, ctypes.c_int)
        devices = (_POINTER * 1)(cpu(0))
        start = signed(
            self._rpc.ggml_backend_rpc_start_server,
            None,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_size_t,
            _POINTER,
        )
        start(endpoint.encode(), None, 1, 1, ctypes.cast(devices, _POINTER))

    def _register(self, endpoint: str) -> Any:
        registry = signed(self._rpc.ggml_backend_rpc_add_server, _POINTER, ctypes.c_char_p)(endpoint.encode())
        signed(self._ggml.ggml_backend_register, None, _POINTER)(registry)
        return signed(self._base.ggml_backend_reg_dev_get, _POINTER, _POINTER, ctypes.c_size_t)(registry, 0)

    def measure(self, path: str, options: dict[str, Any]) -> dict[str, list[int]]:
        """Give weights, cache and compute on the device and on the host, in bytes; raises RuntimeError."""
        llama = self._llama
        model_parameters = signed(llama.llama_model_default_params, ModelParameters)()
        devices = (_POINTER * 2)(self._device, None)
        model_parameters.devices = ctypes.cast(devices, _POINTER)
        model_parameters.no_alloc, model_parameters.load_mode = True, 0
        model_parameters.n_gpu_layers = options["gpuLayers"]
        overrides = self._experts_on_host(options.get("cpuMoe", 0))
        model_parameters.overrides = ctypes.cast(overrides, _POINTER)
        load = signed(llama.llama_model_load_from_file, _POINTER, ctypes.c_char_p, ModelParameters)
        model = load(path.encode(), model_parameters)
        if not model:
            raise RuntimeError(" | ".join(self.errors))
        create = signed(llama.llama_init_from_model, _POINTER, _POINTER, ContextParameters)
        context = create(model, self._context_parameters(options))
        try:
            if not context:
                raise RuntimeError(" | ".join(self.errors))
            return self._breakdown(context)
        finally:
            if context:
                signed(llama.llama_free, None, _POINTER)(context)
            signed(llama.llama_model_free, None, _POINTER)(model)

    def _experts_on_host(self, layers: int) -> Any:
        """Give what common/arg.cpp makes of --n-cpu-moe; ends with an empty one."""
        host = signed(self._base.ggml_backend_cpu_buffer_type, _POINTER)()
        patterns = [rf"blk\.{layer}{_EXPERTS}".encode() for layer in range(layers)]
        return (Override * (layers + 1))(*(Override(pattern, host) for pattern in patterns))

    def _context_parameters(self, options: dict[str, Any]) -> ContextParameters:
        parameters: ContextParameters = signed(self._llama.llama_context_default_params, ContextParameters)()
        batch = options["ubatch"] if options["embeddings"] else options["batch"]
        parameters.n_ctx, parameters.n_seq_max = options["context"], options["parallel"]
        parameters.n_batch, parameters.n_ubatch = batch, options["ubatch"]
        parameters.n_outputs_max = batch if options["embeddings"] else min(batch, options["parallel"])
        parameters.n_outputs_max_per_seq = 1
        parameters.type_k, parameters.type_v = TYPES[options["cacheTypeK"]], TYPES[options["cacheTypeV"]]
        parameters.flash_attn_type = FLASH[options["flashAttention"]]
        parameters.kv_unified, parameters.swa_full = options["unified"], False
        parameters.embeddings = options["embeddings"]
        parameters.pooling = options.get("pooling", -1)
        return parameters

    def _breakdown(self, context: Any) -> dict[str, list[int]]:
        """Walk the map from buffer type to (weights, cache, compute)."""
        found = signed(self._llama["_Z26llama_get_memory_breakdownPK13llama_context"], Map, _POINTER)(context)
        owner = signed(self._base.ggml_backend_buft_get_device, _POINTER, _POINTER)
        sums = {DEVICE: [0, 0, 0], HOST: [0, 0, 0]}
        node = found.first
        for position in range(found.count):
            entry = ctypes.cast(node + 32, ctypes.POINTER(ctypes.c_size_t))
            side = DEVICE if owner(entry[0]) == self._device else HOST  # the CPU's repacked weights too
            sums[side] = [total + entry[index + 1] for index, total in enumerate(sums[side])]
            if position < found.count - 1:
                node = self._next(node)
        return sums


def free_port() -> int:
    """Give a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_port(port: int) -> None:
    """Wait until the server listens; /proc is read because a connection would be served as a client."""
    wanted, end = f"0100007F:{port:04X} 00000000:0000 0A", time.monotonic() + _STARTED
    while time.monotonic() < end:
        with open("/proc/net/tcp") as sockets:  # noqa: PTH123 - a small program of its own
            if wanted in sockets.read():
                return
        time.sleep(0.01)
    raise RuntimeError("the RPC server does not listen")


def main() -> int:
    """Start the server as a child, measure what stdin asks for, end the child."""
    folder, path = sys.argv[1:]
    port = free_port()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: llama.cpp aborts on some models
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        Llama(folder, None).serve(f"127.0.0.1:{port}")
        os._exit(1)
    try:
        await_port(port)
        llama = Llama(folder, f"127.0.0.1:{port}")
        for line in sys.stdin:
            try:
                answer: dict[str, Any] = dict(llama.measure(path, json.loads(line)))
            except RuntimeError as error:
                answer = {"error": str(error)}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())

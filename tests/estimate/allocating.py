"""What llama.cpp (build 11434) really allocates on several devices: `python allocating.py LIBRARIES MODEL`.

Reads one JSON object of options on stdin and prints one JSON line. The devices are those of one RPC server on the CPU,
which writes each allocation and each release down (GGML_RPC_DEBUG); what lives is added up by device. This serves
where llama.cpp's own count does not: what is divided within tensors is counted whole there.
"""

import ctypes
import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from estimate.llama import FLASH, TYPES, ContextParameters, Llama, Map, ModelParameters, await_port, free_port, signed

_POINTER = ctypes.c_void_p
MODES: Final = {"layer": 1, "row": 2, "tensor": 3}
MTP: Final = 1
_TAKEN: Final = re.compile(r"alloc_buffer\] device: (\d+), size: (\d+) -> remote_ptr: (\w+)")
_GIVEN: Final = re.compile(r"free_buffer\] remote_ptr: (\w+)")


class Batch(ctypes.Structure):
    """struct llama_batch."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        *((name, _POINTER) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")),
    )


class Serving(Llama):
    """The server's side."""

    def _log(self, level: int, text: bytes, _: Any) -> None:  # noqa: ARG002 all are told
        os.write(2, text)

    def serve_many(self, endpoint: str, count: int) -> None:
        """Serve the CPU as so many devices; never returns."""
        cpu = signed(self._ggml.ggml_backend_dev_by_type, _POINTER, ctypes.c_int)(0)
        devices = (_POINTER * count)(*[cpu] * count)
        kinds = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, _POINTER)
        start = signed(self._rpc.ggml_backend_rpc_start_server, None, *kinds)
        start(endpoint.encode(), None, 1, count, ctypes.cast(devices, _POINTER))


class Devices:
    """What lives on each device, by the server's notes."""

    def __init__(self, notes: Path, count: int) -> None:
        self._notes, self._count = notes, count

    def live(self) -> list[int]:
        """Add up."""
        held: dict[str, tuple[int, int]] = {}
        for line in self._notes.read_text(errors="replace").splitlines():
            if taken := _TAKEN.search(line):
                held[taken[3]] = int(taken[1]), int(taken[2])
            elif given := _GIVEN.search(line):
                held.pop(given[1], None)
        sums = [0] * self._count
        for device, size in held.values():
            sums[device] += size
        return sums


class Loading(Llama):
    """llama.cpp with the devices of an RPC server."""

    def __init__(self, folder: str, endpoint: str, count: int) -> None:
        super().__init__(folder, None)
        registry = signed(self._rpc.ggml_backend_rpc_add_server, _POINTER, ctypes.c_char_p)(endpoint.encode())
        signed(self._ggml.ggml_backend_register, None, _POINTER)(registry)
        get = signed(self._base.ggml_backend_reg_dev_get, _POINTER, _POINTER, ctypes.c_size_t)
        self._devices = [get(registry, number) for number in range(count)]

    def run(self, path: str, options: dict[str, Any], devices: Devices) -> dict[str, Any]:
        """Load, make a context, take adapters and compute a prompt; gives what lives after each step."""
        found: dict[str, Any] = {}
        model = self._model(path, options)
        found["weights"] = devices.live()
        context = self._context(model, options, options.get("kind", 0))
        found["context"], found["compute"] = devices.live(), self._compute(context)
        if options.get("head"):
            head = self._context(model, options, MTP)
            found["head"], found["head compute"] = devices.live(), self._compute(head)
        names = options.get("adapters", [])
        if names:
            adapters = (_POINTER * len(names))(*[self._adapter(model, name) for name in names])
            found["adapters"] = devices.live()
            kinds = (_POINTER, _POINTER, ctypes.c_size_t, _POINTER)
            scales = (ctypes.c_float * len(names))(*[1.0] * len(names))
            use = signed(self._llama.llama_set_adapters_lora, ctypes.c_int32, *kinds)
            use(context, ctypes.cast(adapters, _POINTER), len(names), ctypes.cast(scales, _POINTER))
        if options.get("prompt"):
            tokens = (ctypes.c_int32 * options["prompt"])(*[1] * options["prompt"])
            batch = Batch(options["prompt"], ctypes.cast(tokens, _POINTER))
            code = signed(self._llama.llama_decode, ctypes.c_int32, _POINTER, Batch)(context, batch)
            if code:
                raise RuntimeError(f"llama_decode gives {code}: {' | '.join(self.errors)}")
            found["computed"], found["compute then"] = devices.live(), self._compute(context)
        return found

    def _model(self, path: str, options: dict[str, Any]) -> Any:
        parameters = signed(self._llama.llama_model_default_params, ModelParameters)()
        array = (_POINTER * (len(self._devices) + 1))(*self._devices, None)
        parameters.devices = ctypes.cast(array, _POINTER)
        shares = (ctypes.c_float * 16)(*options["shares"])
        parameters.tensor_split = ctypes.cast(shares, _POINTER)
        parameters.split_mode, parameters.load_mode = MODES[options["mode"]], 0
        overrides = self._overrides(options.get("overrides", []))
        parameters.overrides = ctypes.cast(overrides, _POINTER)
        parameters.n_gpu_layers, parameters.load_mtp = options.get("layers", -1), bool(options.get("head"))
        self._kept = shares, overrides  # the model keeps the pointers
        load = signed(self._llama.llama_model_load_from_file, _POINTER, ctypes.c_char_p, ModelParameters)
        model = load(path.encode(), parameters)
        if not model:
            raise RuntimeError(" | ".join(self.errors))
        return model

    def _overrides(self, told: list[list[str]]) -> Any:
        """Give the table of llama_model_tensor_buft_override: a pattern and a buffer's type, ended by a null."""
        of_cpu = signed(self._ggml.ggml_backend_dev_by_type, _POINTER, ctypes.c_int)(0)
        kind = signed(self._base.ggml_backend_dev_buffer_type, _POINTER, _POINTER)
        rows: list[Any] = []
        for pattern, where in told:
            device = of_cpu if where == "CPU" else self._devices[int(where[-1])]
            rows += [ctypes.cast(ctypes.c_char_p(pattern.encode()), _POINTER), kind(device)]
        return (_POINTER * (len(rows) + 2))(*rows, None, None)

    def _context(self, model: Any, options: dict[str, Any], kind: int) -> Any:
        parameters = signed(self._llama.llama_context_default_params, ContextParameters)()
        parameters.n_ctx, parameters.n_seq_max = options["context"], options["parallel"]
        parameters.n_batch, parameters.n_ubatch = options["batch"], options["ubatch"]
        parameters.n_outputs_max = min(options["batch"], options["parallel"] * (1 + options.get("drafted", 0)))
        parameters.n_outputs_max_per_seq, parameters.ctx_type = 1 + options.get("drafted", 0), kind
        parameters.type_k, parameters.type_v = TYPES[options["typeK"]], TYPES[options["typeV"]]
        parameters.flash_attn_type, parameters.kv_unified = FLASH[options["flash"]], options["unified"]
        parameters.swa_full = False
        create = signed(self._llama.llama_init_from_model, _POINTER, _POINTER, ContextParameters)
        context = create(model, parameters)
        if not context:
            raise RuntimeError(" | ".join(self.errors))
        return context

    def _adapter(self, model: Any, name: str) -> Any:
        found = signed(self._llama.llama_adapter_lora_init, _POINTER, _POINTER, ctypes.c_char_p)(model, name.encode())
        if not found:
            raise RuntimeError(" | ".join(self.errors))
        return found

    def _compute(self, context: Any) -> dict[str, int]:
        """Give the compute buffers as llama.cpp itself says them, by the name of their kind."""
        found = signed(self._llama["_Z26llama_get_memory_breakdownPK13llama_context"], Map, _POINTER)(context)
        name = signed(self._base.ggml_backend_buft_name, ctypes.c_char_p, _POINTER)
        node, sums = found.first, {}
        for position in range(found.count):
            entry = ctypes.cast(node + 32, ctypes.POINTER(ctypes.c_size_t))
            sums[name(entry[0]).decode()] = int(entry[3])
            if position < found.count - 1:
                node = self._next(node)
        return sums


def main() -> int:
    """Start the server as a child, do what stdin asks for, end the child."""
    folder, path = sys.argv[1:]
    options = json.loads(sys.stdin.readline())
    count, port = len(options["shares"]), free_port()
    with tempfile.TemporaryDirectory() as scratch:
        notes = Path(scratch) / "notes"
        notes.touch()
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            os.dup2(os.open(notes, os.O_WRONLY | os.O_APPEND), 2)
            os.dup2(2, 1)
            Serving(folder, None).serve_many(f"127.0.0.1:{port}", count)
            os._exit(1)
        try:
            await_port(port)
            loading = Loading(folder, f"127.0.0.1:{port}", count)
            try:
                answer = loading.run(path, options, Devices(notes, count))
            except RuntimeError as error:
                answer = {"error": str(error)}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

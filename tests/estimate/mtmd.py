"""Asks llama.cpp's libmtmd (build 11434) what a projector takes: `python mtmd.py LIBRARIES FILE FLASH`, a process each.

FLASH is llama.cpp's number: -1 auto, 0 off, 1 on. The layout of the structures is that of this build.
"""

import ctypes
import sys
from typing import Any

_POINTER = ctypes.c_void_p


class Parameters(ctypes.Structure):
    """struct mtmd_context_params."""

    _fields_ = (
        ("use_gpu", ctypes.c_bool),
        ("device", _POINTER),
        ("print_timings", ctypes.c_bool),
        ("n_threads", ctypes.c_int),
        ("image_marker", ctypes.c_char_p),
        ("media_marker", ctypes.c_char_p),
        ("flash_attn_type", ctypes.c_int),
        ("warmup", ctypes.c_bool),
        ("image_min_tokens", ctypes.c_int),
        ("image_max_tokens", ctypes.c_int),
        ("callback", _POINTER),
        ("callback_data", _POINTER),
        ("batch_max_tokens", ctypes.c_int32),
        ("progress", _POINTER),
        ("progress_data", _POINTER),
        ("room", ctypes.c_char * 256),
    )


class Usage(ctypes.Structure):
    """struct mtmd_memory_usage: a std::map of bytes by device, and two numbers."""

    _fields_ = (
        ("compare", ctypes.c_size_t),
        ("color", ctypes.c_size_t),
        ("parent", _POINTER),
        ("first", _POINTER),
        ("last", _POINTER),
        ("count", ctypes.c_size_t),
        ("image_max_tokens", ctypes.c_int),
        ("use_non_causal", ctypes.c_bool),
    )


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    found = library[name]
    found.restype, found.argtypes = result, arguments
    return found


def usage(folder: str, file: str, flash: int) -> int:
    """Give the bytes of weights and of the worst graph together, on the CPU."""
    for name in ("ggml-base", "ggml", "llama"):
        loaded = ctypes.CDLL(f"{folder}/lib{name}.so", mode=ctypes.RTLD_GLOBAL)
        if name == "ggml":
            _function(loaded, "ggml_backend_load", _POINTER, ctypes.c_char_p)(f"{folder}/libggml-cpu.so".encode())
    library = ctypes.CDLL(f"{folder}/libmtmd.so")
    parameters = _function(library, "mtmd_context_params_default", Parameters)()
    if (parameters.use_gpu, parameters.flash_attn_type, parameters.batch_max_tokens) != (True, -1, 1024):
        raise SystemExit("the parameters are laid out in another way")
    parameters.use_gpu, parameters.flash_attn_type = False, flash
    ask = _function(library, "_Z21mtmd_get_memory_usagePKc19mtmd_context_params", Usage, ctypes.c_char_p, Parameters)
    found = ask(file.encode(), parameters)
    if found.count != 1:
        raise SystemExit(f"{found.count} devices")
    return int((ctypes.c_size_t * 2).from_address(found.first + 32)[1])


if __name__ == "__main__":
    print(usage(sys.argv[1], sys.argv[2], int(sys.argv[3])))  # noqa: T201 its answer

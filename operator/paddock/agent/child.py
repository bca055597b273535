"""The short-lived process that touches the driver: `python -m paddock.agent.child FOLDER`, or `--memory`.

Listing devices makes a context on each CUDA device, takes some hundred MiB there until the process ends, and may crash
or hang with a broken driver; so it happens here and never in the agent. Imports are few, to start fast.

Prints one line of JSON. Whatever the libraries print goes to standard error.
"""

import ctypes as c
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paddock.agent.nvml import read_driver, read_slots

_PROPS_ROOM = 256
"""Bytes given to ggml for a struct of 56, so that a field added to it by another version overwrites nothing."""
_CPU, _META = 0, 4


class _Props(c.Structure):
    """The head of ggml_backend_dev_props, the same since devices have ids; its flags are not needed."""

    _fields_ = (
        ("name", c.c_char_p),
        ("description", c.c_char_p),
        ("memory_free", c.c_size_t),
        ("memory_total", c.c_size_t),
        ("type", c.c_int),
        ("device_id", c.c_char_p),
    )


class ListingError(Exception):
    """The registry could not be read; `code` is that of the fault."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def main(argv: list[str]) -> int:
    """Print the driver's answer and, unless `--memory` is given, the registry's of the libraries in argv[0]."""
    answer_to = os.dup(1)
    os.dup2(2, 1)  # libraries that print must not spoil the answer
    answer: dict[str, Any] = {"driver": read_driver(), "slots": read_slots()}  # before ggml takes memory for contexts
    if argv != ["--memory"]:
        try:
            answer |= list_registry(Path(argv[0]))
        except ListingError as error:
            answer["error"] = {"code": error.code, "message": str(error)}
    with os.fdopen(answer_to, "w") as out:
        out.write(json.dumps(answer) + "\n")
    return 0


def list_registry(folder: Path) -> dict[str, Any]:
    """Load ggml's libraries from the folder and list every device of the registry, in its order.

    Raises ListingError when a library is missing, cannot be loaded, or lays out its answers in an unknown way.
    """
    base = _load(folder, "libggml-base.so")
    registry = _load(folder, "libggml.so")
    try:
        return _read_registry(base, registry, folder)
    except AttributeError as error:
        raise ListingError("ListingFailed", f"the ggml libraries in {folder} lack a function: {error}") from error


def _load(folder: Path, name: str) -> c.CDLL:
    """Load a library by its plain name or, where only that one was shipped, its numbered one."""
    path = next((p for p in (folder / name, folder / f"{name}.0") if p.exists()), None)
    if path is None:
        raise ListingError("LibraryMissing", f"there is no {name} in {folder}")
    try:
        return c.CDLL(str(path))
    except OSError as error:
        raise ListingError("ListingFailed", f"{path} cannot be loaded: {error}") from error


def _function(library: c.CDLL, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    function = getattr(library, name)
    function.restype = result
    function.argtypes = arguments
    return function  # type: ignore[no-any-return]


def _read_registry(base: c.CDLL, registry: c.CDLL, folder: Path) -> dict[str, Any]:
    version = _function(base, "ggml_version", c.c_char_p)
    commit = _function(base, "ggml_commit", c.c_char_p)
    load_all = _function(registry, "ggml_backend_load_all_from_path", None, c.c_char_p)
    count = _function(registry, "ggml_backend_dev_count", c.c_size_t)
    get = _function(registry, "ggml_backend_dev_get", c.c_void_p, c.c_size_t)
    kind = _function(base, "ggml_backend_dev_type", c.c_int, c.c_void_p)
    load_all(os.fsencode(folder))
    devices = [get(number) for number in range(count())]
    entries = [_read_device(base, device) for device in devices if kind(device) not in (_CPU, _META)]
    return {
        "library": {"folder": str(folder), "version": _text(version()), "commit": _text(commit())},
        "entries": entries,
    }


def _read_device(base: c.CDLL, device: int) -> dict[str, Any]:
    name = _text(_function(base, "ggml_backend_dev_name", c.c_char_p, c.c_void_p)(device)) or ""
    kind = _function(base, "ggml_backend_dev_type", c.c_int, c.c_void_p)(device)
    registry = _function(base, "ggml_backend_dev_backend_reg", c.c_void_p, c.c_void_p)(device)
    room = c.create_string_buffer(_PROPS_ROOM)
    _function(base, "ggml_backend_dev_get_props", None, c.c_void_p, c.c_void_p)(device, c.addressof(room))
    props = _Props.from_buffer(room)
    if props.type != kind or _text(props.name) != name:
        raise ListingError("ListingFailed", f"device {name}: this version of ggml describes devices in an unknown way")
    return {
        "name": name,
        "description": _text(props.description) or "",
        "registry": _text(_function(base, "ggml_backend_reg_name", c.c_char_p, c.c_void_p)(registry)) or "",
        "registry_id": registry,
        "type": kind,
        "total": props.memory_total,
        "free": props.memory_free,
        "device_id": _text(props.device_id),
    }


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Read from llama-server's own log where the model is.

`offloaded N/N layers to GPU` is no evidence: it repeats what was asked for. Evidence is the `using device` line, which
carries the PCI id, together with the size lines of the model, KV, recurrent-state and compute buffers
(llama.cpp b11434 at log level 4: llama_prepare_model_devices, load_tensors, llama_kv_cache, sched_reserve).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from paddock.api.vocabulary import Reason
from paddock.core.quantity import MIB, human

# A line begins with time and level, then the function's name: text of the model that is printed further in (names, chat
# templates) is no evidence.
_PREFIX = r"^(?:[0-9.]+ [A-Z] )?\w+:\s+"
_DEVICE = re.compile(_PREFIX + r"using device (\S+) \((.*)\) \(([^()]*)\) - \d+ MiB free\s*$")
_BUFFER = re.compile(_PREFIX + r"(\S+)\s+(model|KV|RS|LoRA|compute) buffer size =\s+([0-9]+(?:\.[0-9]+)?) MiB\s*$")
_ENCODER = re.compile(_PREFIX + r"CLIP using (\S+) backend\s*$")
_LOADED = re.compile(r"[\d.]+ I (?:srv +)?(?:llama_server|main): model loaded\s*$")
"""Whole lines only: a model's own texts are printed in the log, too."""
_HOST = re.compile(r"^(CPU|CPU_\w+|AMX|BLAS|.*_Host)$")
_REPACKED = re.compile(r"^(AMX|CPU_(?!Mapped$|HBM$)\w+)$")
"""Buffers whose layout only the CPU can compute with."""
_TOLERANCE = 2 * MIB
"""Sizes are printed in MiB with two digits, and buffers are padded."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A device that the server says it uses."""

    name: str
    description: str
    pci_id: str | None


@dataclass(frozen=True, slots=True)
class ServerLog:
    """What a server's log says of devices and buffers. Sizes in bytes."""

    devices: tuple[Opened, ...] = ()
    buffers: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Bytes by (buffer name, kind); kind is model, KV, RS, LoRA or compute. Lines of one buffer are summed."""
    encoders: tuple[str, ...] = ()
    """Devices that a projector computes on."""

    def on(self, name: str) -> int:
        """Give the bytes in buffers of this name."""
        return sum(size for (where, _), size in self.buffers.items() if where == name)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the placement reserved."""

    name_in_pod: str | None
    """ggml's name inside the pod; None for a replica on the CPU."""
    pci_id: str | None = None
    description: str = ""
    host_weights: int = 0
    """Bytes of weights that belong in host memory: the token embeddings."""
    need: int = 0
    """Bytes reserved on the device."""
    device_weights: int = 0
    """Bytes of weights that belong on the device; 0 when not known."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The finding: verified or not, in one sentence."""

    verified: bool
    reason: Reason
    message: str


def parse_log(text: str) -> ServerLog:
    """Collect device and buffer lines; everything else is passed over."""
    devices: dict[Opened, None] = {}
    """A draft model opens the model's device a second time, which is told again."""
    buffers: dict[tuple[str, str], int] = {}
    encoders: dict[str, None] = {}
    for line in text.splitlines():
        if found := _DEVICE.search(line):
            name, description, pci_id = found.groups()
            devices[Opened(name, description, None if pci_id == "unknown id" else pci_id.lower())] = None
        elif found := _ENCODER.search(line):
            encoders[found[1]] = None
        elif found := _BUFFER.search(line):
            where, kind, size = found.groups()
            key = (where, kind)
            # The compute line is printed again whenever the graph is reserved anew; the last one holds.
            buffers[key] = int(float(size) * MIB) + (0 if kind == "compute" else buffers.get(key, 0))
    return ServerLog(tuple(devices), buffers, tuple(encoders))


def is_loaded(end: str) -> bool:
    """Tell whether the end of a log says that all is loaded: what `parse_log` reads then stands before it."""
    return any(_LOADED.match(line) for line in end.splitlines())


def judge(log: ServerLog, expected: Expected) -> Evidence:
    """Compare what the log says with what was reserved."""
    if not any(kind == "model" for _, kind in log.buffers):
        return Evidence(False, Reason.NO_EVIDENCE, "the server's log does not say where the model's buffers are")
    if expected.name_in_pod is None:
        return _judge_cpu(log)
    if not log.devices:
        where = ", ".join(sorted({name for name, _ in log.buffers}))
        return Evidence(
            False,
            Reason.CPU_FALLBACK,
            f"the server opened no device, its buffers are in {where}; expected {_want(expected)}",
        )
    if len(log.devices) > 1:
        opened = " and ".join(_tell(one) for one in log.devices)
        return Evidence(False, Reason.SECOND_DEVICE, f"the server opened {opened}; expected only {_want(expected)}")
    return _judge_one(log, log.devices[0], expected)


def _judge_one(log: ServerLog, opened: Opened, expected: Expected) -> Evidence:
    held = human(log.on(opened.name))
    if not _same(opened, expected):
        return Evidence(
            False, Reason.WRONG_DEVICE, f"{_tell(opened)} holds {held}; the model belongs on {_want(expected)}"
        )
    others = sorted({name for name, _ in log.buffers if name != opened.name and not _HOST.match(name)})
    if others:
        message = f"{', '.join(others)} holds {human(sum(log.on(one) for one in others))} beside {_tell(opened)}"
        return Evidence(False, Reason.SECOND_DEVICE, message)
    if astray := [one for one in log.encoders if one != opened.name]:
        reason = Reason.CPU_FALLBACK if any(_HOST.match(one) for one in astray) else Reason.SECOND_DEVICE
        return Evidence(False, reason, f"the projector is on {', '.join(astray)}, the model on {_tell(opened)}")
    if stray := _in_host(log, opened, expected):
        return Evidence(False, Reason.CPU_FALLBACK, f"{stray}; it belongs on {_want(expected)}, which holds {held}")
    if expected.need and log.on(opened.name) > expected.need:
        message = f"{_tell(opened)} holds {held}, more than the {human(expected.need)} reserved"
        return Evidence(False, Reason.OUT_OF_MEMORY, message)
    return Evidence(True, Reason.BUFFERS_ON_DEVICE, f"{_tell(opened)} holds {held}: {_kinds(log, opened.name)}")


def _same(opened: Opened, expected: Expected) -> bool:
    """Compare PCI ids; where a backend gives none, name and description are all there is."""
    if expected.pci_id and opened.pci_id:
        return opened.pci_id == expected.pci_id.lower()
    like = not expected.description or not opened.description or opened.description == expected.description
    return opened.name == expected.name_in_pod and like


def _in_host(log: ServerLog, opened: Opened, expected: Expected) -> str | None:
    """Name what lies in host memory and should not, or what is missing on the device."""
    host = {key: size for key, size in log.buffers.items() if _HOST.match(key[0])}
    weights = sum(size for (_, kind), size in host.items() if kind == "model")
    placed = log.buffers.get((opened.name, "model"), 0)
    if not placed:
        return f"no weights are on the device, {human(weights)} are in host memory"
    if any(_REPACKED.match(name) and kind == "model" for name, kind in host):
        return "weights were repacked for the CPU"
    if placed < expected.device_weights - _TOLERANCE:
        return f"only {human(placed)} of {human(expected.device_weights)} of weights are on the device"
    # A mapped buffer spans the file from its first tensor to its last: it proves nothing once the device has its part.
    if not expected.device_weights and weights > expected.host_weights + _TOLERANCE:
        return f"{human(weights)} of weights are in host memory, {human(expected.host_weights)} expected"
    for kind, word in (("KV", "key-value cache"), ("RS", "recurrent state")):
        size = sum(bytes_ for (_, one), bytes_ in host.items() if one == kind)
        if size:
            return f"{human(size)} of {word} is in host memory"
    if not log.buffers.get((opened.name, "compute")):
        return "no compute buffer is on the device"
    return None


def _judge_cpu(log: ServerLog) -> Evidence:
    others = sorted({name for name, _ in log.buffers if not _HOST.match(name)})
    others += [one for one in log.encoders if not _HOST.match(one)]
    if log.devices or others:
        what = ", ".join([_tell(one) for one in log.devices] + others)
        return Evidence(False, Reason.WRONG_DEVICE, f"the server uses {what}; it belongs on the CPU")
    total = sum(log.buffers.values())
    return Evidence(True, Reason.BUFFERS_ON_DEVICE, f"host memory holds {human(total)}, no device was opened")


def _kinds(log: ServerLog, name: str) -> str:
    sizes = {kind: size for (where, kind), size in log.buffers.items() if where == name}
    return ", ".join(
        f"{kind} {human(sizes[kind])}" for kind in ("model", "KV", "RS", "LoRA", "compute") if kind in sizes
    )


def _tell(opened: Opened) -> str:
    return f"{opened.description} ({opened.pci_id or opened.name})"


def _want(expected: Expected) -> str:
    return f"{expected.description or expected.name_in_pod} ({expected.pci_id or expected.name_in_pod})"


_ERRORS = re.compile(r"^[0-9.]+ E |^error\b|^terminate called|\bGGML_(ASSERT|ABORT)\b|CUDA error|\bFatal\b")
_FOLLOWS = re.compile(r"exiting due to|failed to load model|failed to create_context")
"""Lines that only say that an earlier error ended the server."""
_MEMORY = re.compile(r"out of memory|failed to allocate|unable to allocate|cudaMalloc failed", re.IGNORECASE)

_UNSEEN = re.compile(r"invalid device: ")
"""llama-server's refusal of a --device that its backends do not list (common/arg.cpp)."""


def last_error(text: str) -> tuple[Reason, str] | None:
    """Give the reason and the last telling error line of a server that ended; None when it printed none."""
    errors = [line.strip() for line in text.splitlines() if _ERRORS.search(line)]
    memory = [line for line in errors if _MEMORY.search(line)] or [
        line.strip() for line in text.splitlines() if _MEMORY.search(line)
    ]
    if memory:
        return Reason.OUT_OF_MEMORY, _bare(memory[0])
    unseen = [line for line in errors if _UNSEEN.search(line)]
    if unseen:
        return Reason.DEVICE_NOT_VISIBLE, f"the container sees no such GPU: {_bare(unseen[-1])}"
    telling = [line for line in errors if not _FOLLOWS.search(line)] or errors
    return (Reason.SERVER_FAILED, _bare(telling[-1])) if telling else None


def _bare(line: str) -> str:
    """Drop the time and level in front of a log line, and what would not fit a message."""
    found = re.match(r"^[0-9.]+ [A-Z] +(.*)$", line)
    return (found.group(1) if found else line)[:400]

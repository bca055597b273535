"""Ceilings of the speed of an answer: each token reads every weight that computes it once, and the cache.

So memory bandwidth bounds tokens per second. Real servers stay below: kernels, synchronization and the processor take
their share. Nothing here is a promise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from paddock.core.gguf import GgufMetadata, Tensor

_ROWS: Final = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.")
"""Tables of which one row is read per token."""
_ONCE: Final = ("enc.", "v.", "mm.", "a.")
"""Read for a prompt, not for a token of the answer."""
_EXPERTS: Final = "_exps."


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes of weights that one token of one answer reads."""

    device: int
    host: int


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second."""

    device: int
    """Of one GPU's memory."""
    host: int
    """Of the host's memory."""


def weights_read(
    parts: Sequence[GgufMetadata], *, layers: int, gpu_layers: int | None = None, cpu_moe: int = 0
) -> Reading:
    """Give what a token reads where: of a mixture of experts, only those that compute it.

    layers is the model's number of layers; gpu_layers of them, counted from the end with the output as one more, are on
    the device (None: all); the experts of the first cpu_moe layers are on the host.
    """
    values = parts[0].values
    architecture = values.get("general.architecture")
    used, count = (values.get(f"{architecture}.{key}") for key in ("expert_used_count", "expert_count"))
    share = (used, count) if isinstance(used, int) and isinstance(count, int) and 0 < used <= count else (1, 1)
    skipped = values.get(f"{architecture}.nextn_predict_layers", 0)
    trunk = layers - (skipped if isinstance(skipped, int) else 0)
    tensors = [tensor for part in parts for tensor in part.tensors]
    tied = all(tensor.name != "output.weight" for tensor in tensors)
    first = 0 if gpu_layers is None else layers + 1 - min(max(gpu_layers, 0), layers + 1)
    device = host = 0
    for tensor in tensors:
        layer = _layer(tensor.name, layers)
        size = _read(tensor, share, tied=tied)
        if layer != layers and layer >= trunk:
            continue  # predicts further tokens only
        if layer < first or (_EXPERTS in tensor.name and layer < cpu_moe):
            host += size
        else:
            device += size
    return Reading(device, host)


def _read(tensor: Tensor, share: tuple[int, int], *, tied: bool) -> int:
    if tensor.name.startswith(_ONCE) or (
        tensor.name.startswith(_ROWS) and not (tied and tensor.name == "token_embd.weight")
    ):
        return 0
    if _EXPERTS in tensor.name:
        return tensor.bytes * share[0] // share[1]
    return tensor.bytes


def _layer(name: str, layers: int) -> int:
    """Give the number of a tensor's layer; the output counts as the one after the last."""
    prefix, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return int(number) if prefix == "blk" and number.isascii() and number.isdigit() else layers


def ceiling(
    reading: Reading,
    bandwidth: Bandwidth,
    *,
    cache: Reading | None = None,
    cards: int = 1,
    split: Literal["layer", "tensor"] = "layer",
) -> float:
    """Give the most tokens per second that one answer can come at.

    cache is what a token reads of the cache. With several cards, `layer` lets them work one after the other, so that
    they are as fast as one; `tensor` lets them read at once, before what their exchange costs. Host and device take
    turns in any case.
    """
    kept = cache or Reading(0, 0)
    device, host = reading.device + kept.device, reading.host + kept.host
    speed = bandwidth.device * (cards if split == "tensor" else 1)
    seconds = device / speed + host / bandwidth.host
    return 1 / seconds if seconds else 0.0

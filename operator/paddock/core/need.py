"""The memory need of one replica, in the few numbers that a placement and its messages are about.

The estimate is for `llama-server -c N -np P --no-kv-unified -fit off` with the context of each slot rounded up to 256,
the whole model on one device or all of it on the CPU.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from paddock.api import modeldeployment
from paddock.api.modeldeployment import FlashAttention, Mode, ServingSpec
from paddock.api.report import HeaderSummary
from paddock.core.args import normal
from paddock.core.companions import ALONE, Group, with_drafts
from paddock.core.estimate import PADDING, added_up, estimate
from paddock.core.geometry import CONTEXT_STEP, POOLINGS, Options, Pooling
from paddock.core.overhead import BACKENDS, HOST_PROCESS, OTHER, OVERHEAD, SLACK, TENSOR_PADDING, UNKNOWN
from paddock.core.quantity import MIB, round_up

__all__ = ["GIB", "HOST_PROCESS", "MIB", "OVERHEAD", "SLACK", "TENSOR_PADDING", "MemoryNeed", "need"]

GIB: Final = 1024 * MIB
_MOST: Final = 2**58
SOURCE: Final = "Estimate"
"""How these numbers are known, as status.need.source."""

_FLASH: Final[dict[FlashAttention, Literal["on", "off", "auto"]]] = {
    FlashAttention.AUTO: "auto",
    FlashAttention.ON: "on",
    FlashAttention.OFF: "off",
}


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Memory of one replica in bytes, part by part; on the CPU every device part is 0."""

    device_weights: int = 0
    """Repeating layers and the output layer, with a tied embedding counted once more."""
    device_kv: int = 0
    """Key and value cache and recurrent state of all slots."""
    device_compute: int = 0
    """Compute buffer, an upper bound where the graph is not a known dense one."""
    device_margin: int = 0
    """What no formula knows: driver context, padding, slack."""
    device_padding: int = 0
    """Of it, what the backend's allocator adds to tensors."""
    host_weights: int = 0
    """Token embeddings, or the whole model on the CPU."""
    host_kv: int = 0
    """Cache and state on the CPU, and checkpoints of windowed caches and states."""
    host_compute: int = 0
    """Compute buffer, inputs and logits in host memory."""
    host_process: int = 0
    """The server process itself."""
    token_bytes: int = 0
    """What a device reads for one token; 0 on the CPU."""
    device_beside: int = 0
    """Of the weights on the device, those of a projector and of adapters, which are not in the model's buffers."""

    @property
    def device_bytes(self) -> int:
        """All that is needed on the device."""
        return self.device_weights + self.device_kv + self.device_compute + self.device_margin

    @property
    def device_buffers(self) -> int:
        """What the server's buffers on the device are to be at most."""
        return self.device_weights + self.device_kv + self.device_compute + self.device_padding

    @property
    def host_bytes(self) -> int:
        """All that is needed in host memory."""
        return self.host_weights + self.host_kv + self.host_compute + self.host_process

    def to_status(self) -> modeldeployment.Need:
        """Give the form of status.need; on the CPU its parts are those of the host."""
        on_device = self.device_bytes > 0
        return modeldeployment.Need(
            device_bytes=self.device_bytes,
            host_bytes=self.host_bytes,
            weights_bytes=self.device_weights if on_device else self.host_weights,
            kv_cache_bytes=self.device_kv if on_device else self.host_kv,
            compute_bytes=self.device_compute if on_device else self.host_compute,
            margin_bytes=self.device_margin if on_device else self.host_process,
            bytes_per_token=self.token_bytes or None,
            source=SOURCE,
        )

    def sentence(self) -> str:
        """Say it to a person, for messages of conditions."""
        if self.device_bytes:
            parts = f"weights {_said(self.device_weights)}, KV cache {_said(self.device_kv)}"
            parts += f", compute {_said(self.device_compute)}, margin {_said(self.device_margin)}"
            return f"needs {_said(self.device_bytes)} on the device (estimate: {parts})"
        parts = f"weights {_said(self.host_weights)}, KV cache {_said(self.host_kv)}"
        parts += f", compute {_said(self.host_compute)}, process {_said(self.host_process)}"
        return f"needs {_said(self.host_bytes)} of host memory (estimate: {parts})"


def need(  # noqa: PLR0913 most of them by name
    summary: HeaderSummary,
    serving: ServingSpec,
    *,
    gpu: bool,
    backend: str | None = None,
    checkpoints: int = 0,
    context: int | None = None,
    beside: Group = ALONE,
) -> MemoryNeed:
    """Estimate what one replica needs.

    gpu says whether the model is on a device or on the CPU. backend is ggml's name of the device's backend, for
    example CUDA; without it the largest of each margin is taken. checkpoints is the server's --ctx-checkpoints: so
    many copies of what each slot cannot recompute may be kept in host memory. context is that of each slot in tokens,
    by default the spec's, which must then be a number. beside is what is served together with the model. Larger
    contexts, batches and more slots never need less.
    """
    options = with_drafts(options_of(serving, gpu=gpu, backend=backend, context=context), beside)
    found = estimate(summary, options, checkpoints=checkpoints)
    more = beside.addends(summary, options)
    if more:
        found = added_up((*found.addends, *more))
    weights = sum(one.bytes for one in more if (one.place, one.kind) == ("device", "weights"))
    process = min(found.sum("host", "overhead"), HOST_PROCESS)
    return MemoryNeed(
        device_weights=found.sum("device", "weights"),
        device_kv=found.sum("device", "kvCache"),
        device_compute=found.sum("device", "compute"),
        device_margin=found.sum("device", "overhead"),
        device_padding=sum(one.bytes for one in found.addends if PADDING in one.name and one.place == "device"),
        device_beside=max(weights - beside.mapped, 0) if gpu else 0,
        host_weights=found.sum("host", "weights"),
        host_kv=found.sum("host", "kvCache"),
        host_compute=found.sum("host", "compute") + found.sum("host", "overhead") - process,
        host_process=process,
        token_bytes=min(bytes_per_token(summary), _MOST) if gpu else 0,
    )


def options_of(serving: ServingSpec, *, gpu: bool, backend: str | None, context: int | None = None) -> Options:
    """Give the server's options that a replica is started with."""
    return Options(
        context=(context or slot_context(serving)) * serving.parallel,
        parallel=serving.parallel,
        cache_type_k=serving.cache_type_k.value,
        cache_type_v=serving.cache_type_v.value,
        batch=serving.batch,
        ubatch=min(serving.ubatch, serving.batch),
        flash_attention=_FLASH[serving.flash_attention],
        embeddings=serving.mode is not Mode.CHAT,
        pooling=_pooling(serving),
        gpu_layers=None if gpu else 0,
        backend=UNKNOWN if backend is None else BACKENDS.get(backend, OTHER),
    )


def _pooling(serving: ServingSpec) -> Pooling | None:
    """Say what the server is told: --reranking, or an argument of the user's; None leaves it to the file."""
    if serving.mode is Mode.RERANK:
        return "rank"
    told = [value for name, value in pairwise(serving.args) if normal(name) == "--pooling"]
    return next((one for one in POOLINGS if told and one == told[-1]), None)


def bytes_per_token(summary: HeaderSummary) -> int:
    """Give the bytes of weights that are read for one token; all of them where an older agent does not say."""
    return summary.token_bytes or summary.layer_tensors.bytes + summary.output_tensors.bytes


def slot_context(serving: ServingSpec) -> int:
    """Give the tokens of one slot: contextLength rounded up; the server's -c is this times parallel.

    Raises ValueError where the spec leaves it open.
    """
    if not isinstance(serving.context_length, int):
        raise ValueError("the context is not chosen yet")  # noqa: TRY004 nothing is wrong with the type
    return round_up(serving.context_length, CONTEXT_STEP)


def _said(size: int) -> str:
    """Say bytes as people do: 950 MiB, 11.2 GiB."""
    return f"{-(-size // MIB)} MiB" if size < GIB else f"{size / GIB:.1f} GiB"

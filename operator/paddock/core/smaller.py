"""What a replica would need if it were served with less, and the largest of that with which it would get a device.

Each answer is computed: the estimate is made again with the change, and `place` is asked with what it gives.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from paddock.api.modeldeployment import CacheType, FlashAttention, ServingSpec
from paddock.api.report import HeaderSummary
from paddock.core.companions import ALONE, Group
from paddock.core.context import wish_of
from paddock.core.fleet import Fleet
from paddock.core.geometry import CONTEXT_STEP
from paddock.core.need import need
from paddock.core.placement import Placement, place
from paddock.core.pod import CONTEXT_CHECKPOINTS
from paddock.core.quantity import round_up
from paddock.core.request import Request
from paddock.core.whatif import WhatIf

CACHE_TYPES = (CacheType.Q8_0, CacheType.Q4_0)
"""By falling precision: those that FlashAttention has kernels of its own for in the usual builds."""
WIDE = (CacheType.F32, CacheType.F16, CacheType.BF16)


def resized(request: Request, summary: HeaderSummary, serving: ServingSpec, beside: Group = ALONE) -> Request:
    """Give a request with what the model needs when it is served so; an open context is taken at its least."""
    context = wish_of(serving, summary.context_train).least
    needed = partial(need, summary, serving, gpu=True, context=context, checkpoints=CONTEXT_CHECKPOINTS, beside=beside)
    whole = needed()
    sizes = {backend: needed(backend=backend).device_bytes for backend in request.needs}
    return replace(
        request,
        need=round_up(whole.device_bytes),
        needs=sizes,
        host_need=whole.host_bytes,
        token_bytes=whole.token_bytes,
    )


def smaller(
    request: Request, fleet: Fleet, summary: HeaderSummary, serving: ServingSpec, beside: Group = ALONE
) -> Iterator[WhatIf]:
    """Give what a refused replica could do with: less context, a narrower cache, fewer slots; each by itself."""

    def asked(**changes: object) -> Request:
        return resized(request, summary, serving.model_copy(update=changes), beside)

    context = serving.context_length
    if isinstance(context, int):
        steps = _largest((context - 1) // CONTEXT_STEP, lambda step: asked(context_length=step * CONTEXT_STEP), fleet)
        if steps:
            tokens = steps * CONTEXT_STEP
            yield from _told(f"with contextLength {tokens}", asked(context_length=tokens), fleet)
    if serving.flash_attention is not FlashAttention.OFF and serving.cache_type_k in WIDE:
        for kind in CACHE_TYPES:
            found = list(_told(f"with {kind} caches", asked(cache_type_k=kind, cache_type_v=kind), fleet))
            yield from found
            if found:
                break
    slots = _largest(serving.parallel - 1, lambda number: asked(parallel=number), fleet)
    if slots:
        yield from _told(f"with parallel {slots}", asked(parallel=slots), fleet)


def _largest(most: int, ask: Callable[[int], Request], fleet: Fleet) -> int:
    """Give the largest number, at least 1, whose request is placed; 0 when none is. Less never needs more."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if any(_told("", ask(middle), fleet)):
            low = middle
        else:
            high = middle - 1
    return low


def _told(change: str, request: Request, fleet: Fleet) -> Iterator[WhatIf]:
    found = place(request, fleet)
    if isinstance(found, Placement) and found.device is not None:
        yield WhatIf(change, found.device.gpu, request, fleet)

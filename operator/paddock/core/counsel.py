"""Advice on one model with one set of options, in words and figures: what fits, what else would, how fast at most."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from paddock.api.report import HeaderSummary
from paddock.core.advice import (
    fewest_experts_on_host,
    largest_context,
    most_layers,
    most_slots,
    per_request,
    planning_budget,
    users_table,
    widest_cache,
    with_request,
)
from paddock.core.beside import Beside
from paddock.core.division import Estimator
from paddock.core.estimate import MemoryEstimate, Options
from paddock.core.gguf import GgufError, GgufMetadata
from paddock.core.quantity import human
from paddock.core.quantize import MIXES, quantization, requantized
from paddock.core.speed import Bandwidth, Reading, ceiling, weights_read
from paddock.core.summary import summarize

CARDS: Final = (8, 12, 16, 24, 32, 48, 80, 96)
"""GiB of memory that GPUs are sold with."""
CONTEXTS: Final = (4096, 8192, 16_384, 32_768, 65_536, 131_072)
"""Tokens of the table of users."""
USER_TYPES: Final = ("f16", "q8_0", "q4_0")
"""Cache types of the table of users."""
DEVICE_BANDWIDTH: Final = 1_000_000_000_000
"""Bytes per second of a GPU that is not known: the unit of the answer, not a guess."""
HOST_BANDWIDTH: Final = 80_000_000_000
"""Bytes per second of the host's memory when it is not known: two channels of DDR5, about."""

_GIB: Final = 1024**3
_MOST_CONTEXT: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class Wish:
    """What the advice is for."""

    budget: int | None = None
    """Bytes that may be used on the device."""
    device_bandwidth: int | None = None
    """Bytes per second of the device's memory."""
    host_bandwidth: int | None = None
    """Bytes per second of the host's memory."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice."""

    kind: str
    """fit, context, users, cacheType, layers, experts, quantization, table, card or speed."""
    message: str
    """In a sentence."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """The figures in it; `options` are llama-server's that bring it about."""


@dataclass(frozen=True, slots=True)
class _Case:
    parts: Sequence[GgufMetadata]
    summary: HeaderSummary
    found: MemoryEstimate
    options: Options
    wish: Wish
    estimator: Estimator
    known: dict[Options, MemoryEstimate] = field(default_factory=dict)
    """Estimates so far: the searches meet the same options again."""

    def need(self, options: Options) -> MemoryEstimate:
        """Estimate with other options."""
        if options not in self.known:
            self.known[options] = self.estimator(options)
        return self.known[options]

    @property
    def trained(self) -> int:
        return self.summary.context_train or _MOST_CONTEXT

    @property
    def request(self) -> int:
        return per_request(self.options)


def advise(
    parts: Sequence[GgufMetadata],
    summary: HeaderSummary,
    found: MemoryEstimate,
    options: Options,
    wish: Wish,
    beside: Beside = Beside(),  # noqa: B008 frozen
) -> Iterator[Advice]:
    """Give all advice, the most telling first; found is the need with these options, where it is known better."""
    case = _Case(parts, summary, found, options, wish, Estimator(parts, summary, beside))
    if wish.budget is not None:
        enough = max(found.devices) <= wish.budget
        yield _fit(case, wish.budget, enough=enough)
        yield from _context(case, wish.budget)
        yield from _users(case, wish.budget)
        if not enough:
            yield from _smaller(case, wish.budget)
        yield from _quantizations(case, wish.budget, enough=enough)
        yield from _table(case, wish.budget)
    else:
        enough = True
        yield from _cards(case)
    if enough:
        yield _speed(case, case.options, case.found)


def _fit(case: _Case, budget: int, *, enough: bool) -> Advice:
    total = max(case.found.devices)
    facts = {"fits": enough, "budget": budget, "deviceBytes": total, "leftBytes": budget - total}
    if enough:
        return Advice("fit", f"fits, {human(budget - total)} left", facts)
    return Advice("fit", f"does not fit, {human(total - budget, up=True)} short", facts)


def _context(case: _Case, budget: int) -> Iterator[Advice]:
    best = largest_context(case.need, case.options, budget, case.trained)
    if best is None:
        return
    chosen = with_request(case.options, best)
    slots = f" in each of {case.options.parallel} slots" if case.options.parallel > 1 else ""
    most = " (all that it was trained for)" if best + 255 >= case.trained else ""
    total = case.need(chosen).device_total
    message = f"the largest context that fits is {best} tokens a request{slots}{most}: {human(total, up=True)}"
    yield Advice("context", message, {"contextLength": best, "deviceBytes": total, **_set(case.options, chosen)})


def _users(case: _Case, budget: int) -> Iterator[Advice]:
    if not any(case.summary.head_count_kv) and not case.summary.recurrent:
        return
    slots = most_slots(case.need, case.options, budget, case.request)
    if slots:
        chosen = with_request(replace(case.options, parallel=slots, kv_unified=False), case.request)
        who = "one user fits" if slots == 1 else f"{slots} users fit"
        message = f"{who} with {case.request} tokens each"
        total = case.need(chosen).device_total
        facts = {"users": slots, "contextLength": case.request, "deviceBytes": total}
        yield Advice("users", message, {**facts, **_set(case.options, chosen)})


def _smaller(case: _Case, budget: int) -> Iterator[Advice]:
    """Say what helps where it does not fit: a smaller cache, fewer layers, experts on the host."""
    cache = widest_cache(case.need, case.options, budget)
    if cache is not None and cache.cache_type_k != case.options.cache_type_k:
        total = case.need(cache).device_total
        message = f"with a cache of type {cache.cache_type_k} it fits: {human(total, up=True)}"
        yield Advice("cacheType", message, {"deviceBytes": total, **_set(case.options, cache)})
    layers = case.summary.block_count
    experts = None
    if case.summary.experts_used:
        experts = fewest_experts_on_host(case.need, case.options, budget, layers)
    if experts:
        chosen = replace(case.options, cpu_moe=experts)
        total, host = case.need(chosen).device_total, case.need(chosen).host_total
        message = f"with the experts of {experts} of {layers} layers in host memory it fits: {human(total, up=True)}"
        message += f" on the device, {human(host, up=True)} on the host"
        yield Advice("experts", message, {"deviceBytes": total, "hostBytes": host, **_set(case.options, chosen)})
        yield _speed(case, chosen, case.need(chosen))
    count = most_layers(case.need, case.options, budget, layers)
    if 0 < count <= layers:
        chosen = replace(case.options, gpu_layers=count)
        host = case.need(chosen).host_total
        message = (
            f"{count} of {layers + 1} layers fit, the output counted as one; the rest takes {human(host, up=True)}"
        )
        facts = {"layers": count, "of": layers + 1, "hostBytes": host}
        yield Advice("layers", f"{message} of host memory", {**facts, **_set(case.options, chosen)})
        yield _speed(case, chosen, case.need(chosen))


def _quantizations(case: _Case, budget: int, *, enough: bool) -> Iterator[Advice]:
    """Name other quantizations of the same model: the largest that fits, and if this one does, every larger one."""
    own = sum(tensor.bytes for part in case.parts for tensor in part.tensors)
    now = quantization(case.parts, case.summary.file_type)
    for mix in MIXES:
        other = requantized(case.parts, mix)
        weights = sum(tensor.bytes for part in other for tensor in part.tensors)
        if mix.name == now or abs(weights - own) * 50 < own or (weights < own and enough):
            continue
        try:
            total = max(Estimator(other, summarize(other), case.estimator.beside)(case.options).devices)
        except GgufError:
            continue
        if total > budget:
            continue
        message = f"{mix.name} of the same model would fit{' too' if enough else ''}: about {human(total, up=True)}"
        yield Advice("quantization", message, {"quantization": mix.name, "deviceBytes": total, "fileBytes": weights})
        return


def _table(case: _Case, budget: int) -> Iterator[Advice]:
    """Give the users per card by context and cache type."""
    if not any(case.summary.head_count_kv):
        return
    types = USER_TYPES if case.options.flash_attention != "off" else USER_TYPES[:1]
    contexts = [tokens for tokens in CONTEXTS if tokens <= case.trained]
    for row in users_table(case.need, case.options, budget, contexts, types):
        counts = dict(zip(types, row.count, strict=True))
        said = ", ".join(f"{count} with {kind}" for kind, count in counts.items())
        yield Advice(
            "table", f"users with {row.tokens} tokens each: {said}", {"contextLength": row.tokens, "users": counts}
        )


def _cards(case: _Case) -> Iterator[Advice]:
    """Say for cards as they are sold what fits by the cautious planning rule."""
    for size in CARDS:
        budget = planning_budget(size * _GIB)
        best = largest_context(case.need, case.options, budget, case.trained) or 0
        slots = most_slots(case.need, case.options, budget, case.request) if best >= case.request else 0
        said = f"{best} tokens a request" if best else "does not fit"
        facts = {"memory": size * _GIB, "budget": budget, "contextLength": best, "users": slots}
        yield Advice("card", f"card of {size} GiB: {said}", facts)


def _speed(case: _Case, options: Options, found: MemoryEstimate) -> Advice:
    """Give the ceiling with these options."""
    wish = case.wish
    read = weights_read(
        case.parts, layers=case.summary.block_count, gpu_layers=options.gpu_layers, cpu_moe=options.cpu_moe
    )
    slots = 1 if options.kv_unified else options.parallel
    cache = Reading(found.sum("device", "kvCache") // slots, found.sum("host", "kvCache") // slots)
    bandwidth = Bandwidth(wish.device_bandwidth or DEVICE_BANDWIDTH, wish.host_bandwidth or HOST_BANDWIDTH)
    empty, full = ceiling(read, bandwidth), ceiling(read, bandwidth, cache=cache)
    changed = _set(case.options, options)
    flags = " ".join(f"{flag} {value}" for flag, value in changed["options"].items())
    message = f"at most {_rate(empty)} tokens/s for one answer{f' with {flags}' if flags else ''}"
    message += f", {_rate(full)} when the context is full ({_given(wish, read)}); a ceiling, no promise"
    facts: dict[str, object] = {"ceiling": True, "tokensPerSecond": round(empty, 2)}
    facts |= {"tokensPerSecondFull": round(full, 2), "cacheBytesPerToken": cache.device + cache.host}
    facts |= {"deviceBytesPerToken": read.device, "hostBytesPerToken": read.host}
    facts |= {"deviceBandwidth": bandwidth.device, "hostBandwidth": bandwidth.host}
    return Advice("speed", message, {**facts, **changed})


def _given(wish: Wish, read: Reading) -> str:
    """Say which bandwidths the ceiling is for, and which of them nobody has named."""
    parts = []
    if read.device:
        speed = wish.device_bandwidth or DEVICE_BANDWIDTH
        parts.append(f"GPU memory of {speed // 10**9} GB/s{'' if wish.device_bandwidth else ', for example'}")
    if read.host:
        speed = wish.host_bandwidth or HOST_BANDWIDTH
        parts.append(f"host memory of {speed // 10**9} GB/s{'' if wish.host_bandwidth else ', assumed'}")
    return "; ".join(parts)


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"  # noqa: PLR2004 two digits either way


def _set(before: Options, after: Options) -> dict[str, dict[str, object]]:
    """Give the options of llama-server that differ."""
    flags: dict[str, object] = {}
    for flag, name in (
        ("-c", "context"),
        ("-np", "parallel"),
        ("-ctk", "cache_type_k"),
        ("-ctv", "cache_type_v"),
        ("-ngl", "gpu_layers"),
        ("-ncmoe", "cpu_moe"),
    ):
        if getattr(before, name) != getattr(after, name):
            flags[flag] = getattr(after, name)
    return {"options": flags}

"""Puts a GGUF header into the few numbers that a placement needs.

Where the file or llama.cpp is not known well enough, every choice here is the one that needs more memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from paddock.api.report import GraphOutline, HeaderSummary, LayerOutline, TensorGroup
from paddock.core import architectures as known
from paddock.core.ggml import type_numbered
from paddock.core.gguf import GgufMetadata, Skipped, Tensor
from paddock.core.metadata import MAX_SIZE, Header
from paddock.core.speed import weights_read

MAX_OUTLINE: Final = 2000
"""Tensors of the different kinds of layers that a summary holds."""
MAX_PARTS: Final = 1000
"""Parts of a split file."""

_ALIGNMENT: Final = 32
INPUT_PREFIXES: Final = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.", "masked_embd_")
"""Tensors that stay in host memory."""
_SHARED_PREFIXES: Final = ("rope_freqs.", "rope_factors_")
_FIRST_LAYER: Final = ("token_embd_norm.", "hrm.z_l_init")
"""Kept with the first layer (LLM_TENSOR_LAYER_REPEATING without a layer, src/llama-arch.cpp:753)."""
_EXPERTS: Final = tuple(f"ffn_{part}_{kind}exps" for part in ("up", "down", "gate", "gate_up") for kind in ("ch", ""))
"""Names of experts' tensors (LLM_FFN_EXPS_REGEX, common/common.h:1224)."""
_FLOAT: Final = 4
_CUDA_ALIGNMENT: Final = 128
_CUDA_ROW: Final = 512


def summarize(parts: Sequence[GgufMetadata]) -> HeaderSummary:
    """Summarize the headers of a file, or of all parts of a split one in order; raises GgufError."""
    header = Header(parts)
    layers = _layers(header)
    groups = _groups(header, layers)
    heads = header.per_layer("attention.head_count", 0)
    width = header.number("embedding_length")
    if not width:
        header.fail(f"{header.architecture}.embedding_length is missing")
    head_width = width // heads[0] if heads[0] else 0
    key = header.number("attention.key_length", head_width)
    latent = bool(header.number("attention.key_length_mla") and header.number("attention.value_length_mla"))
    sliding = layers.sliding if any(layers.sliding) else []
    states = _states(header, layers, _state_bytes(header, heads[0], width, key), _history_bytes(header, width))
    return HeaderSummary(
        architecture=header.architecture,
        name=header.text("general.name"),
        license=header.text("general.license"),
        file_bytes=sum(part.file_bytes for part in parts),
        file_type=header.plain("general.file_type"),
        parameters=sum(tensor.elements for tensor in header.tensors),
        files=len(parts),
        block_count=layers.count,
        context_train=header.optional("context_length"),
        embedding_length=width,
        feed_forward=_short(header.per_layer("feed_forward_length", 0)),
        head_count=_short(heads),
        head_count_kv=_short(layers.heads_kv),
        key_length=key,
        value_length=header.number("attention.value_length", head_width),
        key_length_mla=key if latent else None,
        key_length_swa=header.optional("attention.key_length_swa") if sliding else None,
        value_length_swa=header.optional("attention.value_length_swa") if sliding else None,
        indexer_length=_indexer(header),
        indexer_value_length=_indexer_values(header),
        indexer_layers=_indexer_layers(header, layers),
        experts_used=header.number("expert_used_count"),
        expert_feed_forward=header.number("expert_feed_forward_length"),
        experts=header.number("expert_count"),
        sliding_window=layers.window if sliding else None,
        sliding_layers=sliding,
        recurrent=any(layers.recurrent),
        recurrent_state_bytes=sum(states),
        recurrent_layers=layers.recurrent if any(layers.recurrent) else [],
        recurrent_layer_bytes=states if len({*states} - {0}) > 1 else [],
        recurrent_width=_recurrent_width(header, width) if any(layers.recurrent) else 0,
        vocabulary=_vocabulary(header),
        input_tensors=_group(groups.inputs),
        layer_tensors=_group(groups.repeating),
        output_tensors=_group(groups.outputs),
        expert_bytes=_expert_bytes(groups.repeating, layers.count),
        layer_bytes=_short(_layer_bytes(groups.repeating, layers.count)),
        graph=_outline(header, layers),
        shared_bytes=sum(_align(one.bytes) for one in groups.outputs if one.name.startswith(_SHARED_PREFIXES)),
        token_bytes=weights_read(parts, layers=layers.count).device,
        predicting_layers=layers.count - layers.trunk,
        predicting_bytes=sum(
            _align(one.bytes) for one in header.tensors if (_layer_of(one.name) or 0) >= layers.trunk > 0
        ),
        tied_bytes=sum(_align(tensor.bytes) for tensor in groups.tied),
    )


@dataclass(frozen=True, slots=True)
class _Layers:
    """What differs from layer to layer."""

    count: int
    trunk: int
    """Layers before those that only predict further tokens, which are not loaded."""
    heads_kv: list[int]
    """Key-value heads that are cached; 0 where nothing is."""
    recurrent: list[bool]
    sliding: list[bool]
    window: int | None
    """Tokens; None without windows."""


def _layers(header: Header) -> _Layers:
    architecture, count = header.architecture, header.layer_count
    trunk = max(count - header.number("nextn_predict_layers"), 0)
    heads = header.per_layer("attention.head_count", 0)
    heads_kv = header.per_layer("attention.head_count_kv", -1)
    heads_kv = [kv if kv >= 0 else own for kv, own in zip(heads_kv, heads, strict=True)]
    recurrent = [layer < trunk and is_it for layer, is_it in enumerate(_recurrent_layers(header, heads_kv))]
    caching = min(trunk, known.CACHING_LAYERS.get(architecture, trunk))
    if architecture == "gemma4":
        caching = min(trunk, max(count - header.number("attention.shared_kv_layers"), 0))
    has_cache = [layer < caching for layer in range(count)]
    if architecture in known.RECURRENT or architecture in known.CACHELESS:
        has_cache = [False] * count
    elif architecture in known.HYBRID and architecture != "falcon-h1":
        has_cache = [cached and not state for cached, state in zip(has_cache, recurrent, strict=True)]
    if architecture.startswith("nemotron_h"):  # a layer is one of attention, state and feed-forward
        forward = header.per_layer("feed_forward_length", 0)
        has_cache = [cached and not width for cached, width in zip(has_cache, forward, strict=True)]
    window = _window(header)
    return _Layers(
        count=count,
        trunk=trunk,
        heads_kv=[kv if cached else 0 for kv, cached in zip(heads_kv, has_cache, strict=True)],
        recurrent=recurrent,
        sliding=[] if window is None else _sliding_layers(header, recurrent),
        window=window,
    )


def _window(header: Header) -> int | None:
    """Give the tokens of the window that llama.cpp takes; None for no windows."""
    architecture, told = header.architecture, header.optional("attention.sliding_window")
    if architecture in known.ALWAYS_WINDOWED:
        return known.DEFAULT_WINDOW.get(architecture) if told is None else told
    if told is None and architecture == "llama4":
        return known.FIXED_WINDOW[architecture]
    return known.FIXED_WINDOW.get(architecture, told) if told else None


def _recurrent_layers(header: Header, heads_kv: list[int]) -> list[bool]:
    architecture, count = header.architecture, header.layer_count
    if architecture in known.RECURRENT or architecture == "falcon-h1":
        return [True] * count
    if architecture not in known.HYBRID:
        return [bool(header.number("ssm.inner_size") or header.number("wkv.head_size"))] * count
    if architecture in known.FULL_INTERVAL:
        listed = header.array("attention.recurrent_layers")
        if listed:
            return ([bool(flag) for flag in listed] + [True] * count)[:count]
        interval = header.number("full_attention_interval") or known.FULL_INTERVAL[architecture]
        return [(layer + 1) % interval != 0 for layer in range(count)]
    if architecture.startswith("nemotron_h"):
        forward = header.per_layer("feed_forward_length", 0)
        return [kv == 0 and ff == 0 for kv, ff in zip(heads_kv, forward, strict=True)]
    return [kv == 0 for kv in heads_kv]


def _sliding_layers(header: Header, recurrent: list[bool]) -> list[bool]:
    architecture, count = header.architecture, header.layer_count
    if architecture == "exaone4" and count != known.EXAONE4_WINDOWED_LAYERS:
        return []
    flags = header.array("attention.sliding_window_pattern")
    if flags is not None and (architecture in known.WINDOWS_IN_FILE or architecture in known.WINDOWS):
        return ([bool(flag) for flag in flags] + [False] * count)[:count]
    if architecture == "lfm2":
        return [not state for state in recurrent]
    if architecture not in known.WINDOWS:
        return []
    window = known.WINDOWS[architecture]
    period = header.number("attention.sliding_window_pattern") or window.period
    return window._replace(period=period).layers(count)


def _state_bytes(header: Header, heads: int, width: int, key: int) -> int:
    """Bytes of recurrent state of one layer and slot (src/llama-hparams.cpp, n_embd_r and n_embd_s), 32-bit floats."""
    kernel = header.number("ssm.conv_kernel")
    inner, state = header.number("ssm.inner_size"), header.number("ssm.state_size")
    head_kda, taps = header.number("kda.head_dim"), header.number("shortconv.l_cache")
    if header.number("wkv.head_size"):
        rows, states = header.number("token_shift_count", 2) * width, width * header.number("wkv.head_size")
    elif taps:
        rows, states = width * (taps - 1), state * inner
    elif head_kda:
        rows, states = 3 * (kernel - 1 if kernel else 3) * heads * head_kda, head_kda * head_kda * heads
    else:
        rows = max(kernel - 1, 0) * (inner + 2 * header.number("ssm.group_count") * state)
        states = key * key * heads if header.architecture == "minimax-01" else state * inner
    return sum(_align(_FLOAT * size) for size in (rows, states))


def _history_bytes(header: Header, width: int) -> int:
    """Bytes of what a slot remembers of n-grams, in a layer that has any (ple_conv_state)."""
    rows = max(header.number("ple.conv_kernel") - 1, 0) * header.number("ple.ngram_size")
    return _align(_FLOAT * rows * max(header.number("hyper_connection.count"), 1) * width)


def _states(header: Header, layers: _Layers, state: int, history: int) -> list[int]:
    """Give the bytes of each layer's state; where the file names no layers with a history, all have one."""
    remember = header.array("ple.layers")
    return [
        (state + (history if remember is None or layer in remember else 0)) if recurrent else 0
        for layer, recurrent in enumerate(layers.recurrent)
    ]


def _recurrent_width(header: Header, width: int) -> int:
    inner = header.number("ssm.inner_size")
    return max(inner + 2 * header.number("ssm.group_count") * header.number("ssm.state_size"), width)


def _indexer(header: Header) -> int:
    length = header.number("attention.indexer.key_length")
    return length * known.INDEX_FACTOR.get(header.architecture, max(known.INDEX_FACTOR.values()))


def _indexer_values(header: Header) -> int:
    return header.number("attention.value_length") if header.architecture == "minimax-m3" else 0


def _indexer_layers(header: Header, layers: _Layers) -> list[bool]:
    if not header.number("attention.indexer.key_length"):
        return []
    if header.architecture == "minimax-m3":
        dense = header.number("leading_dense_block_count")
        return [layer >= dense for layer in range(layers.count)]
    types = header.array("attention.indexer.types")
    flags = [bool(kind) for kind in types] if types else [True]
    flags = (flags + [True] * layers.count)[: layers.count] if types else flags * layers.count
    if header.architecture == "dots3note" and any(layers.sliding):
        flags = [flag and not windowed for flag, windowed in zip(flags, layers.sliding, strict=True)]
    return flags


def _vocabulary(header: Header) -> int:
    for tensor in header.tensors:
        if tensor.name in ("token_embd.weight", "output.weight") and len(tensor.shape) > 1:
            return tensor.shape[1]
    tokens = header.values.get("tokenizer.ggml.tokens")
    return tokens.length if isinstance(tokens, Skipped) else header.number("vocab_size")


class _Groups(NamedTuple):
    inputs: list[Tensor]
    repeating: list[Tensor]
    outputs: list[Tensor]
    tied: list[Tensor]


def _groups(header: Header, layers: _Layers) -> _Groups:
    inputs: list[Tensor] = []
    repeating: list[Tensor] = []
    outputs: list[Tensor] = []
    first = () if header.architecture in known.NORM_IS_OUTPUT else _FIRST_LAYER
    for tensor in header.tensors:
        if tensor.name.startswith(INPUT_PREFIXES):
            inputs.append(tensor)
        elif (layer := _layer_of(tensor.name)) is None:
            (repeating if tensor.name.startswith(first) else outputs).append(tensor)
        elif layer < layers.trunk:
            repeating.append(tensor)
    tied: list[Tensor] = []
    if header.architecture not in known.WITHOUT_OUTPUT and all(tensor.name != "output.weight" for tensor in outputs):
        tied = [tensor for tensor in inputs if tensor.name == "token_embd.weight"]
    return _Groups(inputs, repeating, outputs + tied, tied)


class Loaded(NamedTuple):
    """A tensor as it is loaded."""

    name: str
    layer: int
    """INPUT, the number of a layer, the number of layers for the output, or EVERY for what each layer brings along."""
    bytes: int
    """With alignment."""
    padded: int
    """As CUDA and its relatives allocate it."""
    shape: tuple[int, ...]
    expert: bool
    """Whether --n-cpu-moe moves it."""
    type: int = 0
    """ggml's type number."""


INPUT, EVERY = -1, -2


def loaded(parts: Sequence[GgufMetadata]) -> list[Loaded]:
    """Give every tensor that llama.cpp loads, a tied embedding as input and as output; raises GgufError."""
    header = Header(parts)
    layers = _layers(header)
    groups = _groups(header, layers)
    rows = [(one, INPUT) for one in groups.inputs]
    rows += [(one, _layer_of(one.name) or 0) for one in groups.repeating]
    rows += [(one, EVERY if one.name.startswith(_SHARED_PREFIXES) else layers.count) for one in groups.outputs]
    return [
        Loaded(one.name, layer, _align(one.bytes), _padded(one), one.shape, expert=_is_expert(one.name), type=one.type)
        for one, layer in rows
    ]


def sizes_of(parts: Sequence[GgufMetadata]) -> list[Loaded]:
    """Give every tensor of a file that is no model, such as a projector; the layer tells nothing."""
    rows = (one for part in parts for one in part.tensors)
    return [Loaded(one.name, INPUT, _align(one.bytes), _padded(one), one.shape, expert=False) for one in rows]


def _is_expert(name: str) -> bool:
    return name.partition(".")[2].partition(".")[2].startswith(_EXPERTS)


def _expert_bytes(tensors: list[Tensor], count: int) -> list[int]:
    """Give the bytes of experts per layer, of those tensors that --n-cpu-moe moves; nothing where there are none."""
    experts = [tensor for tensor in tensors if _is_expert(tensor.name)]
    return _short(_layer_bytes(experts, count)) if experts else []


def _layer_bytes(tensors: list[Tensor], count: int) -> list[int]:
    sizes = [0] * count
    for tensor in tensors:
        sizes[_layer_of(tensor.name) or 0] += _align(tensor.bytes)
    return sizes


def _outline(header: Header, layers: _Layers) -> GraphOutline | None:
    """Give what the graph is built from; None when that is more than a summary should hold."""
    prefix = f"{header.architecture}."
    numbers = {
        key.removeprefix(prefix): int(value)
        for key, value in header.values.items()
        if key.startswith(prefix) and isinstance(value, int) and 0 <= value <= MAX_SIZE
    }
    outside: dict[str, list[int]] = {}
    inside: list[dict[str, list[int]]] = [{} for _ in range(layers.count)]
    for tensor in header.tensors:
        layer = _layer_of(tensor.name)
        if layer is None:
            outside[tensor.name.removesuffix(".weight")] = list(tensor.shape)
        elif layer < layers.trunk:
            name = tensor.name.split(".", 2)[2].removesuffix(".weight")
            inside[layer][name] = list(tensor.shape)
    heads, heads_kv = header.per_layer("attention.head_count", 0), header.per_layer("attention.head_count_kv", -1)
    indexed = _indexer_layers(header, layers)
    kinds: list[LayerOutline] = []
    order = []
    for layer in range(layers.trunk):
        kind = LayerOutline(
            traits=_traits(header, layers, layer, inside[layer], indexed=bool(indexed) and indexed[layer]),
            heads=heads[layer],
            heads_kv=heads_kv[layer] if heads_kv[layer] >= 0 else heads[layer],
            shapes=inside[layer],
        )
        if kind not in kinds:
            kinds.append(kind)
        order.append(kinds.index(kind))
    size = len(outside) + sum(len(kind.shapes) for kind in kinds)
    if size > MAX_OUTLINE or len(numbers) > MAX_OUTLINE:
        return None
    return GraphOutline(numbers=numbers, shapes=outside, kinds=kinds, layers=order)


def _traits(header: Header, layers: _Layers, layer: int, shapes: dict[str, list[int]], *, indexed: bool) -> str:
    step = known.UNROTATED.get(header.architecture, 0)
    mixing = header.number("interleave_moe_layer_step", 1) if header.architecture in known.IDLE_EXPERTS else 1
    flags = {
        "r": layers.recurrent[layer],
        "a": layers.heads_kv[layer] > 0,
        "w": bool(layers.sliding) and layers.sliding[layer],
        "e": any("_exps" in name for name in shapes) and (layer + 1) % max(mixing, 1) == 0,
        "i": indexed,
        "n": bool(step) and (layer + 1) % step == 0,
    }
    return "".join(letter for letter, flag in flags.items() if flag)


def _layer_of(name: str) -> int | None:
    """Give the number in blk.N.*, or None; encoder blocks and the like count as outputs, which are always loaded."""
    prefix, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    return int(number) if prefix == "blk" and number.isascii() and number.isdigit() else None


def _group(tensors: list[Tensor]) -> TensorGroup:
    return TensorGroup(
        bytes=sum(_align(tensor.bytes) for tensor in tensors),
        count=len(tensors),
        padded=sum(_padded(tensor) for tensor in tensors),
    )


def _padded(tensor: Tensor) -> int:
    """Bytes on a CUDA device (ggml-cuda.cu:897-920): the last row of a quantized tensor is read in blocks of 512."""
    element = type_numbered(tensor.type)
    size, rest = tensor.bytes, tensor.shape[0] % _CUDA_ROW if tensor.shape else 0
    if element is not None and element.block > 1 and rest:
        size += element.row(_CUDA_ROW - rest)
    return -(-size // _CUDA_ALIGNMENT) * _CUDA_ALIGNMENT


def _align(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _short(sizes: list[int]) -> list[int]:
    """Give one element for all where they are alike."""
    return sizes[:1] if len(set(sizes)) == 1 else sizes

"""Says how the shapes of the tensors of a part are made, each from those that it is computed from where it can be."""

from typing import Final

from estimate.derive.graph import Tensor
from estimate.derive.search import ROTATION, Search
from paddock.core.ggml import ELEMENTS

Vector = tuple[int, ...]
Axes = list[tuple[Vector, str]]
"""Of each axis the length in every sample, and its expression."""
_STATEFUL: Final = frozenset({"SSM_SCAN", "GATED_DELTA_NET", "RWKV_WKV6", "RWKV_WKV7", "GATED_LINEAR_ATTN"})
"""Their result holds the new state behind the values."""


class Shapes:
    """The shapes that were explained so far."""

    def __init__(self, samples: list[dict[str, int]]) -> None:
        self.search = Search(samples)
        self.known: list[Axes | None] = []

    def size(self, found: list[tuple[Tensor, str | None]], sources: tuple[int, ...], *, view: bool) -> str | None:
        """Give the element type and the expression of each dimension, ones left out; None when there is none."""
        tensors = [tensor for tensor, _ in found]
        axes = self._axes(found, sources)
        self.known.append(axes)
        if axes is None or len({tensor.type for tensor in tensors}) > 1:
            return None
        kind, keys = tensors[0].type, matrix_of_keys(found, self.search)
        if keys is not None:
            return keys
        if all(is_rotation(tensor, weight) for tensor, weight in found):  # the block may be any, the product is not
            whole = self.search.pair(tuple(tensor.shape[0] * tensor.shape[1] for tensor in tensors))
            if whole is not None:
                self.known[-1] = None
                return f"{kind},{whole}"
        if all(product(tensor) == tensor.bytes for tensor in tensors):
            last = max((axis for axis, (vector, _) in enumerate(axes) if set(vector) != {1}), default=0)
            return ",".join([str(kind), *(text for vector, text in axes[: last + 1] if set(vector) != {1} or not last)])
        return self._strided(tensors, axes, sources) if view else self._raw(tensors)

    def _raw(self, tensors: list[Tensor]) -> str | None:
        raw = self.search.find(tuple(tensor.bytes for tensor in tensors))
        return None if raw is None else f"24,{raw}"

    def _strided(self, tensors: list[Tensor], axes: Axes, sources: tuple[int, ...]) -> str | None:
        """Give the lengths of the axes by their strides, each after the first with its own; ones are left out."""
        if any(ELEMENTS[tensor.type].block != 1 for tensor in tensors):
            return None
        width = ELEMENTS[tensors[0].type].row(1)
        strides = [tuple(tensor.strides[axis] // width for tensor in tensors) for axis in range(4)]
        order = sorted((axis for axis in range(4) if set(axes[axis][0]) != {1}), key=lambda axis: strides[axis])
        if not order or set(strides[order[0]]) != {1}:
            return None
        words, below = [f"~{tensors[0].type}", axes[order[0]][1]], axes[order[0]]
        for place, axis in enumerate(order[1:], start=1):
            stride = self._step(strides[axis], place, sources, below)
            if stride is None:
                return None
            words += [axes[axis][1], stride]
            below = strides[axis], stride
        return ",".join(words)

    def _step(self, target: Vector, axis: int, sources: tuple[int, ...], below: tuple[Vector, str]) -> str | None:
        """Give a stride: so many steps of the axis below, or a length of its own."""
        pairs = [divmod(value, own) if own else (0, 1) for value, own in zip(target, below[0], strict=True)]
        steps = tuple(times for times, _ in pairs)
        if axis > 1 and all(steps) and not any(rest for _, rest in pairs):
            count = self._length(steps, 0, sources)
            if count is not None:
                return f"*:{below[1]}:{count}"
        return self._length(target, 0, sources)

    def _axes(self, found: list[tuple[Tensor, str | None]], sources: tuple[int, ...]) -> Axes | None:
        tensors = [tensor for tensor, _ in found]
        axes: Axes = []
        for axis in range(4):
            target = tuple(tensor.shape[axis] for tensor in tensors)
            text: str | None = "1"
            if set(target) != {1}:
                hints = [f"@{name}.1" for name in {name for _, name in found if name} if axis == 0]
                text = next((hint for hint in hints if self.search.vectors.get(hint) == target), None)
                text = text or self._made(tensors, axis, sources) or self._length(target, axis, sources)
            if text is None:
                return None
            axes.append((target, text))
        return axes

    def _made(self, tensors: list[Tensor], axis: int, sources: tuple[int, ...]) -> str | None:
        """Explain an axis by what the operation does with the sources' shapes."""
        target = tuple(tensor.shape[axis] for tensor in tensors)
        shapes = [self.known[source] for source in sources]
        if tensors[0].op == "CONCAT" and len(shapes) == 2 and shapes[0] and shapes[1]:
            (one, first), (other, second) = shapes[0][axis], shapes[1][axis]
            if target == tuple(map(sum, zip(one, other, strict=True))):
                return f"+:{first}:{second}"
        if tensors[0].op in _STATEFUL and axis == 0:
            return next(filter(None, (self._with_state(target, shape) for shape in shapes if shape)), None)
        return None

    def _with_state(self, target: Vector, shape: Axes) -> str | None:
        whole, text = (1,) * len(target), ""
        for vector, own in shape:
            if set(vector) != {1}:
                whole = tuple(a * b for a, b in zip(whole, vector, strict=True))
                text = f"*:{own}:{text}" if text else own
        rest = tuple(a - b for a, b in zip(target, whole, strict=True))
        state = self.search.find(rest) if min(rest) > 0 and text else None
        return f"+:{text}:{state}" if state else None

    def _length(self, target: Vector, axis: int, sources: tuple[int, ...]) -> str | None:
        """Give a source's expression of the same length, the same axis first, or find one."""
        shapes = [self.known[source] for source in sources]
        for shape in shapes:
            if shape and shape[axis][0] == target:
                return shape[axis][1]
        for shape in shapes:
            for vector, text in shape or ():
                if vector == target:
                    return text
        for shape in shapes:
            for (one, first), (other, second) in zip(shape or (), (shape or ())[1:], strict=False):
                both = tuple(a * b for a, b in zip(one, other, strict=True))
                if target == both and {1} not in (set(one), set(other)):
                    return f"*:{first}:{second}"
        return self.search.find(target)


def matrix_of_keys(found: list[tuple[Tensor, str | None]], search: Search) -> str | None:
    """Give the size of the matrix that keys of a quantized cache are rotated with, which is often as wide as a head."""
    named = all("attn_inp_k_rot" in tensor.name for tensor, _ in found)
    squares = named and all(tensor.shape == (*tensor.shape[:1] * 2, 1, 1) for tensor, _ in found)
    wide = squares and search.vectors.get("rk") == tuple(tensor.shape[0] for tensor, _ in found)
    return f"{found[0][0].type},rk,rk" if wide else None


def is_rotation(tensor: Tensor, weight: str | None) -> bool:
    """Say whether a tensor is a step of the rotation of a quantized cache."""
    flat = weight is None and tensor.shape[2:] == (1, 1)
    return flat and tensor.op in {"MUL_MAT", "CONT"} and not tensor.shape[0] % ROTATION


def product(tensor: Tensor) -> int:
    """Give the bytes of a tensor without gaps."""
    total = ELEMENTS[tensor.type].row(tensor.shape[0])
    for size in tensor.shape[1:]:
        total *= size
    return total

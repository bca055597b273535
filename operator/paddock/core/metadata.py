"""What the header of a model says, by key: every number is checked before it is believed."""

from collections.abc import Sequence
from typing import Final, NoReturn

from paddock.core import architectures as known
from paddock.core.gguf import GgufError, GgufMetadata, Skipped

MAX_LAYERS: Final = 512
"""LLAMA_MAX_LAYERS."""
MAX_SIZE: Final = 2**31 - 1
"""Largest width, head count or context length that is believed."""


class Header:
    """The metadata of the first part, the tensors of all; raises GgufError."""

    def __init__(self, parts: Sequence[GgufMetadata]) -> None:
        if not parts:
            raise GgufError("ModelUnsupported", "no file was read")
        self.values = parts[0].values
        self.tensors = [tensor for part in parts for tensor in part.tensors]
        self.architecture = self._architecture()
        self._check_parts(parts)
        self.layer_count = self._layer_count()

    def fail(self, message: str) -> NoReturn:
        """Raise a GgufError without an offset: the fault is in what the header says, not in how."""
        raise GgufError("ModelUnsupported", message)

    def _architecture(self) -> str:
        architecture = self.text("general.architecture")
        kind = self.text("general.type") or "model"
        if not architecture:
            self.fail("general.architecture is missing")
        if kind != "model":
            self.fail(f"the file is of the type {kind!r}, not a model")
        if architecture in known.NOT_MODELS:
            self.fail(f"the file holds {known.NOT_MODELS[architecture]} (architecture {architecture})")
        return architecture

    def _check_parts(self, parts: Sequence[GgufMetadata]) -> None:
        declared = self.plain("split.count") or 1
        number = self.plain("split.no") or 0
        if number:
            self.fail(
                f"this is part {number + 1} of a split model: name the first part, ...-00001-of-{declared:05}.gguf"
            )
        if declared != len(parts):
            self.fail(f"the model is split into {declared} files, but {len(parts)} belong to this name")
        for position, part in enumerate(parts[1:], start=1):
            if part.values.get("split.no") != position:
                self.fail(f"file {position + 1} of the split model says that it is another part")
        tensors = self.plain("split.tensors.count")
        if declared > 1 and tensors is not None and tensors != len(self.tensors):
            self.fail(f"the model has {tensors} tensors, but its files hold {len(self.tensors)}")
        if not self.tensors:
            self.fail("the file holds no tensors (a vocabulary only?)")
        if len({tensor.name for tensor in self.tensors}) != len(self.tensors):
            self.fail("a tensor is in two files of the split model")

    def _layer_count(self) -> int:
        count = self.optional("block_count")
        if count is None or not 1 <= count <= MAX_LAYERS:
            self.fail(f"{self.architecture}.block_count is {count}, not between 1 and {MAX_LAYERS}")
        return count

    def text(self, key: str) -> str | None:
        """Give a short string; None when it is missing."""
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def plain(self, key: str) -> int | None:
        """Give a whole number by its full key; None when it is missing or of another type."""
        value = self.values.get(key)
        return value if type(value) is int else None

    def optional(self, key: str) -> int | None:
        """Give a size by its key below the architecture, the largest of an array; None when it is missing."""
        full = f"{self.architecture}.{key}"
        value = self.values.get(full)
        if value is None:
            return None
        sizes = value if isinstance(value, tuple) else (value,)
        return max((self._size(full, size) for size in sizes), default=None)

    def number(self, key: str, default: int = 0) -> int:
        """Give a size by its key below the architecture, the largest of an array, or the default."""
        value = self.optional(key)
        return default if value is None else value

    def array(self, key: str) -> list[int] | None:
        """Give the elements of an array, one per layer; None when there is none."""
        full = f"{self.architecture}.{key}"
        value = self.values.get(full)
        return [self._size(full, size) for size in value] if isinstance(value, tuple) else None

    def per_layer(self, key: str, default: int) -> list[int]:
        """Give a size for each layer; missing ends of an array repeat its largest element."""
        sizes = self.array(key)
        if not sizes:
            return [self.number(key, default)] * self.layer_count
        return (sizes + [max(sizes)] * self.layer_count)[: self.layer_count]

    def _size(self, key: str, value: object) -> int:
        if not isinstance(value, int) or not 0 <= value <= MAX_SIZE:
            said = f"an array of {value.length}" if isinstance(value, Skipped) else repr(value)
            self.fail(f"{key} is {said}, not a whole number from 0 to {MAX_SIZE}")
        return int(value)

"""Where tensors are put by their names, instead of beside their layer: -ot and --n-cpu-moe."""

import re
from collections.abc import Sequence
from typing import Final

from paddock.core.geometry import Options
from paddock.core.homes import HOST, homes
from paddock.core.summary import Loaded

_NUMBER: Final = re.compile(r"[0-9]+$")


class DivisionError(ValueError):
    """What is asked for cannot be; the text says why."""


class Overrides:
    """What options put elsewhere; raises DivisionError where a pattern or a device is none."""

    def __init__(self, options: Options) -> None:
        self._count = max(len(options.shares), 1)
        self._experts = options.cpu_moe
        self._named = [(_pattern(text), self._target(where)) for text, where in options.overrides]

    def __bool__(self) -> bool:
        return bool(self._named)

    def of(self, tensor: Loaded) -> int | None:
        """Give the number of the device that a tensor is put on, or HOST; None where it stays with its layer."""
        if tensor.expert and 0 <= tensor.layer < self._experts:
            return HOST
        return next((place for pattern, place in self._named if pattern.search(tensor.name)), None)

    def _target(self, where: str) -> int:
        if where == "CPU":
            return HOST
        number = _NUMBER.search(where)
        if number is None or int(number[0]) >= self._count:
            raise DivisionError(
                f"{where} is none of the {self._count} devices: give CPU, or a name that ends in a number"
            )
        return int(number[0])


def places(tensors: Sequence[Loaded], options: Options) -> dict[str, int]:
    """Give where each tensor of a model is by its name, as the first of that name; raises DivisionError."""
    layers, overrides = max((one.layer for one in tensors), default=0), Overrides(options)
    on_device = layers + 1 if options.gpu_layers is None else min(max(options.gpu_layers, 0), layers + 1)
    of_layers = homes(layers, on_device, options.shares)
    found: dict[str, int] = {}
    for one in tensors:
        moved = overrides.of(one)
        usual = of_layers[one.layer] if one.layer >= 0 else HOST
        found.setdefault(one.name, usual if moved is None else moved)
    return found


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise DivisionError(f"{text!r} is no pattern: {error}") from error

"""Models that are split into several files, NAME-00001-of-00003.gguf and so on: which files, and all their headers."""

import re
from collections.abc import Callable
from typing import Final

from paddock.core.gguf import MAX_TENSORS, GgufError, GgufMetadata
from paddock.core.summary import MAX_PARTS

_SPLIT_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)


def part_names(name: str, first: GgufMetadata) -> list[str]:
    """Give the names of all files of the model whose first file is `name`; raises GgufError."""
    count, own = first.values.get("split.count", 1), first.values.get("split.no", 0)
    if not isinstance(count, int) or count <= 1:
        return [name]
    matched = _SPLIT_NAME.fullmatch(name)
    if own != 0:
        stem = matched["stem"] if matched else "NAME"
        message = f"this is a later part of a split model: name the first part, {stem}-00001-of-{count:05}.gguf"
        raise GgufError("ModelUnsupported", message)
    if matched is None or int(matched["number"]) != 1 or int(matched["count"]) != count:
        expected = f"NAME-00001-of-{count:05}.gguf"
        message = f"part of a model of {count} files, so it must be called {expected}"
        raise GgufError("ModelUnsupported", message)
    if count > MAX_PARTS:
        raise GgufError("ModelUnsupported", f"split into {count} files, at most {MAX_PARTS} are supported")
    return [f"{matched['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def read_parts(name: str, read: Callable[[str], GgufMetadata]) -> list[GgufMetadata]:
    """Read the headers of all files of a model by a function that reads one of them; raises what that raises too."""
    first = read(name)
    parts = [first]
    tensors = len(first.tensors)
    for sibling in part_names(name, first)[1:]:
        parts.append(read(sibling))
        tensors += len(parts[-1].tensors)
        if tensors > MAX_TENSORS:
            raise GgufError("ModelUnsupported", f"the files hold more than {MAX_TENSORS} tensors")
    return parts

"""The templates of graphs that ship with the package: data, read once."""

import gzip
import json
from functools import cache
from importlib.resources import files
from typing import Final

from paddock.core.graphs import Templates

STEPS: Final = "graphs.json.gz"
OPERATIONS: Final = "operations.json.gz"
"""Both are made by tests/estimate/derive, and hold the number of llama.cpp's build."""


@cache
def templates(name: str = STEPS) -> Templates:
    """Give all templates: the allocator's steps, or the operations of graphs."""
    found = json.loads(gzip.decompress(files("paddock.core").joinpath(name).read_bytes()))
    return Templates(int(found["build"]), tuple(found["bodies"]), found["graphs"], found["names"], found["leftOut"])

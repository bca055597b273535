"""The templates of graphs that ship with the package: data, read once."""

import gzip
import json
from functools import cache
from importlib.resources import files
from typing import Final

from paddock.core.graphs import Templates

NAME: Final = "graphs.json.gz"
"""Made by tests/estimate/derive; holds the number of llama.cpp's build."""


@cache
def templates() -> Templates:
    """Give all templates."""
    found = json.loads(gzip.decompress(files("paddock.core").joinpath(NAME).read_bytes()))
    return Templates(int(found["build"]), tuple(found["bodies"]), found["graphs"], found["names"], found["leftOut"])

"""What the node's cache of fetched models holds: a look at its folders, never at the weights."""

import contextlib
import re
import stat
from pathlib import Path
from typing import Final

from paddock.api.report import CachedModel

FOLDER: Final = "models"
"""Folder of the cache in which each content that is there whole has a folder, called by its key."""
MOST: Final = 2000
"""Models that a report names."""
_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def list_cache(cache: Path | None) -> list[CachedModel] | None:
    """Give what is there whole, by key; None where the node has no cache, or it cannot be read."""
    if cache is None or not cache.is_dir():
        return None
    try:
        names = sorted(one.name for one in (cache / FOLDER).iterdir())
    except FileNotFoundError:
        return []  # Nothing was fetched yet.
    except OSError:
        return None
    found = [(name, _bytes(cache / FOLDER / name)) for name in names if _KEY.fullmatch(name)]
    return [CachedModel(key=name, bytes=size) for name, size in found if size is not None][:MOST]


def changed(cache: Path | None) -> int:
    """Give a number that is another one whenever a model came or went: the time of the last change of the folder."""
    try:
        return (cache / FOLDER).stat().st_mtime_ns if cache is not None else 0
    except OSError:
        return 0


def _bytes(folder: Path) -> int | None:
    """Add up the model files of a folder; None when it has none, for example since it is being removed."""
    total, files = 0, 0
    with contextlib.suppress(OSError):
        for one in folder.iterdir():
            found = one.stat()
            if not one.name.startswith(".") and stat.S_ISREG(found.st_mode):
                total, files = total + found.st_size, files + 1
    return total if files else None

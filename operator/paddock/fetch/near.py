"""What needs no network: contents that the cache has whole already, found or held within a few hundredths of a second.

A server waits for this, and a process that holds stays as long as it does. So nothing is imported here that is slow or
large: neither pydantic nor what speaks to servers. What is unusual is left to `commands`, which says what is wrong.
"""

import json
import os
import re
import signal
import sys
import time
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from paddock.fetch.locks import lease

DESCRIPTION: Final = ".model.json"
"""In the folder of each model: what it is."""
_DIGEST: Final = re.compile(r"(?:sha256:)?([0-9A-Fa-f]{64})")


class _Wanted(NamedTuple):
    key: str
    sha256: tuple[str, ...]


def found(arguments: Namespace) -> bool:
    """Do `get` where the cache has all that is asked for by key; False, and nothing said, where it has not.

    Where a Secret is named, it is left to `commands` to say whether it is one.
    """
    began = time.monotonic()
    wanted = _wanted(arguments)
    if wanted is None:
        return False
    with ExitStack() as leases:
        models = [_held(arguments.cache, one.key, leases) for one in wanted]
        there = [model for model in models if model is not None]
        if len(there) < len(wanted) or not all(map(_as_expected, there, wanted)):
            return False
        last = there[-1]
        files = [file for model in reversed(there) for file in model["files"]]
        _say(
            {
                "event": "done",
                "key": last["key"],
                "path": f"models/{last['key']}/{last['files'][0]['name']}",
                "files": files,
                "bytes": sum(file["bytes"] for file in files),
                "fetched": 0,
                "seconds": round(time.monotonic() - began, 3),
            }
        )
    return True


def held(arguments: Namespace) -> bool:
    """Do `hold` until SIGTERM; False, and nothing said, where the cache does not have all of it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    with ExitStack() as leases:
        models = [_held(arguments.cache, key, leases) for key in arguments.key]
        if None in models:
            return False
        for model in models:
            _say({"event": "held", **(model or {})})
        signal.sigwait((signal.SIGTERM, signal.SIGINT))
    return True


def _wanted(arguments: Namespace) -> list[_Wanted] | None:
    """Give what is asked for, the model last; None where something is not asked for by key, or with a Secret."""
    try:
        further = [json.loads(text) for text in arguments.beside]
        asked = [(one["key"], one.get("credentials"), one.get("sha256")) for one in further]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    asked.append((arguments.key, arguments.credentials, None))
    if any(not isinstance(key, str) or credentials is not None for key, credentials, _ in asked):
        return None
    digests = [[sha256] if sha256 is not None else [] for _, _, sha256 in asked[:-1]] + [arguments.sha256]
    return [_Wanted(key, tuple(each)) for (key, _, _), each in zip(asked, digests, strict=True)]


def _held(cache: Path, key: str, leases: ExitStack) -> dict[str, Any] | None:
    """Hold a model and count it as used now; None where it is not here as a whole."""
    if not key.isalnum() or not key.isascii():
        return None
    place = cache / "models" / key
    try:
        descriptor = lease(place / DESCRIPTION)
        if descriptor is None:
            return None
        leases.callback(os.close, descriptor)
        model = json.loads((place / DESCRIPTION).read_bytes())
        whole = all((place / file["name"]).stat().st_size == file["bytes"] for file in model["files"])
        if not whole or not model["files"] or model["key"] != key:
            return None
        os.utime(place / DESCRIPTION)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(model)


def _as_expected(model: dict[str, Any], wanted: _Wanted) -> bool:
    digests = [_DIGEST.fullmatch(str(text)) for text in wanted.sha256]
    files = model["files"]
    return not digests or (
        len(files) == 1 and all(one and files[0].get("digest") == f"sha256:{one[1].lower()}" for one in digests)
    )


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
    sys.stdout.flush()

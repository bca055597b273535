"""The commands of `paddock-fetch`, see main.py, with all that they may need."""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from paddock.api.base import Model
from paddock.api.fetched import EXIT_CODES, Further, Progress
from paddock.core.source import RemoteSource, parse_remote
from paddock.fetch.cache import Cache, Shelf, disk_fault
from paddock.fetch.credentials import read_credentials
from paddock.fetch.failures import FetchError
from paddock.fetch.get import Order, get_all
from paddock.fetch.settings import Settings, SettingsError, load_settings

HEADER_PREFIX: Final = "PADDOCK-HEADER "
"""How the line of `header` begins, as that of an inspector pod."""

_FAULT, _WRONG_USAGE = 1, 2
_HEADER_PATIENCE: Final = 30.0
"""Seconds that `header` tries at most: whoever asks will ask again."""
_DIGEST: Final = re.compile(r"(?:(?P<name>[^=]+)=)?(?:sha256:)?(?P<hex>[0-9A-Fa-f]{64})")


class UsageError(Exception):
    """The arguments are wrong; the text says how."""


def run(arguments: argparse.Namespace) -> int:
    """Run a command; gives the exit code."""
    try:
        return _COMMANDS[arguments.command](arguments)
    except (UsageError, SettingsError) as error:
        sys.stderr.write(f"paddock-fetch: {error}\n")
        return _WRONG_USAGE
    except FetchError as error:
        _say(error.said())
        return EXIT_CODES[error.failure]
    except OSError as error:
        fault = disk_fault(error, getattr(arguments, "cache", Path("/")))
        _say(fault.said())
        return EXIT_CODES[fault.failure]
    except Exception as error:  # noqa: BLE001 - its text could hold what is secret
        sys.stderr.write(f"paddock-fetch: a fault of the program: {type(error).__name__}{_where(error)}\n")
        return _FAULT


def _header(arguments: argparse.Namespace) -> int:
    """Print the answer; whatever is wrong is an answer too, so the exit code is always 0."""
    from paddock.api.answer import SourceAnswer  # noqa: PLC0415 the rest starts sooner without these
    from paddock.api.report import HeaderFault  # noqa: PLC0415
    from paddock.fetch.header import header  # noqa: PLC0415

    settings = _settings()
    settings = settings.model_copy(update={"patience": min(settings.patience, _HEADER_PATIENCE)})
    source = _source(arguments.source)
    try:
        answer = header(source, read_credentials(arguments.credentials), settings)
    except FetchError as error:
        answer = SourceAnswer(failure=error.said())
    except Exception as error:  # noqa: BLE001 - whoever asked must hear of it, without what may be secret
        message = f"a fault of the program: {type(error).__name__}{_where(error)}"
        answer = SourceAnswer(fault=HeaderFault(code="InspectionFailed", message=message))
    sys.stdout.write(HEADER_PREFIX + json.dumps(answer.to_dict(), separators=(",", ":")) + "\n")
    return 0


def _get(arguments: argparse.Namespace) -> int:
    own = Order(
        source=_source(arguments.source),
        credentials=read_credentials(arguments.credentials),
        settings=_settings(),
        key=arguments.key,
        digests=dict(_digest(text) for text in arguments.sha256),
        limit=arguments.limit,
        name=arguments.name,
        bytes=arguments.bytes,
    )
    further = [_further(text, own) for text in arguments.beside]
    _say(get_all([*further, own], Cache(arguments.cache), _once_a_second()))
    return 0


def _further(text: str, own: Order) -> Order:
    try:
        asked = Further.model_validate_json(text)
    except ValidationError as error:
        raise UsageError(f"--beside: {error.errors(include_input=False)[0]['msg']}") from None
    return Order(
        source=_source(asked.source),
        credentials=read_credentials(Path(asked.credentials) if asked.credentials is not None else None),
        settings=own.settings,
        key=asked.key,
        digests=dict([_digest(asked.sha256)] if asked.sha256 is not None else []),
        limit=own.limit,
        name=asked.name,
        bytes=asked.bytes,
    )


def _hold(arguments: argparse.Namespace) -> int:
    """Say what is missing: near.py holds what is there."""
    cache = Cache(arguments.cache)
    missing = [key for key in arguments.key if cache.model(key) is None]
    raise FetchError("NotFound", f"the cache has no model {', '.join(missing or arguments.key)}")


def _cache(arguments: argparse.Namespace) -> int:
    cache = Cache(arguments.cache)
    keys: list[str] | None = arguments.key or None
    match str(arguments.action):
        case "list":
            for shelf in cache.shelves():
                _say_raw(_shelf(shelf))
        case "verify":
            return _verify(cache, keys)
        case "clean":
            if arguments.limit is None:
                raise UsageError("clean needs --limit BYTES")
            cache.prepare()
            for model in cache.clean(arguments.limit):
                _say_raw({"event": "removed", "key": model.key, "source": model.source, "bytes": model.bytes})
            _say_raw({"event": "cleaned", "bytes": cache.used_bytes()})
        case "clear":
            cache.prepare()
            for model in cache.clear(keys):
                _say_raw({"event": "removed", "key": model.key, "source": model.source, "bytes": model.bytes})
            _say_raw({"event": "cleared", "bytes": cache.used_bytes()})
        case other:
            raise UsageError(f"{other} is no action")
    return 0


def _verify(cache: Cache, keys: list[str] | None) -> int:
    code = 0
    for model in cache.models():
        if keys is None or model.key in keys:
            wrong = cache.verify(model)
            _say_raw({"event": "verified", "key": model.key, "ok": wrong is None, "message": wrong})
            code = code if wrong is None else EXIT_CODES["Corrupt"]
    return code


def _shelf(shelf: Shelf) -> dict[str, object]:
    return {
        "event": "model",
        **shelf.model.to_dict(),
        "bytes": shelf.model.bytes,
        "path": shelf.model.path,
        "used": round(shelf.used, 3),
        "inUse": shelf.in_use,
    }


_COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "header": _header,
    "get": _get,
    "hold": _hold,
    "cache": _cache,
}


def _settings() -> Settings:
    return load_settings(os.environ)


def _source(text: str) -> RemoteSource:
    source = parse_remote(text)
    if isinstance(source, str):
        raise UsageError(source)
    return source


def _digest(text: str) -> tuple[str, str]:
    found = _DIGEST.fullmatch(text)
    if found is None:
        raise UsageError("--sha256 takes 64 hexadecimal digits, or NAME= before them")
    return found["name"] or "", "sha256:" + found["hex"].lower()


def _once_a_second() -> Callable[[Progress], None]:
    """Give a function that prints progress where it differs from what was printed last."""
    last: list[Progress] = []

    def say(progress: Progress) -> None:
        if not last or last[0] != progress:
            last[:] = [progress]
            _say(progress)

    return say


def _say(line: Model) -> None:
    _say_raw(line.to_dict())


def _say_raw(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _where(error: Exception) -> str:
    """Give the innermost place in the source, which tells developers enough."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"

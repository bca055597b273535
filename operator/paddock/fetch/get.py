"""`paddock-fetch get`: a model into the cache, each file once for all processes of the node."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from paddock.api.fetched import Done, Progress, SourceFile
from paddock.core.gguf import GgufError, read_gguf
from paddock.core.source import RemoteSource, names_one_version
from paddock.fetch.cache import Cache, CachedModel, disk_fault, free_bytes, short, sync_folder
from paddock.fetch.credentials import Credentials
from paddock.fetch.download import Download
from paddock.fetch.failures import FetchError
from paddock.fetch.locks import lease, locked, try_lock, unlock
from paddock.fetch.remote import Remote, RemoteFile
from paddock.fetch.settings import Settings
from paddock.fetch.sources import open_source

SPARE: Final = 64 * 1024 * 1024
"""Bytes of the disk that a fetch leaves free."""

_POLL: Final = 0.25
"""Seconds between two looks at a lock that another process holds."""
_PAUSE: Final = 1.0
"""Seconds before a file is fetched from its beginning again."""
_SPEED_OVER: Final = 10.0
"""Seconds that the speed is taken over."""
_AFRESH: Final = 2
"""Times that a file is fetched from its beginning before its fault is believed."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be fetched."""

    source: RemoteSource
    credentials: Credentials
    settings: Settings
    key: str | None = None
    """The content that is expected; None = whatever the source means now."""
    digests: dict[str, str] = field(default_factory=dict)
    """sha256:HEX that files must have, by name; the name "" means the only file."""
    limit: int | None = None
    """Bytes that the cache may hold; None = as much as the disk."""
    name: str = ""
    """What messages call it, where several contents are fetched."""
    bytes: int = 0
    """Of all files, where that is known beforehand."""


def get_all(orders: Sequence[Order], cache: Cache, say: Callable[[Progress], None]) -> Done:
    """Bring several contents into the cache, one after the other; the last is the model. Raises FetchError.

    All are held until the last one is here, so that none is cleaned away for another.
    """
    total, before, fetched, seconds = sum(one.bytes for one in orders), 0, 0, 0.0
    files: list[SourceFile] = []
    with ExitStack() as leases:
        for order in orders:

            def told(one: Progress, before: int = before) -> None:
                here, whole = before + one.bytes, max(total, before + one.total)
                percent = round(100 * here / whole, 1) if whole else 100.0
                say(one.model_copy(update={"bytes": here, "total": whole, "percent": percent}))

            try:
                done = get(order, cache, told if total else say)
            except FetchError as error:
                error.message = f"{order.name}: {error.message}" if order.name else error.message
                raise
            leases.enter_context(cache.held(done.key))
            before, fetched, seconds = before + done.bytes, fetched + done.fetched, seconds + done.seconds
            files = [*done.files, *files]
    return done.model_copy(update={"files": files, "bytes": before, "fetched": fetched, "seconds": round(seconds, 3)})


def get(order: Order, cache: Cache, say: Callable[[Progress], None]) -> Done:
    """Bring a model into the cache, or find it there; raises FetchError.

    What is asked for by key, or by a source that names one version, needs no network when it is here. Otherwise the
    source is asked whether it has changed; where it cannot be reached, what it meant last is taken.
    """
    began = time.monotonic()
    cache.prepare()
    found = _here(order, cache)
    if found is None:
        try:
            return _ask(order, cache, say, began)
        except FetchError as error:
            found = cache.known(str(order.source)) if error.failure == "Unreachable" and order.key is None else None
            if found is None:
                raise
    with cache.held(found.key) as model:
        if model is None:
            raise FetchError("Unreachable", "the model was removed from the cache this very moment", transient=True)
        _check_digests(order, model.files)
        return _done(model, 0, began)


def _ask(order: Order, cache: Cache, say: Callable[[Progress], None], began: float) -> Done:
    """Look at the source and fetch; once more where it gets other content in the middle of that."""
    again = order.key is None
    while True:
        try:
            with open_patiently(order.source, order.credentials, order.settings) as remote:
                return _fetch_all(order, remote, cache, say, began)
        except FetchError as error:
            if not error.changed or not again:
                raise
            again = False


def open_patiently(source: RemoteSource, credentials: Credentials, settings: Settings) -> "Opened":
    """Open a source, trying again while its server is out of reach, as long as the settings allow."""
    return Opened(source, credentials, settings)


class Opened:
    """The context of an open source."""

    def __init__(self, source: RemoteSource, credentials: Credentials, settings: Settings) -> None:
        self._asked = (source, credentials, settings)
        self._patience = settings.patience
        self._stack = ExitStack()

    def __enter__(self) -> Remote:
        """Open it; raises FetchError."""
        return patiently(lambda: self._stack.enter_context(open_source(*self._asked)), self._patience)

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._stack.close()


Result = TypeVar("Result")


def patiently(work: Callable[[], Result], patience: float) -> Result:
    """Try until it works, at most `patience` seconds; what a server asks to wait is waited. Raises FetchError."""
    deadline = time.monotonic() + patience
    pause = 0.5
    while True:
        try:
            return work()
        except FetchError as error:
            wait = pause if error.retry_after is None else error.retry_after
            if not error.transient or error.failure != "Unreachable" or time.monotonic() + wait > deadline:
                raise
        time.sleep(wait)
        pause = min(pause * 2, 30.0)


def _here(order: Order, cache: Cache) -> CachedModel | None:
    """Give the model where it is here and cannot have changed."""
    if order.key is not None:
        return cache.model(order.key)
    return cache.known(str(order.source)) if names_one_version(order.source) else None


def _fetch_all(order: Order, remote: Remote, cache: Cache, say: Callable[[Progress], None], began: float) -> Done:
    key = remote.key
    if order.key not in (None, key):
        message = f"{remote.source} has changed: its content is {key} now, not {order.key}"
        raise FetchError("Corrupt", message)
    files = [SourceFile(name=one.name, bytes=one.size, digest=one.digest, etag=one.etag) for one in remote.files]
    _check_digests(order, files)
    with ExitStack() as leases:
        held = cache.model(key)
        fetched = 0
        if held is None:
            meter = _Meter(say, sum(file.size for file in remote.files))
            for number, file in enumerate(remote.files):
                one = _OneFile(order, remote, file, cache, meter)
                files[number] = files[number].model_copy(update={"digest": one.bring(leases)})
                fetched += one.fetched
            _check_digests(order, files)
            held = CachedModel(key=key, source=remote.source, pinned=remote.pinned, files=files)
            try:
                cache.publish(held)
            except OSError as error:
                raise disk_fault(error, cache.folder) from None
        for source in {remote.source, remote.pinned}:
            cache.remember(source, key)
        with cache.held(key) as model:
            return _done(model or held, fetched, began)


def _check_digests(order: Order, files: Sequence[SourceFile]) -> None:
    for name, digest in order.digests.items():
        matching = [file for file in files if file.name == name or (not name and len(files) == 1)]
        if not matching:
            raise FetchError("Corrupt", f"there is no file {name or 'to which the one SHA-256 could belong'}")
        if matching[0].digest not in (None, digest):
            raise FetchError("Corrupt", f"{matching[0].name} has the digest {matching[0].digest}, not {digest}")


def _done(model: CachedModel, fetched: int, began: float) -> Done:
    seconds = round(time.monotonic() - began, 3)
    return Done(key=model.key, path=model.path, files=model.files, bytes=model.bytes, fetched=fetched, seconds=seconds)


class _Meter:
    """Says how far it is."""

    def __init__(self, say: Callable[[Progress], None], total: int) -> None:
        self._say, self._total = say, total
        self._before = 0
        self._samples = [(time.monotonic(), 0)]

    def show(self, file: RemoteFile, here: int, fetched: int, waiting: str | None) -> None:
        now = time.monotonic()
        self._samples = [one for one in self._samples if one[0] > now - _SPEED_OVER] + [(now, fetched)]
        (then, before), span = self._samples[0], now - self._samples[0][0]
        speed = int((fetched - before) / span) if span > 0 and then < now else 0
        here += self._before
        percent = round(100 * here / self._total, 1) if self._total else 100.0
        self._say(
            Progress(
                file=file.name,
                bytes=here,
                total=self._total,
                percent=percent,
                bytes_per_second=max(speed, 0),
                waiting_for=waiting,
            )
        )

    def finished(self, file: RemoteFile) -> None:
        self._before += file.size
        self._samples = [(time.monotonic(), 0)]


class _OneFile:
    """One file of the model, brought into the blobs."""

    def __init__(self, order: Order, remote: Remote, file: RemoteFile, cache: Cache, meter: _Meter) -> None:
        self._order, self._remote, self._file, self._cache, self._meter = order, remote, file, cache, meter
        self.fetched = 0
        given = order.digests.get(file.name) or (order.digests.get("") if len(remote.files) == 1 else None)
        self._expected = file.digest or given

    def bring(self, leases: ExitStack) -> str:
        """Give the digest of the file, which is in the blobs then and held by a lease."""
        identity = self._file.identity
        lock = self._cache.folder / "locks" / f"{short(identity)}.lock"
        while True:
            found = self._cache.blob(self._expected or identity) or self._cache.blob(identity)
            if found is not None and (descriptor := lease(found.resolve())) is not None:
                leases.callback(os.close, descriptor)
                self._meter.finished(self._file)
                return found.resolve().name.replace("-", ":", 1)
            mine = try_lock(lock)
            if mine is None:
                self._wait_a_little(short(identity))
                continue
            try:
                if self._cache.blob(self._expected or identity) or self._cache.blob(identity):
                    continue  # its last owner has just finished
                digest = self._fetch(self._cache.folder / "partial" / short(identity), leases)
            finally:
                unlock(lock, mine)
            self._meter.finished(self._file)
            return digest

    def _wait_a_little(self, name: str) -> None:
        here = 0
        with suppress(OSError):
            found = (self._cache.folder / "partial" / f"{name}.data").stat()
            here = min(found.st_size, found.st_blocks * 512)
        self._meter.show(self._file, here, 0, "another process of this node, which fetches the same file")
        time.sleep(_POLL)

    def _fetch(self, place: Path, leases: ExitStack) -> str:
        self._make_room(place)
        for attempt in range(1, _AFRESH + 1):
            one = Download(self._file, self._remote.transport, self._order.settings)
            try:
                digest = one.run(place, lambda *numbers: self._meter.show(self._file, *numbers))
                self._check(place.with_suffix(".data"), digest)
                break
            except FetchError as error:
                if error.failure == "Corrupt":
                    _forget(place)
                if attempt == _AFRESH and error.failure == "Corrupt":
                    error.transient = False  # the same again: the source is like that
                if attempt == _AFRESH or not error.transient or (self._file.ranges and error.failure != "Corrupt"):
                    raise
                time.sleep(error.retry_after or _PAUSE)
            finally:
                self.fetched += one.fetched
        return self._publish(place, digest, leases)

    def _check(self, data: Path, digest: str) -> None:
        """Check digest and structure before anybody sees the file."""
        if self._expected is not None and digest != self._expected:
            message = f"{self._file.name} arrived with the digest {digest}, not {self._expected}"
            raise FetchError("Corrupt", message, transient=True)
        try:
            with data.open("rb", buffering=0) as stream:
                descriptor = stream.fileno()
                read_gguf(lambda offset, length: os.pread(descriptor, length, offset), self._file.size)
        except GgufError as error:
            raise FetchError("Corrupt", f"{self._file.name} is no whole GGUF file: {error}") from None

    def _publish(self, place: Path, digest: str, leases: ExitStack) -> str:
        data, blob = place.with_suffix(".data"), self._cache.blob_place(digest)
        try:
            data.chmod(0o444)
            descriptor = lease(data)  # before it has a name that a cleanup could find unused
            if descriptor is not None:
                leases.callback(os.close, descriptor)
            if blob.exists():
                data.unlink()
            else:
                data.rename(blob)
                sync_folder(blob.parent)
            if not self._file.digest:
                self._cache.remember_identity(self._file.identity, digest)
            place.with_suffix(".journal").unlink(missing_ok=True)
        except OSError as error:
            raise disk_fault(error, self._cache.folder) from None
        return digest

    def _make_room(self, place: Path) -> None:
        """Check that the file fits, beside what others are fetching; make room where a limit allows it."""
        folder, limit = self._cache.folder, self._order.limit
        with locked(folder / "locks" / "room"):
            missing = self._file.size - _allocated(place.with_suffix(".data"))
            if limit is not None:
                self._cache.clean(limit, missing)
                used = self._cache.used_bytes()
                if used + missing > limit:
                    message = (
                        f"{self._file.name} needs {missing} bytes more, but the cache may hold {limit} "
                        f"and {used} of them are in use"
                    )
                    raise FetchError("OutOfSpace", message)
            promised = _promised(folder, place.with_suffix(".data"))
            free = free_bytes(folder)
            if missing + promised + SPARE > free and limit is not None:
                self._cache.clean(max(0, self._cache.used_bytes() - (missing + promised + SPARE - free)))
                free = free_bytes(folder)
            if missing + promised + SPARE > free:
                message = (
                    f"{self._file.name} needs {missing} bytes more; {free} are free in {folder}, of which {promised} "
                    f"are promised to other fetches and {SPARE} stay free"
                )
                raise FetchError("OutOfSpace", message)
            data = place.with_suffix(".data")
            if not data.exists():
                place.with_suffix(".journal").unlink(missing_ok=True)  # it spoke of other data
            with data.open("ab") as stream:  # so that others count it
                stream.truncate(self._file.size)


def _promised(folder: Path, own: Path) -> int:
    """Bytes that the files which others are fetching now still need."""
    total = 0
    for data in (folder / "partial").glob("*.data"):
        if data == own:
            continue
        lock = folder / "locks" / f"{data.stem}.lock"
        descriptor = try_lock(lock)
        if descriptor is not None:  # begun by a process that was killed
            unlock(lock, descriptor)
            continue
        with suppress(OSError):
            total += data.stat().st_size - _allocated(data)
    return max(total, 0)


def _allocated(data: Path) -> int:
    try:
        found = data.stat()
    except FileNotFoundError:
        return 0
    return min(found.st_size, found.st_blocks * 512)


def _forget(place: Path) -> None:
    place.with_suffix(".journal").unlink(missing_ok=True)
    place.with_suffix(".data").unlink(missing_ok=True)

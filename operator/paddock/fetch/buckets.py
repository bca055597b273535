"""s3://, gs:// and az:// by obstore, which signs requests and speaks each store's dialect."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore import exceptions as failing
from obstore.store import AzureStore, GCSStore, S3Store

from paddock.core.listing import siblings_of
from paddock.core.source import BucketSource
from paddock.fetch.credentials import Credentials
from paddock.fetch.failures import FetchError
from paddock.fetch.remote import Body, Remote, RemoteFile, safe_name
from paddock.fetch.settings import Settings

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

    Store = S3Store | GCSStore | AzureStore

_CHUNK: Final = 256 * 1024
"""Bytes that are taken from the library at once: it holds a few of them for each range."""
_CREDENTIAL_FAULTS: Final = (
    "access key id",
    "invalidaccesskeyid",
    "signaturedoesnotmatch",
    "invalidtoken",
    "expiredtoken",
)
_STATUS: Final = re.compile(r"status code: ([34][0-9]{2})")
_LATER: Final = ("408", "425", "429")
_IDENTITY: Final = "AWS_WEB_IDENTITY_TOKEN_FILE"
"""Set in pods whose service account has a role at AWS."""


class _Chunks:
    """The chunks of a range as a body."""

    def __init__(self, where: str, chunks: Iterator[Any], length: int) -> None:
        self._where, self._chunks, self._left = where, chunks, length
        self._rest = memoryview(b"")

    def readinto(self, buffer: memoryview) -> int:
        """Fill a part of the buffer; 0 = the end. Raises FetchError."""
        if not self._left:
            return 0
        if not self._rest:
            try:
                self._rest = memoryview(next(self._chunks))
            except StopIteration:
                message = f"{self._where} ended its answer {self._left} bytes too early"
                raise FetchError("Unreachable", message, transient=True) from None
            except Exception as error:  # noqa: BLE001 - the library's errors have no common base
                raise _meaning(self._where, error) from None
        count = min(len(buffer), len(self._rest), self._left)
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        self._left -= count
        return count


class BucketTransport:
    """Ranges of objects."""

    def __init__(self, where: str, store: "Store") -> None:
        self._where, self._store = where, store

    def look(self, key: str) -> RemoteFile:
        """Ask for size and version of an object. Raises FetchError."""
        try:
            try:
                found = obstore.head(self._store, key)
            except (failing.NotFoundError, FileNotFoundError):
                found = obstore.get(self._store, key, options={"range": (0, 1)}).meta  # its refusal has a reason
        except Exception as error:  # noqa: BLE001 - the library's errors have no common base
            raise _meaning(f"{self._where}/{key}", error) from None
        name, etag = safe_name(key), found["e_tag"]
        when = found["last_modified"].isoformat()
        return RemoteFile(name, found["size"], f"{self._where}/{key}", etag=etag, version=found["version"] or when)

    @contextmanager
    def body(self, file: RemoteFile, offset: int, length: int) -> Iterator[Body]:
        """Ask for a range of exactly this version of the object."""
        key = file.address.removeprefix(f"{self._where}/")
        options: dict[str, Any] = {"range": (offset, offset + length)}
        if file.etag:
            options["if_match"] = file.etag
        try:
            answer = obstore.get(self._store, key, options=options)  # type: ignore[arg-type] # a dict that is built
        except Exception as error:  # noqa: BLE001 - the library's errors have no common base
            raise _meaning(file.address, error) from None
        if answer.meta["size"] != file.size:
            raise FetchError("Corrupt", f"{file.name} has changed at its source while it was fetched", changed=True)
        yield _Chunks(file.address, iter(answer.stream(min_chunk_size=_CHUNK)), length)

    def close(self) -> None:
        """Do nothing: the library closes its connections itself."""


def open_bucket(source: BucketSource, credentials: Credentials, settings: Settings) -> Remote:
    """Look at an object, and at all parts where its name is that of a split model. Raises FetchError."""
    where = f"{source.scheme}://{source.bucket}"
    try:
        store = _store(source, credentials, settings)
    except FetchError:
        raise
    except Exception as error:  # noqa: BLE001 - the library's errors have no common base
        raise FetchError("Unauthorized", f"{where}: the credentials are not usable ({type(error).__name__})") from None
    transport = BucketTransport(where, store)
    folder, slash, name = source.key.rpartition("/")
    files = [transport.look(f"{folder}{slash}{part}") for part in siblings_of(name)]
    return Remote(str(source), str(source), files, transport)


def _store(source: BucketSource, credentials: Credentials, settings: Settings) -> "Store":
    client, retry = _client(settings), _retry()
    match source.scheme:
        case "s3":
            s3: dict[str, Any] = {
                "aws_access_key_id": credentials.access_key_id,
                "aws_secret_access_key": credentials.secret_access_key,
                "aws_session_token": credentials.session_token,
                "aws_endpoint": credentials.endpoint,
                "aws_region": credentials.region or "us-east-1",
            }
            if credentials.access_key_id is None and _IDENTITY not in os.environ:
                s3["aws_skip_signature"] = True
            return S3Store(source.bucket, config=_given(s3), client_options=client, retry_config=retry)
        case "gs":
            gs: dict[str, Any] = {"google_service_account_key": credentials.service_account}
            if credentials.service_account is None:
                gs["google_skip_signature"] = True
            return GCSStore(source.bucket, config=_given(gs), client_options=client, retry_config=retry)
        case "az":
            if credentials.account_name is None:
                raise FetchError("Unauthorized", "az:// needs a Secret with accountName (and accountKey or sasToken)")
            az: dict[str, Any] = {
                "azure_storage_account_name": credentials.account_name,
                "azure_storage_account_key": credentials.account_key,
                "azure_storage_sas_key": credentials.sas_token,
                "azure_storage_endpoint": credentials.endpoint,
            }
            if credentials.account_key is None and credentials.sas_token is None:
                az["azure_skip_signature"] = True
            return AzureStore(source.bucket, config=_given(az), client_options=client, retry_config=retry)


def _given(options: dict[str, Any]) -> Any:
    return {key: value for key, value in options.items() if value is not None}


def _client(settings: Settings) -> "ClientConfig":
    options: ClientConfig = {
        "allow_http": settings.plain_http,
        "connect_timeout": timedelta(seconds=settings.silence),
        "timeout": timedelta(seconds=settings.patience),
    }
    if settings.ca_file is not None:
        try:
            options["root_certificate"] = settings.ca_file.read_bytes()
        except OSError:
            message = f"{settings.ca_file} holds no certificates that can be read"
            raise FetchError("Untrusted", message) from None
    if settings.proxy is not None:
        options["proxy_url"] = settings.proxy
        if settings.no_proxy:
            options["proxy_excludes"] = ",".join(settings.no_proxy)
    return options


def _retry() -> "RetryConfig":
    """Few tries here: the fetcher has its own, which know how much has arrived."""
    return {"max_retries": 1, "retry_timeout": timedelta(seconds=10)}


def _meaning(where: str, error: Exception) -> FetchError:
    """Say what an error of the library means; its own text may hold addresses with signatures."""
    text = str(error).lower()
    refused = isinstance(error, failing.PermissionDeniedError | failing.UnauthenticatedError)
    if refused or any(word in text for word in _CREDENTIAL_FAULTS):
        return FetchError("Unauthorized", f"{where}: access is refused: a credential is missing, wrong or not enough")
    if isinstance(error, failing.NotFoundError | FileNotFoundError):
        what = "bucket" if "nosuchbucket" in text else "object, or no such bucket"
        return FetchError("NotFound", f"{where}: there is no such {what}")
    if isinstance(error, failing.PreconditionError):
        return FetchError("Corrupt", f"{where} has changed at its source while it was fetched", changed=True)
    if "certificate" in text:
        return FetchError("Untrusted", f"{where}: the certificate of the store is not trusted")
    if "badscheme" in text:
        return FetchError("Untrusted", f"{where}: the endpoint is http://, which the settings do not allow")
    status = _STATUS.search(text)
    if status is not None and status[1] not in _LATER:
        hint = "; is it in the region of the Secret?" if status[1].startswith("3") else ""
        return FetchError("Unreachable", f"{where}: the store refuses the request (status {status[1]}){hint}")
    return FetchError("Unreachable", f"{where} cannot be reached, or does not answer", transient=True)

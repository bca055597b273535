"""The agent's certificate and token, from files that may be replaced while it runs."""

import asyncio
import hmac
import logging
import ssl
from pathlib import Path

_log = logging.getLogger(__name__)

CHECK_INTERVAL = 5.0
"""Seconds between two looks at the certificate's files."""
_SHORTEST_TOKEN = 16

_Stamp = tuple[int, int, int]


class CredentialsError(Exception):
    """A file is missing, unreadable or wrong at start."""


class Credentials:
    """A TLS context that follows its files, and the comparison with the token in its file."""

    def __init__(self, folder: Path) -> None:
        """Read all files; raises CredentialsError when one cannot be used."""
        self._certificate = folder / "tls.crt"
        self._key = folder / "tls.key"
        self._token_file = folder / "token"
        self._token = b""
        self._token_stamp: _Stamp | None = None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._stamps = self._stamp_certificate()
        try:
            self.context.load_cert_chain(self._certificate, self._key)
            self._read_token()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise CredentialsError(f"the credentials in {folder} cannot be used: {error}") from error

    def accepts(self, authorization: str | None) -> bool:
        """Tell whether the header `Authorization` carries the token that is in the file now."""
        self._follow_token()
        scheme, _, given = (authorization or "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(), self._token)
        return same and scheme.lower() == "bearer"

    def reload_certificate(self) -> bool:
        """Use a new certificate for new connections if its files changed; keeps the old one if the new is bad."""
        stamps = self._stamp_certificate()
        if stamps == self._stamps:
            return False
        try:
            # a bad pair would leave the live context half changed
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
            self.context.load_cert_chain(self._certificate, self._key)
        except OSError as error:
            _log.warning("the new certificate cannot be used, the old one stays: %s", error)
            return False
        self._stamps = stamps
        _log.info("uses the new certificate")
        return True

    async def follow_certificate(self, interval: float = CHECK_INTERVAL) -> None:
        """Reload the certificate whenever its files change, for ever."""
        while True:
            await asyncio.sleep(interval)
            self.reload_certificate()

    def _follow_token(self) -> None:
        if _stamp(self._token_file) == self._token_stamp:
            return
        try:
            self._read_token()
        except (OSError, ValueError) as error:
            _log.warning("the new token cannot be used, the old one stays: %s", error)

    def _read_token(self) -> None:
        stamp = _stamp(self._token_file)
        token = self._token_file.read_bytes().strip()
        if len(token) < _SHORTEST_TOKEN:
            raise ValueError(f"{self._token_file} holds fewer than {_SHORTEST_TOKEN} characters")
        self._token, self._token_stamp = token, stamp

    def _stamp_certificate(self) -> tuple[_Stamp | None, _Stamp | None]:
        return _stamp(self._certificate), _stamp(self._key)


def _stamp(path: Path) -> _Stamp | None:
    """Give what changes when a file is replaced or written: Kubernetes swaps a link to another folder."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size

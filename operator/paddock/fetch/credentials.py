"""Credentials: the files of a mounted Secret. Their values never become arguments, environment, log or message."""

import base64
import binascii
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from paddock.fetch.failures import FetchError

MOST: Final = 64 * 1024
"""Bytes of one value; a Secret as a whole has at most 1 MiB."""

_PLAIN: Final = {
    "token": "token",
    "username": "username",
    "password": "password",
    "accessKeyId": "access_key_id",
    "secretAccessKey": "secret_access_key",
    "sessionToken": "session_token",
    "region": "region",
    "endpoint": "endpoint",
    "serviceAccount.json": "service_account",
    "accountName": "account_name",
    "accountKey": "account_key",
    "sasToken": "sas_token",
}
"""Keys of the Secret, and what they are here."""
_DOCKER: Final = (".dockerconfigjson", "config.json")


@dataclass(frozen=True, slots=True)
class Login:
    """User and password for one registry."""

    username: str = field(repr=False)
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the Secret holds; repr() shows no value."""

    token: str | None = field(default=None, repr=False)
    """Bearer token: hf://, https://, oci:// and ollama://."""
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str | None = field(default=None, repr=False)
    endpoint: str | None = field(default=None, repr=False)
    """Address of an own object store."""
    service_account: str | None = field(default=None, repr=False)
    """Key file of a Google service account."""
    account_name: str | None = field(default=None, repr=False)
    account_key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    logins: dict[str, Login] = field(default_factory=dict, repr=False)
    """By registry host."""


NONE: Final = Credentials()
"""Nothing: public sources."""


def read_credentials(folder: Path | None) -> Credentials:
    """Read the files of a mounted Secret; None = there is none. Raises FetchError (Unauthorized)."""
    if folder is None:
        return NONE
    values: dict[str, str] = {}
    logins: dict[str, Login] = {}
    try:
        for name in sorted(one.name for one in folder.iterdir()):
            if name in _PLAIN:
                values[_PLAIN[name]] = _read(folder / name)
            elif name in _DOCKER:
                logins |= _docker_logins(_read(folder / name))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise FetchError("Unauthorized", f"the Secret with the credentials cannot be read: {reason}") from None
    if not values and not logins:
        known = ", ".join([*_PLAIN, _DOCKER[0]])
        raise FetchError("Unauthorized", f"the Secret holds none of the keys {known}")
    return Credentials(**values, logins=logins)


def _read(path: Path) -> str:
    with path.open("rb") as stream:
        raw = stream.read(MOST + 1)
    try:
        text = raw.decode().strip()
    except UnicodeDecodeError:
        text = ""
    if (
        not text
        or len(raw) > MOST
        or "\0" in text
        or (path.suffix != ".json" and path.name not in _DOCKER and "\n" in text)
    ):
        raise FetchError(
            "Unauthorized", f"the key {path.name} of the Secret is empty, too long or not one line of text"
        )
    return text


def _docker_logins(text: str) -> dict[str, Login]:
    """Parse a Docker configuration; the error says nothing of its content."""
    logins = {}
    try:
        for address, entry in json.loads(text)["auths"].items():
            host = address.removeprefix("https://").removeprefix("http://").partition("/")[0]
            if "auth" in entry:
                username, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
            else:
                username, password = str(entry["username"]), str(entry["password"])
            logins[host] = Login(username, password)
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        raise FetchError("Unauthorized", "the Docker configuration in the Secret is not of the usual form") from None
    return logins

"""Settings of `paddock-fetch`, from the environment. None is secret: credentials are files, see credentials.py."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

PREFIX = "PADDOCK_FETCH_"

Seconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]


class SettingsError(ValueError):
    """A variable is unknown or has a bad value; the text has one line for each."""


def _split(text: object) -> object:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if isinstance(text, str) else text


def _address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise ValueError("expected https://HOST[:PORT][/PATH], without user and password")
    return text.rstrip("/")


def _mirrors(pairs: tuple[str, ...]) -> tuple[str, ...]:
    for pair in pairs:
        registry, _, address = pair.partition("=")
        if not registry:
            raise ValueError("expected REGISTRY=https://HOST[:PORT][/PATH]")
        _address(address)
    return pairs


Address = Annotated[str, AfterValidator(_address)]
Words = Annotated[tuple[str, ...], BeforeValidator(_split)]


class Settings(BaseModel):
    """Each is set by the environment variable PADDOCK_FETCH_ and its name in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    ca_file: Path | None = None
    """Certificates (PEM) that are trusted besides those of the system."""
    proxy: Address | None = None
    """HTTP proxy for all requests, http://HOST:PORT."""
    no_proxy: Words = ()
    """Hosts, and domains that begin with a dot, which are reached without the proxy; separated by commas."""
    hub: Address = "https://huggingface.co"
    """Where hf:// leads: Hugging Face, or a mirror that speaks like it."""
    ollama: Address = "https://registry.ollama.ai"
    """Where ollama:// leads unless it names a host."""
    mirrors: Annotated[Words, AfterValidator(_mirrors)] = ()
    """Mirrors of OCI registries: REGISTRY=https://HOST[:PORT][/PATH], separated by commas."""
    plain_http: bool = False
    """Whether http:// is allowed, for sources, registries, endpoints and redirects."""
    connections: Annotated[int, Field(ge=1, le=16)] = 4
    """Ranges that are fetched at the same time."""
    silence: Seconds = 30
    """Seconds that a server may be silent before the connection counts as lost."""
    patience: Seconds = 300
    """Seconds without a new byte after which a fetch gives up."""


def load_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings; raises SettingsError, naming every variable that is wrong."""
    variables = {PREFIX + field.upper(): field for field in Settings.model_fields}
    problems = [
        f"{name} is not a setting of paddock-fetch"
        for name in sorted(environment)
        if name.startswith(PREFIX) and name not in variables
    ]
    values = {field: environment[name] for name, field in variables.items() if environment.get(name)}
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        problems += [f"{PREFIX}{str(one['loc'][0]).upper()}: {one['msg']}" for one in error.errors()]
    if problems:
        raise SettingsError("\n".join(problems))
    return settings

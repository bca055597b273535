"""Every option of the operator: a documented field, read from the environment by the name `PADDOCK_<FIELD>`."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from paddock.core.fetching import Fetcher
from paddock.core.fleet import AUTO, NO_LIMIT
from paddock.core.pod import SERVER_USER
from paddock.core.quantity import parse_quantity
from paddock.core.source import ModelRoot

PREFIX = "PADDOCK_"


class SettingsError(Exception):
    """A setting is unknown or has a bad value; the text says which and what to do."""


class Settings(BaseModel):
    """The operator's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: str = "paddock-system"
    """Namespace of the operator: its Lease, the agents and their Secret."""
    pod_name: str = "paddock-operator"
    """Name of this process in the Lease."""
    watch_namespaces: tuple[str, ...] = ()
    """Namespaces whose ModelDeployments are served; empty means all."""
    agent_secret: str = "paddock-agent"  # noqa: S105 a name
    """Secret with the agents' certificate and token, made by the operator."""
    agent_port: Annotated[int, Field(ge=1, le=65535)] = 9443
    """Port of the agents."""
    agent_image: str = ""
    """Image of pods that read headers and fetch files."""
    agent_ttl: Annotated[float, Field(gt=0)] = 60
    """Seconds after which the devices of a silent agent are not ready."""
    quarantine_seconds: Annotated[float, Field(gt=0)] = 300
    """Seconds for which a deployment gets nothing on a device on which its server was not found, doubled each time; and
    a device nothing at all of which three servers were not found there."""
    model_roots: tuple[ModelRoot, ...] = ()
    """Folders on the nodes for file:// sources."""
    cache_folder: str = ""
    """Folder on the nodes in which fetched files are kept; empty: none, so that sources must name a claim."""
    cache_size: str = ""
    """Most that the cache of a node may hold, as a quantity; empty: as much as there is room for."""
    fetch_environment: dict[str, str] = {}
    """Settings of paddock-fetch in pods that fetch, by the name of the variable."""
    fetch_certificates: str = ""
    """Certificates (PEM) that pods which fetch trust beside the usual ones."""
    image_volumes: bool = False
    """Whether models may be files of container images (image://), which Kubernetes mounts as volumes."""
    server_images: dict[str, str] = {}
    """Server image by ggml backend, instead of the built-in table."""
    allowed_images: tuple[str, ...] = ()
    """Glob patterns of images that spec.server.image may name beside the table's."""
    runtime_classes: dict[str, str] = {"nvidia": "nvidia"}
    """RuntimeClass by vendor."""
    dra: bool = False
    """Whether servers get cards that a driver for dynamic resource allocation offers by ResourceClaims."""
    device_classes: dict[str, str] = {}
    """DeviceClass by driver, where it is not called like the driver."""
    holder_pods: bool = False
    """Whether holder pods get the cards that a vendor's device plugin gives by number, so that servers share them."""
    holder_idle_seconds: Annotated[float, Field(gt=0)] = 20
    """Seconds after which a holder pod goes whose card nobody has anything on."""
    node_capacity: Literal["Disabled", "Enabled", "Removed"] = "Disabled"
    """Whether the memory of GPUs that no device plugin counts is an extended resource in the capacity of their nodes,
    and servers ask for it. Removed: it is taken off all nodes."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """imagePullPolicy of server and inspector pods."""
    reserve: str = "0"
    """Memory kept free on each GPU, as a quantity."""
    host_budget: str = NO_LIMIT
    """Host memory that servers with a GPU may have on one node together: Auto (all that the kubelet gives to pods),
    Unlimited (the scheduler alone decides), or a quantity. A node's annotation paddock.dev/host-budget goes first."""
    server_user: Annotated[int, Field(ge=1)] = SERVER_USER
    """User and group id of server and inspector pods."""
    leader_election: bool = True
    """Whether a Lease decides which of several operators acts."""
    lease_seconds: Annotated[float, Field(ge=1)] = 15
    """Seconds after which a silent leader is replaced."""
    listen: str = ":8080"
    """Address of /healthz and /metrics, `HOST:PORT`; without a host every address; empty to switch off."""
    workers: Annotated[int, Field(ge=1, le=256)] = 16
    """Deployments that are looked at at the same time."""
    resync_seconds: Annotated[float, Field(ge=1)] = 300
    """Seconds between full comparisons with the API server."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""
    log_format: Literal["text", "json"] = "text"
    """Form of log lines."""

    @field_validator("cache_size")
    @classmethod
    def _size(cls, value: str) -> str:
        return cls._quantity(value) if value else value

    @field_validator("reserve")
    @classmethod
    def _quantity(cls, value: str) -> str:
        if parse_quantity(value) < 0:
            raise ValueError("must not be negative")
        return value

    @field_validator("host_budget")
    @classmethod
    def _budget(cls, value: str) -> str:
        return value if value in (AUTO, NO_LIMIT) else cls._quantity(value)

    @property
    def reserve_bytes(self) -> int:
        """Memory kept free on each GPU, in bytes."""
        return int(parse_quantity(self.reserve))

    @property
    def fetcher(self) -> Fetcher:
        """What pods that fetch model files are built with."""
        return Fetcher(
            self.agent_image,
            self.image_pull_policy,
            self.server_user,
            self.fetch_environment,
            self.fetch_certificates,
            int(parse_quantity(self.cache_size)) if self.cache_size else None,
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings. Raises SettingsError with all that is wrong."""
        values: dict[str, Any] = {}
        for name, text in environment.items():
            if not name.startswith(PREFIX):
                continue
            field = name.removeprefix(PREFIX).lower()
            if field in cls.model_fields:
                values[field] = _read(cls.model_fields[field].annotation, text, name)
            elif not field.endswith(("_port", "_host")) and "_port_" not in field:
                # Kubernetes injects PADDOCK_..._SERVICE_HOST and the like for Services of that name.
                known = ", ".join(PREFIX + one.upper() for one in cls.model_fields)
                raise SettingsError(f"unknown setting {name}; known are {known}")
        try:
            return cls(**values)
        except ValidationError as error:
            wrong = "; ".join(
                f"{PREFIX}{'.'.join(map(str, one['loc'])).upper()}: {one['msg']}" for one in error.errors()
            )
            raise SettingsError(wrong) from error


def _read(annotation: object, text: str, name: str) -> object:
    """Turn the text of a variable into what pydantic can check: lists and objects are JSON or comma lists."""
    kind = str(annotation)
    if not kind.startswith(("tuple", "dict")):
        return text
    if text.strip().startswith(("[", "{")):
        try:
            return json.loads(text)
        except ValueError as error:
            raise SettingsError(f"{name} is no JSON: {error}") from error
    return tuple(part.strip() for part in text.split(",") if part.strip()) if kind.startswith("tuple") else {}

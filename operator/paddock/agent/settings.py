"""The agent's settings, from the environment."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

PREFIX = "PADDOCK_"
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT.*)$|_PORT(_\d+_(TCP|UDP|SCTP).*)?$")
"""Variables that Kubernetes adds for a Service in the same namespace; they may begin with PADDOCK_AGENT."""

_HIGHEST_PORT = 65535

Seconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]


class SettingsError(ValueError):
    """A variable is unknown or has a bad value; the text has one line for each."""


def _split(text: object) -> object:
    if not isinstance(text, str):
        return text
    return tuple(part.strip() for part in re.split(r"[:,]", text) if part.strip())


def _check_port(address: str) -> str:
    if int(address.rpartition(":")[2]) > _HIGHEST_PORT:
        raise ValueError(f"a port is at most {_HIGHEST_PORT}")
    return address


class Settings(BaseModel):
    """Each is set by the environment variable PADDOCK_ and its name in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    library_folder: Path | None = None
    """Folder of libggml.so and its backends. By default /app where the image has them, else llama-cpp-python's."""
    listing_interval: Seconds = 600
    """Seconds between two full listings."""
    listing_timeout: Seconds = 60
    """Seconds after which a listing counts as hanging and is killed."""
    memory_interval: Seconds = 15
    """Seconds between two looks at free memory, through NVIDIA's driver alone."""
    watch_interval: Seconds = 1
    """Seconds between two looks at who has memory of the cards; more where that would take over 1 % of a core."""
    fault_hold: Seconds = 300
    """Seconds after a card's last error until it counts as sound again."""
    host_processes: bool = False
    """Whether /proc is the host's: the pod has hostPID. Without it nobody can tell whose processes drivers list."""
    model_roots: Annotated[
        tuple[Annotated[str, Field(pattern=r"^/[^\x00]*$")], ...],
        BeforeValidator(_split),
    ] = ()
    """Absolute folders below which model headers are read, separated by colons or commas."""
    cache_folder: Path | None = None
    """Folder of the node's cache of fetched models; headers below it are read, too."""
    plugin_folder: Path | None = None
    """Folder that the agent shares with its device plugin; None: there is none."""
    kubelet_folder: Path = Path("/var/lib/kubelet/device-plugins")
    """The kubelet's folder for device plugins; the plugin alone uses it."""
    cdi_folders: Annotated[tuple[str, ...], BeforeValidator(_split)] = ("/etc/cdi", "/var/run/cdi")
    """Folders of the host's CDI specs, separated by colons or commas; the plugin alone reads them."""
    sys_folder: Path = Path("/sys")
    """Where the kernel tells which device nodes a card has; the plugin alone reads it."""
    dev_folder: Path = Path("/dev")
    """Folder with the host's dri, whose groups are told; the plugin alone looks at it."""
    pod_resources: Path | None = None
    """Socket by which the kubelet tells which pod has which card of a vendor's plugin; by default it is not asked."""
    credentials_folder: Path = Path("/etc/paddock/agent")
    """Folder of tls.crt, tls.key and token; each is read again when it changes."""
    listen: Annotated[
        str,
        Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]*):[0-9]{1,5}$"),
        AfterValidator(_check_port),
    ] = ":9443"
    """Address and port; without an address, all of them."""
    boot_id_file: Path = Path("/proc/sys/kernel/random/boot_id")
    """File whose content changes with each boot of the node."""
    header_timeout: Seconds = 30
    """Seconds that reading one model header may take."""
    metrics_token: bool = True
    """Whether /metrics asks for the bearer token too."""
    log_format: Literal["text", "json"] = "text"
    """text for people, json for collectors."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""

    @property
    def host(self) -> str | None:
        """Address to listen on; None for all."""
        return self.listen.rpartition(":")[0].strip("[]") or None

    @property
    def port(self) -> int:
        """Port to listen on; 0 lets the system choose."""
        return int(self.listen.rpartition(":")[2])


def load_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings; raises SettingsError, naming every variable that is wrong."""
    variables = {PREFIX + field.upper(): field for field in Settings.model_fields}
    problems = [
        f"{name} is not a setting of the agent{_suggest(name, variables)}"
        for name in sorted(environment)
        if name not in variables and _is_mistake(name, variables)
    ]
    values = {field: environment[name] for name, field in variables.items() if environment.get(name)}
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        problems += [
            f"{PREFIX}{str(fault['loc'][0]).upper()}={values[str(fault['loc'][0])]!r}: {fault['msg']}"
            for fault in error.errors()
        ]
    if problems:
        raise SettingsError("\n".join(problems))
    return settings


def _is_mistake(name: str, known: Mapping[str, str]) -> bool:
    """Tell a misspelt setting from a variable that is none of the agent's business."""
    if not name.startswith(PREFIX) or _SERVICE_LINK.search(name):
        return False
    return name.startswith(PREFIX + "AGENT") or bool(_close(name, known))


def _close(name: str, known: Mapping[str, str]) -> list[str]:
    return get_close_matches(name, known, n=1, cutoff=0.85)


def _suggest(name: str, known: Mapping[str, str]) -> str:
    close = _close(name.replace("AGENT_", ""), known)
    return f"; did you mean {close[0]}?" if close else ""

"""What the cluster borrows from the machine (bridges, routes, settings, cgroups, folders), and giving it back."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from cluster.processes import ClusterError
from cluster.settings import CONTROL_PLANE_BRIDGE, CONTROL_PLANE_IP, POD_NETWORK, SERVICE_NETWORK, Node

CGROUPS = Path("/sys/fs/cgroup")
OURS = "paddock"
"""Every process of the cluster, pods included, is below this cgroup: that is how all of them are found again."""
FIREWALL = "paddock_cluster"

_WANTED = {
    "net.ipv4.ip_forward": "1",
    "net.bridge.bridge-nf-call-iptables": "1",
    "fs.inotify.max_user_instances": "1024",
}
# The kubelet and kube-proxy set these themselves.
_TOUCHED = (
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.keys.root_maxkeys",
    "kernel.keys.root_maxbytes",
    "net.ipv4.conf.all.route_localnet",
)
_MOUNT_POINTS = (
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/lib/paddock/models",
    "/var/log/pods",
    "/var/log/containers",
    "/run/containerd",
)


def run(*argv: str | Path, check: bool = True) -> str:
    """Run a short command and return what it printed; ClusterError with its own words when it fails."""
    done = subprocess.run([str(each) for each in argv], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise ClusterError(f"{' '.join(map(str, argv))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def run_aloud(*argv: str | Path) -> None:
    """Run a command that may take long and shows itself what it does; ClusterError when it fails."""
    code = subprocess.run([str(each) for each in argv], check=False).returncode
    if code:
        raise ClusterError(f"{argv[0]} failed with exit code {code}")


def mount_points() -> tuple[str, ...]:
    """Return the folders of the machine over which every node gets one of its own."""
    return _MOUNT_POINTS


# --- kernel settings and mount points


def _setting(name: str) -> Path:
    return Path("/proc/sys") / name.replace(".", "/")


def borrow(state: Path) -> None:
    """Note kernel settings and missing folders in the state folder, once, and make them as the cluster needs them."""
    note = state / "borrowed.json"
    if not note.exists():
        settings = {
            name: _setting(name).read_text().strip() for name in (*_WANTED, *_TOUCHED) if _setting(name).exists()
        }
        made = [str(folder) for point in _MOUNT_POINTS for folder in _missing(Path(point))]
        note.write_text(json.dumps({"settings": settings, "made": sorted(set(made), key=len)}, indent=1))
    for name, value in _WANTED.items():
        if _setting(name).exists():
            _setting(name).write_text(value)
    for point in _MOUNT_POINTS:
        Path(point).mkdir(parents=True, exist_ok=True)


def _missing(folder: Path) -> Iterator[Path]:
    while not folder.exists():
        yield folder
        folder = folder.parent


def give_back(state: Path) -> None:
    """Undo `borrow`. A folder that somebody put something into is left alone."""
    note = state / "borrowed.json"
    if not note.exists():
        return
    borrowed = json.loads(note.read_text())
    for name, value in borrowed["settings"].items():
        with contextlib.suppress(OSError):  # some can only be set where the machine allows it
            _setting(name).write_text(value)
    for folder in reversed(borrowed["made"]):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
    note.unlink()


def answers_need_masquerade() -> bool:
    """Tell whether answers within one bridge would bypass the address translation of Services."""
    setting = _setting("net.bridge.bridge-nf-call-iptables")
    return not setting.exists()


# --- network


def _bridge(name: str, address: str, mac_byte: int) -> None:
    if Path(f"/sys/class/net/{name}").exists():
        return
    run("ip", "link", "add", name, "type", "bridge")
    # Without one of its own a bridge takes the lowest address of its ports, and changes it as pods come and go.
    run("ip", "link", "set", name, "address", f"0a:58:0a:f4:{mac_byte:02x}:01", "up")
    run("ip", "address", "add", address, "dev", name)


def connect_control_plane() -> None:
    """Make the bridge of the API server, and keep whatever pods send within this machine."""
    _bridge(CONTROL_PLANE_BRIDGE, f"{CONTROL_PLANE_IP}/32", 255)
    # Addresses of the cluster that nobody has must not leave through the machine's default route.
    run("ip", "route", "replace", "blackhole", POD_NETWORK)
    run("ip", "route", "replace", SERVICE_NETWORK, "dev", CONTROL_PLANE_BRIDGE)
    rules = f"""
    table inet {FIREWALL}
    delete table inet {FIREWALL}
    table inet {FIREWALL} {{
      chain forward {{
        type filter hook forward priority filter; policy accept;
        iifname "pdk*" oifname != "pdk*" reject
        iifname != "pdk*" oifname "pdk*" ct state new drop
      }}
    }}
    """
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)


def connect_node(node: Node) -> None:
    """Make the bridge of a node."""
    _bridge(node.bridge, f"{node.address}/24", node.number)


def disconnect(nodes: list[Node]) -> None:
    """Remove bridges, routes and rules."""
    for bridge in (CONTROL_PLANE_BRIDGE, *(node.bridge for node in nodes)):
        if Path(f"/sys/class/net/{bridge}").exists():
            run("ip", "link", "delete", bridge)
    run("ip", "route", "delete", "blackhole", POD_NETWORK, check=False)
    tables = run("nft", "list", "tables", check=False)
    for line in tables.splitlines():
        family, _, table = line.removeprefix("table ").partition(" ")
        if table in (FIREWALL, "kube-proxy"):
            run("nft", "delete", "table", family, table)


# --- cgroups


def unified() -> bool:
    """Tell whether the machine has cgroup v2 alone."""
    return (CGROUPS / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    if unified():
        return [CGROUPS]
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [Path(fields[1]) for fields in map(str.split, lines) if fields[2] in ("cgroup", "cgroup2")]


def make_cgroup(name: str) -> None:
    """Make /paddock/NAME in every hierarchy, usable for containers."""
    for hierarchy in _hierarchies():
        above = hierarchy
        for part in (OURS, name):
            folder = above / part
            folder.mkdir(exist_ok=True)
            _inherit(above, folder)
            above = folder


def _inherit(above: Path, folder: Path) -> None:
    for file in ("cpuset.cpus", "cpuset.mems"):  # v1 starts with none at all, and then takes no process
        if not unified() and (above / file).exists():
            (folder / file).write_text((above / file).read_text())
    if unified():
        for controller in (above / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):  # some can't be handed on; the kubelet names those that it lacks
                (above / "cgroup.subtree_control").write_text(f"+{controller}")


def joining(name: str) -> tuple[str, ...]:
    """Return the files a process writes its pid to in order to be found by `members`; makes the cgroup."""
    folder = _tracking() / OURS / name
    folder.mkdir(parents=True, exist_ok=True)
    return (str(folder / "cgroup.procs"),)


def _tracking() -> Path:
    # One hierarchy suffices to find processes; pids limits nothing unless told to.
    return CGROUPS if unified() else CGROUPS / "pids"


def members(name: str = "") -> list[int]:
    """Return the pids below /paddock/NAME, all of the cluster's without a name."""
    top = _tracking() / OURS / name
    found: list[int] = []
    for file in top.rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            found.extend(int(line) for line in file.read_text().split())
    return [pid for pid in found if pid > 1]


def end_members(name: str = "", seconds: float = 20) -> None:
    """Kill every process below /paddock/NAME."""
    end = time.monotonic() + seconds
    while pids := members(name):
        if time.monotonic() > end:
            raise ClusterError(f"these processes do not end: {pids}")
        for pid in pids:
            kill(pid)
        time.sleep(0.05)


def remove_cgroups() -> None:
    """Remove /paddock from every hierarchy; its processes must be gone."""
    for hierarchy in _hierarchies():
        top = hierarchy / OURS
        if top.is_dir():
            folders = sorted((each for each in top.rglob("*") if each.is_dir()), key=lambda each: -len(each.parts))
            for folder in (*folders, top):
                _remove_cgroup(folder)


def _remove_cgroup(folder: Path) -> None:
    for _ in range(50):  # a cgroup stays busy for a moment after its last process
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise ClusterError(f"{folder} can't be removed: a process came back?")


def kill(pid: int) -> None:
    """Kill one process of ours; nothing when it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

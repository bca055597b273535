#!/usr/bin/env python3
"""A real Kubernetes cluster on this one machine: the command-line tool. Needs root, Python 3.11 and Debian."""

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path

# Run as a script, Python puts this folder first, where this file would hide the package of the same name.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from cluster.local import LocalCluster  # noqa: E402 - after the path above
from cluster.processes import ClusterError  # noqa: E402 - the same


def show(text: str) -> None:
    """Print to standard output."""
    print(text)  # noqa: T201 - this is a command-line tool


def up(cluster: LocalCluster, options: argparse.Namespace) -> None:
    """Build what is missing, start the cluster, load the images."""
    cluster.build_programs()
    cluster.up(options.nodes)
    if not options.no_images:
        load_images(cluster, options)
    show(f"export KUBECONFIG={cluster.kubeconfig}")


def down(cluster: LocalCluster, _options: argparse.Namespace) -> None:
    """End the cluster and remove every trace of it but the cache."""
    cluster.down()


def status(cluster: LocalCluster, _options: argparse.Namespace) -> None:
    """Show the programs and the nodes."""
    for name, text in cluster.status():
        show(f"{name:28} {text}")
    if cluster.processes.pid("kube-apiserver"):
        show(cluster.kubectl("get", "nodes", "-o", "wide", check=False).rstrip())


def kubeconfig(cluster: LocalCluster, _options: argparse.Namespace) -> None:
    """Print the path of the administrator's kubeconfig."""
    show(str(cluster.kubeconfig))


def load_images(cluster: LocalCluster, options: argparse.Namespace) -> None:
    """Build the images and the model where their inputs changed, and give them to every node."""
    cluster.load_images(options.profile)


def restart_component(cluster: LocalCluster, options: argparse.Namespace) -> None:
    """End one program and start it as it was."""
    cluster.processes.restart(options.name, sig=signal.SIGKILL if options.kill else signal.SIGTERM)
    cluster.wait_ready()


def node_down(cluster: LocalCluster, options: argparse.Namespace) -> None:
    """End kubelet and containerd of a node, like a crash."""
    cluster.stop_node(options.name, with_pods=options.with_pods)


def node_up(cluster: LocalCluster, options: argparse.Namespace) -> None:
    """Start a stopped node and wait until it is Ready."""
    cluster.start_node(options.name)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(description=__doc__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, action: Callable[[LocalCluster, argparse.Namespace], None]) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=action.__doc__, description=action.__doc__)
        command.set_defaults(action=action)
        return command

    for command in (add("up", up), add("load-images", load_images)):
        command.add_argument("--profile", default="demo", help="folder of pretend GPUs below tests/pretend/profiles")
        command.add_argument("--nodes", type=int, default=2, help="how many nodes (default 2)")
    commands.choices["up"].add_argument("--no-images", action="store_true", help="leave the images alone")
    add("down", down)
    add("status", status)
    add("kubeconfig", kubeconfig)
    restart = add("restart-component", restart_component)
    restart.add_argument("name", help="a name that `status` shows, such as kube-apiserver or node1-kubelet")
    restart.add_argument("--kill", action="store_true", help="with SIGKILL")
    node = add("node-down", node_down)
    node.add_argument("name")
    node.add_argument("--with-pods", action="store_true", help="end its containers too, like a power cut")
    add("node-up", node_up).add_argument("name")
    return top


def main() -> int:
    """Run the tool; 1 with one line when it can't do its work."""
    options = parser().parse_args()
    try:
        options.action(LocalCluster(), options)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - this is a command-line tool
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

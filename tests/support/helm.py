"""The helm program that the test cluster's cache holds, and what it renders from the chart."""

from __future__ import annotations

import copy
import json
import subprocess
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from cluster.settings import REPOSITORY, Programs, cache_folder

if TYPE_CHECKING:
    from pathlib import Path

CHART = REPOSITORY / "charts" / "paddock"
NAMESPACE = "paddock-system"
Object = dict[str, Any]


def program() -> Path:
    """Path of helm."""
    return Programs(cache_folder()).helm


def missing_program() -> str | None:
    """Say that helm is not there; None when it is."""
    return None if program().is_file() else "helm not built yet: tests/cluster/build.sh builds it"


def helm(*arguments: str, values: Object | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm; `values` are given as a values file."""
    command = [str(program()), *arguments, *(["--values", "-"] if values is not None else [])]
    return subprocess.run(command, check=False, capture_output=True, text=True, input=json.dumps(values), timeout=120)


def template(values: Object | None = None, release: str = "paddock") -> subprocess.CompletedProcess[str]:
    """Render the chart as for a current cluster; each set of values once per process."""
    return _template(json.dumps(values or {}), release)


@cache
def _template(values: str, release: str) -> subprocess.CompletedProcess[str]:
    version = Programs(cache_folder()).versions["KUBERNETES_VERSION"]
    options = ["--namespace", NAMESPACE, "--kube-version", version]
    return helm("template", release, str(CHART), *options, values=json.loads(values))


@cache
def _objects(rendered: str) -> list[Object]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(rendered, loader) if document]


def render(values: Object | None = None, release: str = "paddock") -> list[Object]:
    """Give the rendered objects."""
    done = template(values, release)
    assert done.returncode == 0, done.stderr
    return copy.deepcopy(_objects(done.stdout))


def named(objects: list[Object], kind: str, name: str) -> Object:
    """Give the one object of this kind and name."""
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """Give all objects of a kind."""
    return [each for each in objects if each["kind"] == kind]


def environment(workload: Object) -> dict[str, str | None]:
    """Give the environment of a workload's only container; None for what Kubernetes fills in."""
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    names = [entry["name"] for entry in container["env"]]
    assert len(names) == len(set(names)), "a variable is set twice"
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def rights(role: Object) -> set[str]:
    """Give what a role grants, each as `verb group/resource[/subresource]`, the spelling of recorded calls."""
    return {
        f"{verb} {group}/{resource}"
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def operator_rights(values: Object | None = None) -> set[str]:
    """Give all that the operator may do somewhere, to compare with the calls that it makes.

    With named namespaces the rights in those are in Roles of another name; give no `watchNamespaces` here.
    """
    objects = render(values)
    return {right for kind in ("ClusterRole", "Role") for right in rights(named(objects, kind, "paddock-operator"))}

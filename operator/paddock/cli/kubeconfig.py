"""The user's kubeconfig, as far as the command line looks at it itself: whether there is one, and the namespace."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddock.cli.problem import Problem

POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def namespace_of(kubeconfig: str | None, context: str | None, environment: Mapping[str, str] | None = None) -> str:
    """Give the namespace of the context in use, `default` if it names none.

    Raises Problem when there is no configuration, when a file cannot be read, or when the context is in none of them.
    """
    where = environment if environment is not None else os.environ
    files = [Path(part) for part in _places(kubeconfig, where)]
    present = [path for path in files if path.is_file()]
    if kubeconfig and not present:
        raise Problem(f"{kubeconfig} does not exist; pass an existing file to --kubeconfig")
    if not present:
        if "KUBERNETES_SERVICE_HOST" in where:
            return POD_NAMESPACE.read_text().strip() if POD_NAMESPACE.is_file() else "default"
        tried = ", ".join(str(path) for path in files)
        raise Problem(f"no kubeconfig found (looked for {tried}); set KUBECONFIG or pass --kubeconfig FILE")
    return _namespace([_load(path) for path in present], context)


def _places(kubeconfig: str | None, environment: Mapping[str, str]) -> list[str]:
    if kubeconfig:
        return [kubeconfig]
    listed = [part for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    return listed or [str(Path(environment.get("HOME", "~")).expanduser() / ".kube" / "config")]


def _load(path: Path) -> Mapping[str, Any]:
    import yaml  # noqa: PLC0415 start-up time

    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"cannot read the kubeconfig {path}: {error}; check its rights") from error
    except yaml.YAMLError as error:
        raise Problem(f"the kubeconfig {path} is no YAML; correct it or pass another --kubeconfig") from error
    if value is not None and not isinstance(value, dict):
        raise Problem(f"{path} is no kubeconfig; pass another one to --kubeconfig")
    return value or {}


def _namespace(files: list[Mapping[str, Any]], context: str | None) -> str:
    """Look the context up; as for kubectl the first file that names something wins."""
    contexts: dict[str, Mapping[str, Any]] = {}
    for file in files:
        for one in file.get("contexts") or ():
            if isinstance(one, dict) and "name" in one:
                contexts.setdefault(str(one["name"]), one.get("context") or {})
    current = context or next((str(file["current-context"]) for file in files if file.get("current-context")), "")
    if current not in contexts:
        known = ", ".join(sorted(contexts)) or "none"
        if current:
            raise Problem(f"the kubeconfig has no context {current!r}; choose one with --context: {known}")
        raise Problem(f"the kubeconfig has no current context; choose one with --context: {known}")
    return str(contexts[current].get("namespace") or "default")

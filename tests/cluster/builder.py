"""Builds images from their Dockerfiles with buildah, and only those whose inputs changed."""

import hashlib
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cluster.layout import Layout, Manifest
from cluster.processes import ClusterError
from cluster.say import say


@dataclass(frozen=True)
class Recipe:
    """One image: a Dockerfile and all that it may read."""

    name: str
    dockerfile: Path
    sources: dict[str, Path] = field(default_factory=dict)
    """Path in the build context: file or folder whose content decides whether the image is built anew."""
    prepare: Callable[[Path], None] | None = None
    """Adds what is made for the build, such as downloaded packages, to the context; `inputs` must tell it apart."""
    inputs: tuple[str, ...] = ()
    arguments: dict[str, str] = field(default_factory=dict)
    target: str = ""
    base: str = ""
    """Name of the recipe whose image is the build argument BASE."""
    tag: str = ""
    """Full name inside the builder; only needed where a Dockerfile says it."""
    usual_seconds: int = 5


class Builder:
    """Keeps images, and what they were built from, in one folder of the cache."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.layout = Layout(folder / "layout")
        self._records = folder / "records"
        self._keys: dict[str, str] = {}
        self._tags: dict[str, str] = {}

    def build(self, recipe: Recipe) -> Manifest:
        """Build the image unless it is there, built from the same inputs."""
        key = self._key(recipe)
        tag = recipe.tag or f"localhost/paddock-build/{recipe.name}:latest"
        self._keys[recipe.name], self._tags[recipe.name] = key, tag
        record = self._records / f"{recipe.name}.json"
        found = self.layout.find(recipe.name)
        if found and record.exists() and json.loads(record.read_text()) == {"key": key, "digest": found.digest}:
            return found
        say(f"building image {recipe.name} (about {recipe.usual_seconds} s)")
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="paddock-image-") as context:
            self._fill(recipe, Path(context))
            self._run_build(recipe, Path(context), tag)
        self._buildah("push", "--format", "oci", tag, f"oci:{self.layout.folder}:{recipe.name}")
        built = self.layout.unpack(recipe.name)
        self._records.mkdir(exist_ok=True)
        record.write_text(json.dumps({"key": key, "digest": built.digest}))
        say(f"  {recipe.name} built in {time.monotonic() - began:.1f} s")
        return built

    def _key(self, recipe: Recipe) -> str:
        total = hashlib.sha256()
        for text in (*recipe.inputs, recipe.target, json.dumps(recipe.arguments), self._keys.get(recipe.base, "")):
            total.update(text.encode() + b"\0")
        for name, source in sorted({"Dockerfile": recipe.dockerfile, **recipe.sources}.items()):
            for file in _files(source):
                total.update(f"{name}/{file.relative_to(source)} {file.stat().st_mode & 0o111:o}\0".encode())
                total.update(hashlib.sha256(file.read_bytes()).digest())
        return total.hexdigest()

    def _fill(self, recipe: Recipe, context: Path) -> None:
        for name, source in recipe.sources.items():
            target = context / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, target)
        if recipe.prepare:
            recipe.prepare(context)

    def _run_build(self, recipe: Recipe, context: Path, tag: str) -> None:
        arguments = dict(recipe.arguments)
        if recipe.base:
            arguments["BASE"] = self._tags[recipe.base]
        words = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        if recipe.target:
            words += ["--target", recipe.target]
        # chroot: what a build runs needs no more isolation from the machine than that, and it works inside containers.
        self._buildah(
            *("build", "--layers", "--pull=never", "--isolation", "chroot", "--format", "oci", "--network", "host"),
            *("--timestamp", "0", *words, "-f", str(recipe.dockerfile), "-t", tag, str(context)),
        )

    def _buildah(self, *argv: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        storage = (
            "--root",
            str(self._folder / "storage"),
            "--runroot",
            str(self._folder / "run"),
            "--storage-driver",
            "overlay",
        )
        done = subprocess.run(("buildah", *storage, *argv), capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"buildah {argv[0]} failed:\n{(done.stdout + done.stderr)[-4000:]}")


def _files(source: Path) -> Iterator[Path]:
    if source.is_file():
        yield source
        return
    for file in sorted(source.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file

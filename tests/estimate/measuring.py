"""Measures models with llama.cpp's libraries, one short-lived process per model, and makes the committed table.

`python -m estimate.measuring LIBRARIES FOLDER` (with tests on the path) renews the table from the files that
`test-llama-archs -o FOLDER` of the same build has written, and from the corpus of published shapes.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from estimate import table
from estimate.corpus import SHAPES
from estimate.encoders import ENCODERS
from estimate.llama import BUILD
from estimate.options import ENCODING, OF_EXPERTS, POOLED, SETS, option_set
from estimate.table import HEADERS, PUBLISHED, TABLE
from paddock.core.gguf import read_gguf
from support.gguf_writer import write_gguf

PROGRAM: Final = Path(__file__).parent / "llama.py"
_LONGEST: Final = 300


def libraries() -> Path | None:
    """Give the folder with the libraries of this build that the local cluster is built with; None without it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = cache / "paddock" / f"llama.cpp-b{BUILD}" / "bin"
    return folder if (folder / "libllama.so").exists() else None


def sets_for(head: bytes, model: str = "") -> list[str]:
    """Give the option sets that say something about the model with a header."""
    if model in ENCODERS:
        return list(ENCODING)
    usual = [name for name in SETS if name not in OF_EXPERTS or b"_exps." in head]
    return [*usual, *ENCODING] if model in POOLED else usual


def measure(folder: Path, model: Path, names: Iterable[str] = SETS) -> dict[str, list[list[int]] | str]:
    """Measure a model with option sets; a text where llama.cpp refuses or ends."""
    found: dict[str, list[list[int]] | str] = {}
    left = list(names)
    while left:
        answers = asked(folder, model, [option_set(one) for one in left])
        for name, answer in zip(left, answers, strict=False):
            refused = answer.get("error")
            found[name] = refused.rpartition(" | ")[2] if refused else [answer["device"], answer["host"]]
        left = left[len(answers) :]
        if left:
            found[left.pop(0)] = "llama.cpp ends"
    return found


def asked(folder: Path, model: Path, sets: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give llama.cpp's answers up to the end, or to the option set with which it ends its process."""
    lines = "".join(json.dumps(one) + "\n" for one in sets)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "GGML_NO_BACKTRACE": "1"}
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), str(model)],
        input=lines,
        capture_output=True,
        text=True,
        env=environment,
        timeout=_LONGEST,
        check=False,
    )
    return [json.loads(line) for line in ended.stdout.splitlines()]


def head_of(path: Path) -> tuple[bytes, int]:
    """Give the header of a file and the size of all of it."""
    size = path.stat().st_size
    with path.open("rb") as file:

        def read(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        return read(0, read_gguf(read, size).data_offset), size


def write_sparse(path: Path, head: bytes, size: int) -> Path:
    """Write a file of a header and a hole."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def main() -> int:
    """Renew the table."""
    folder, models = Path(sys.argv[1]), {}
    others = table.heads(PUBLISHED)
    with tarfile.open(HEADERS, "w:xz") as archive:
        for path in sorted(Path(sys.argv[2]).glob("*.gguf")):
            head, size = head_of(path)
            entry = tarfile.TarInfo(path.stem)
            entry.size = len(head)
            archive.addfile(entry, io.BytesIO(head))
            models[path.stem] = {"bytes": size, "sets": measure(folder, path, sets_for(head))}
    with tempfile.TemporaryDirectory() as scratch:
        for name in (*SHAPES, *ENCODERS):
            found = table.parts(name)
            if found is not None:
                path = write_gguf(Path(scratch) / f"{name}.gguf", *found)
                head, size = head_of(path)
                models[name] = {"bytes": size, "sets": measure(folder, path, sets_for(head, name))}
        for name, (head, size) in others.items():
            path = write_sparse(Path(scratch) / f"{name}.gguf", head, size)
            models[name] = {"bytes": size, "sets": measure(folder, path, sets_for(head))}
    TABLE.write_text(_text(models))
    return 0


def _text(models: dict[str, Any]) -> str:
    """Give the table with a line for each model."""
    rows = ",\n".join(f"{json.dumps(name)}:{json.dumps(row, separators=(',', ':'))}" for name, row in models.items())
    return f'{{"build":{BUILD},"models":{{\n{rows}\n}}}}\n'


if __name__ == "__main__":
    sys.exit(main())

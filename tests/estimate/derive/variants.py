"""Makes small models of every architecture in sets of sizes: `python -m estimate.derive.variants PROGRAM OUT ARCHS`.

PROGRAM is llama.cpp's test-llama-archs with variants.patch applied: it takes the sizes from the environment. Where an
architecture does not allow a size, the set is tried without it. Files are cut down to their header and a hole.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from paddock.core.gguf import read_gguf

NAMES: Final = [
    "LAYER",
    "LEAD",
    "EMBD",
    "HEAD",
    "FF",
    "FFADD",
    "GQA",
    "FFX",
    "FFS",
    "LAT",
    "EXP",
    "USED",
    "KVLORA",
    "QLORA",
    "KMLA",
    "VMLA",
    "WIN",
    "VOCAB",
    "IXH",
    "KLEN",
    "STATE",
    "KDA",
    "GROUP",
    "TMIX",
    "TDEC",
    "FULL",
    "PERIOD",
    "SHIFT",
    "RANK",
]
SETS: Final = (
    "8 1 2 4 3 160 2 416 224 352 8 3 320 448 160 96 300 1504 16 192 96 64 4 96 160 4 4 0 1",
    "7 2 3 3 2 96 3 1120 608 288 24 5 256 736 224 160 700 9248 32 128 64 96 3 32 64 3 3 0 1",
    "6 3 4 8 5 32 4 192 480 544 10 7 384 992 288 224 128 3040 8 320 160 32 8 160 224 4 4 0 1",
    "12 1 5 10 1 64 2 96 544 160 128 6 448 1376 96 64 1000 2016 24 96 32 160 5 64 96 4 6 0 1",
    "6 1 5 4 4 64 2 288 352 672 12 9 288 608 128 192 200 2528 12 448 128 192 2 128 192 2 3 0 1",
    "10 2 3 8 6 224 2 736 480 288 6 4 192 416 352 160 0 3552 16 384 96 32 2 64 96 3 4 1 2",
    "7 1 6 6 2 288 3 352 416 544 9 6 544 1248 224 96 0 4064 8 256 192 96 4 192 128 4 4 2 4",
)
"""Values of NAMES, chosen so that no two sizes of a model are alike; the last sets are without windows."""
WITHOUT: Final = (
    "",
    "LEAD",
    "LEAD KLEN",
    "KLEN",
    "KLEN GQA",
    "KLEN HEAD GQA",
    "KLEN STATE KDA GROUP",
    "KLEN STATE KDA GROUP HEAD GQA",
    "KLEN STATE KDA GROUP HEAD GQA EMBD",
    "KLEN STATE KDA GROUP HEAD GQA EMBD KVLORA KMLA VMLA QLORA IXH TMIX TDEC USED EXP",
    "KLEN LAYER",
)
"""What is left out of a set, one after the other, until the architecture accepts it."""
_LONGEST: Final = 900
"""Seconds; it takes some of a free core's, but may run beside other work."""


def make(program: Path, architecture: str, values: str, out: Path) -> bool:
    """Make the models of an architecture; says whether any set was accepted."""
    sizes = dict(zip(NAMES, values.split(), strict=True))
    for without in WITHOUT:
        own = {f"V_{name}": value for name, value in sizes.items() if name not in without.split()}
        with tempfile.TemporaryDirectory() as scratch:
            try:
                ended = subprocess.run(
                    [str(program), "-a", architecture, "-o", scratch],
                    env={**os.environ, **own, "V_FAST": "1", "GGML_NO_BACKTRACE": "1"},
                    capture_output=True,
                    timeout=_LONGEST,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                continue
            made = sorted(Path(scratch).glob("*.gguf"))
            if ended.returncode == 0 and made:
                for path in made:
                    hollow(path)
                    shutil.move(path, out / path.name)
                return True
    return False


def hollow(path: Path) -> None:
    """Keep the header and the size of a file."""
    size = path.stat().st_size
    with path.open("rb") as file:

        def read(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        head = read(0, read_gguf(read, size).data_offset)
    path.unlink()
    with path.open("wb") as out:
        out.write(head)
        out.truncate(size)


def main() -> int:
    """Make every set of every architecture that the program knows, below OUT/1, OUT/2, ..."""
    program, out = Path(sys.argv[1]), Path(sys.argv[2])
    architectures = sys.argv[3:]
    for number, values in enumerate(SETS, start=1):
        folder = out / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        for architecture in architectures:
            if not make(program, architecture, values, folder):
                sys.stderr.write(f"{architecture}: set {number} was not accepted\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Derives templates of every architecture anew and says what differs: `python -m estimate.derive.everything`.

Arguments: SOURCE (llama.cpp's source of the build), LIBRARIES (its libraries), HEADERS (ggml's), OUT (a folder for
models and recordings; what is there already is kept), and perhaps some architectures. `--write` after them writes the
templates. Takes about a minute of one core for each architecture.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

from estimate import table
from estimate.derive import published, variants
from estimate.derive.__main__ import record_all, write_all

PATCH: Final = Path(__file__).parent / "variants.patch"
PUBLISHED: Final = {"1": ("bare", "fused"), "2": ("plain",), "6": ("plain", "bare"), "7": ("plain", "bare")}
"""Sets of sizes that are written as converters do, too."""


def program(source: Path, libraries: Path, out: Path) -> Path:
    """Build llama.cpp's test program with the patch, in a folder with the libraries, where it looks for backends."""
    folder = out / "program"
    folder.mkdir(parents=True, exist_ok=True)
    for library in libraries.glob("*.so*"):
        if not (folder / library.name).exists():
            (folder / library.name).symlink_to(library.resolve())
    text = folder / "archs.cpp"
    text.write_bytes((source / "tests" / "test-llama-archs.cpp").read_bytes())
    subprocess.run(["patch", "-s", str(text), str(PATCH)], check=True)
    include = [f"-I{source / name}" for name in ("src", "include", "ggml/include", "common", "vendor")]
    linked = ["-lllama", "-lllama-common", "-lggml", "-lggml-base"]
    built = folder / "archs"
    command = ["g++", "-O0", "-std=c++17", "-w", *include, str(text), "-o", str(built), f"-L{folder}", *linked]
    subprocess.run([*command, f"-Wl,-rpath,{folder}"], check=True)
    return built


def models(built: Path, out: Path, architectures: list[str]) -> list[Path]:
    """Make the models of all sets of sizes, and as converters write them; gives the folders."""
    folders = []
    for number, values in enumerate(variants.SETS, start=1):
        folder = out / "models" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        for architecture in architectures:
            made = [*folder.glob(f"{architecture}-dense.gguf"), *folder.glob(f"{architecture}-moe.gguf")]
            if not made and not variants.make(built, architecture, values, folder):
                sys.stderr.write(f"{architecture}: set {number} was not accepted\n")
        folders.append(folder)
        for how in PUBLISHED.get(str(number), ()):
            folders.append(folder.with_name(f"{number}-{how}"))
            published.write_all(folder, folders[-1], bare=how == "bare", fused=how == "fused")
    return folders


def main() -> int:
    """Do all steps."""
    write = sys.argv[-1] == "--write"
    arguments = sys.argv[1 : -1 if write else None]
    source, libraries, headers, out = (Path(one).resolve() for one in arguments[:4])
    every = sorted({table.summary(name).architecture for name in table.architectures()})
    folders = models(program(source, libraries, out), out, arguments[4:] or every)
    record_all(libraries, headers, out / "recorded", folders, encoders_too=not arguments[4:])
    return write_all(out / "recorded", only_check=not write)


if __name__ == "__main__":
    sys.exit(main())

"""Makes operator/paddock/core/graphs.json.gz and operations.json.gz, in two steps; with PYTHONPATH=operator:tests.

`python -m estimate.derive record LIBRARIES HEADERS OUT FOLDER...`: LIBRARIES holds llama.cpp's libraries of the build,
HEADERS ggml's headers, each FOLDER models of one set of sizes, as `variants.py` beside this file makes them; its name
begins with the number of the set. Writes one file for each model; those that are there already are kept.

`python -m estimate.derive check OUT`: derives the templates of what is recorded there, and says how they differ from
those that ship (merge.py); `write OUT` writes them too. Ends with 1 when a graph could not be explained.
"""

import gzip
import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from estimate import encoders
from estimate.derive import derive, nodes, segments
from estimate.derive.derive import Bodies, Recording, names_of
from estimate.derive.merge import merged
from estimate.derive.recording import GIVEN_UP, build, load, record, save
from estimate.derive.verify import by_operations, by_steps, left_out
from estimate.llama import BUILD
from paddock.core import templates
from paddock.core.graphs import Templates
from support.gguf_writer import write_gguf

FORMS = {
    templates.STEPS: (segments.segments, derive.steps, by_steps),
    templates.OPERATIONS: (nodes.cut, derive.words, by_operations),
}


def record_all(libraries: Path, headers: Path, out: Path, folders: list[Path], *, encoders_too: bool = True) -> None:
    """Record every model of the folders, and encoders."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        recorder = build(Path(scratch), headers)
        for folder in folders:
            for model in sorted(folder.glob("*.gguf")):
                path = out / f"{folder.name}-{model.stem}.gz"
                if not path.exists():
                    save(path, record(libraries, recorder, model, int(folder.name[0])))
        for name, number, shape in encoders.small() if encoders_too else ():
            path, model = out / f"{number}-{name}.gz", Path(scratch) / "encoder.gguf"
            if not path.exists():
                write_gguf(model, encoders.metadata(shape), encoders.tensors(shape))
                save(path, record(libraries, recorder, model, number))


def architectures(out: Path) -> dict[str, list[Path]]:
    """Give the files of recordings by architecture, in order."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(out.glob("*.gz")):
        recordings = load(path)
        if recordings:
            found[recordings[0].summary.architecture].append(path)
    return dict(sorted(found.items()))


def derived(recordings: dict[str, list[Recording]], name: str) -> tuple[Templates, list[str]]:
    """Give the templates of one form of some architectures, and what could not be explained."""
    cut, write, _ = FORMS[name]
    bodies, graphs, trouble = Bodies(), {}, []
    names = {architecture: names_of(own) for architecture, own in recordings.items()}
    for architecture, every in recordings.items():
        # the allocator's steps are of graphs in one place, where FlashAttention is not given up
        own = [one for one in every if name != templates.STEPS or one.asked["flashAttention"] != GIVEN_UP]
        graphs[architecture], lines = derive.derive(own, bodies, cut, write)
        if name == templates.STEPS and any(one.summary.recurrent for one in own):
            graphs[architecture] = derive.without_periods(graphs[architecture])
        trouble += [f"{architecture}: {line}" for line in sorted(set(lines))]
    return Templates(BUILD, tuple(bodies.numbers), graphs, names, {}), trouble


def write_all(out: Path, *, only_check: bool) -> int:
    """Derive both forms from recordings, one architecture at a time; tell the differences, and write the templates."""
    troubled = 0
    fresh: dict[str, list[Templates]] = {name: [] for name in FORMS}
    for paths in architectures(out).values():
        own = [one for path in paths for one in load(path)]
        for name, parts in fresh.items():
            part, trouble = derived({own[0].summary.architecture: own}, name)
            parts.append(part)
            for line in trouble:
                sys.stderr.write(f"{name}: {line}\n")
            troubled += bool(trouble)
    for name, parts in fresh.items():
        answer = FORMS[name][2]
        found, changes = merged(templates.templates(name), parts, answer)
        for change in changes:
            sys.stdout.write(f"{name}: {change.architecture}: {change.text or 'the same'}\n")
        if not only_check:
            data = {"build": BUILD, "bodies": found.bodies, "graphs": found.graphs, "names": found.names}
            write(Path(templates.__file__).parent / name, data | {"leftOut": left_out(found, answer)})
    return 1 if troubled else 0


def write(path: Path, data: dict[str, Any]) -> None:
    """Write the templates; the same input gives the same bytes."""
    text = json.dumps(data, separators=(",", ":"), sort_keys=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> int:
    """Do one of the two steps."""
    step, *arguments = sys.argv[1:]
    paths = [Path(argument) for argument in arguments]
    if step == "record":
        record_all(paths[0], paths[1], paths[2], paths[3:])
        return 0
    return write_all(paths[0], only_check=step == "check")


if __name__ == "__main__":
    sys.exit(main())

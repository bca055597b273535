"""Makes operator/paddock/core/graphs.json.gz: `python -m estimate.derive LIBRARIES HEADERS FOLDER...`.

LIBRARIES holds llama.cpp's libraries of the build, HEADERS ggml's headers, each FOLDER models of one set of sizes, as
`variants.py` beside this file makes them. With PYTHONPATH=operator:tests.
"""

import gzip
import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from estimate.derive.derive import Bodies, Recording, derive, names_of
from estimate.derive.recording import SIZES, build, record
from estimate.derive.verify import left_out
from estimate.llama import BUILD
from paddock.core import templates
from paddock.core.graphs import Templates


def main() -> int:
    """Record, derive, write."""
    libraries, headers, *folders = (Path(argument) for argument in sys.argv[1:])
    recordings: dict[str, list[Recording]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        recorder = build(Path(scratch), headers)
        for number, folder in enumerate(folders):
            for model in sorted(folder.glob("*.gguf")):
                for one in record(libraries, recorder, model, SIZES[number % len(SIZES)]):
                    recordings[one.summary.architecture].append(one)
    bodies, graphs = Bodies(), {}
    for architecture, own in sorted(recordings.items()):
        graphs[architecture], trouble = derive(own, bodies)
        for line in sorted(set(trouble)):
            sys.stderr.write(f"{architecture}: {line}\n")
    data: dict[str, Any] = {"build": BUILD, "bodies": list(bodies.numbers), "graphs": graphs}
    data["names"] = {architecture: names_of(own) for architecture, own in sorted(recordings.items())}
    data["leftOut"] = left_out(Templates(BUILD, tuple(bodies.numbers), graphs, data["names"], {}))
    write(Path(templates.__file__).parent / templates.NAME, data)
    return 0


def write(path: Path, data: dict[str, Any]) -> None:
    """Write the templates; the same input gives the same bytes."""
    text = json.dumps(data, separators=(",", ":"), sort_keys=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    sys.exit(main())

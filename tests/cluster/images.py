"""Which images the cluster needs, under which names, and how they come to the nodes.

The names are those that the product uses, so it renders nothing special here; only the images behind them differ from
the public ones: they hold pretend GPUs, each node's image those of that node.
"""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster.builder import Builder, Recipe
from cluster.host import run, run_aloud
from cluster.layout import Manifest
from cluster.node import NodeRunner
from cluster.processes import ClusterError
from cluster.say import say
from cluster.settings import HERE, PAUSE_IMAGE, REPOSITORY, Programs

BASE_TAG = "docker.io/library/debian:bookworm-slim"
_PRETEND = REPOSITORY / "tests" / "pretend"
_BASE_COMMAND = (
    *(
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        "--include=python3,python3-venv,ca-certificates,libgomp1,libssl3,libstdc++6",
    ),
    *(f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "man", "info", "locale", "lintian")),
    "bookworm",
)
_PYTHON = (
    "--only-binary=:all:",
    "--implementation=cp",
    "--python-version=3.11",
    "--platform=manylinux_2_28_x86_64",
    "--platform=manylinux2014_x86_64",
)
_LOCKS = {
    "operator": REPOSITORY / "requirements" / "operator.lock",
    "agent": REPOSITORY / "requirements" / "agent-lean.lock",
}


def paddock_version() -> str:
    """Return the version that the package states."""
    text = (REPOSITORY / "operator" / "paddock" / "__init__.py").read_text()
    found = re.search(r'^__version__\s*(?::\s*\S+\s*)?=\s*"([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise ClusterError("operator/paddock/__init__.py states no __version__")
    return found.group(1)


class Images:
    """All images of the cluster."""

    def __init__(self, programs: Programs, profile: str) -> None:
        self._programs = programs
        self._profile = _PRETEND / "profiles" / profile
        if not self._profile.is_dir():
            raise ClusterError(f"no profile {profile} in {_PRETEND / 'profiles'}")
        self._builder = Builder(programs.cache / "images")
        self.layout = self._builder.layout

    def build(self) -> dict[str, Manifest]:
        """Build what changed and return {recipe: manifest} of all images."""
        run_aloud(HERE / "build.sh", "llama")
        # Downloads over the network go on while the base image is made.
        with ThreadPoolExecutor() as pool:
            downloads = [pool.submit(_download, self._programs.cache, *each) for each in _LOCKS.items()]
            built = {"base": self._builder.build(self._base())}
        for each in downloads:
            each.result()
        for recipe in (
            *(self._pause(), self._server(), self._pretend("cuda"), self._pretend("vulkan"), self._pretend("all")),
            *(self._python("operator", "base"), self._python("agent", "pretend-all")),
        ):
            built[recipe.name] = self._builder.build(recipe)
        return built

    def of_node(self, node: str, built: dict[str, Manifest]) -> dict[str, Manifest]:
        """Return {full name: manifest} of what `node` must have; those with GPUs get the node's own on top."""
        file = self._profile / f"{node}.gpus"
        cards = {"/etc/pretend-gpus": file.read_bytes() if file.exists() else b"# no card\n"}
        build = self._programs.versions["LLAMA_CPP_BUILD"]
        server, own = "ghcr.io/ggml-org/llama.cpp:server", f"ghcr.io/paddock-dev/{{}}:{paddock_version()}"
        return {
            PAUSE_IMAGE: built["pause"],
            f"{server}-b{build}": built["server"],
            f"{server}-cuda-b{build}": self.layout.put_on_top(built["pretend-cuda"], cards),
            f"{server}-vulkan-b{build}": self.layout.put_on_top(built["pretend-vulkan"], cards),
            own.format("operator"): built["operator"],
            own.format("agent"): self.layout.put_on_top(built["agent"], cards),
        }

    def load(self, nodes: list[NodeRunner]) -> None:
        """Build what changed, and give every node what it lacks."""
        built = self.build()
        wanted = [(runner, self.of_node(runner.node.name, built)) for runner in nodes]
        self.layout.prune([manifest for _, images in wanted for manifest in images.values()])
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda pair: self._give(*pair), wanted))

    def _give(self, runner: NodeRunner, images: dict[str, Manifest]) -> None:
        note = runner.node.folder / "images.json"
        had: dict[str, list[str]] = json.loads(note.read_text()) if note.exists() else {}
        lacking = {name: manifest for name, manifest in images.items() if had.get(name, [""])[0] != manifest.digest}
        if not lacking:
            return
        say(f"{runner.node.name} imports {', '.join(sorted(lacking))}")
        self._import(runner, lacking, {digest for digests in had.values() for digest in digests})
        had |= {name: self.layout.blobs_of(manifest) for name, manifest in lacking.items()}
        note.write_text(json.dumps(had, indent=1))

    def _import(self, runner: NodeRunner, images: dict[str, Manifest], have: set[str]) -> None:
        command = runner.ctr("images", "import", "--local", "-")
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as importing:
            if importing.stdin is None or importing.stdout is None:
                raise ClusterError("no pipe to ctr")
            try:
                self.layout.stream(images, have, importing.stdin)
                importing.stdin.close()
            except BrokenPipeError:
                pass  # its own words, below, say why it gave up
            words = importing.stdout.read().decode()
        if importing.returncode:
            raise ClusterError(f"import on {runner.node.name} failed: {words[-2000:]}")

    def _base(self) -> Recipe:
        def prepare(context: Path) -> None:
            run(*_BASE_COMMAND, context / "root.tar")

        return Recipe(
            "base", HERE / "base.Dockerfile", prepare=prepare, inputs=_BASE_COMMAND, tag=BASE_TAG, usual_seconds=90
        )

    def _pause(self) -> Recipe:
        source = HERE / "pause" / "pause.c"

        def prepare(context: Path) -> None:
            (context / "out").mkdir()
            run("gcc", "-Os", "-static", "-s", "-o", context / "out" / "pause", source)

        return Recipe("pause", HERE / "pause" / "Dockerfile", {"pause.c": source}, prepare)

    def _server(self) -> Recipe:
        llama = self._programs.llama
        sources = {f"tests/cluster/{each}": HERE / each for each in ("build.sh", "versions.env", "tools/llama")}
        sources |= {"build/llama.cpp/bin": llama / "bin", "build/llama.cpp/LICENSE": llama / "LICENSE"}
        return Recipe("server", REPOSITORY / "images" / "server.Dockerfile", sources, base="base", usual_seconds=15)

    def _pretend(self, stage: str) -> Recipe:
        sources = {f"source/{file.name}": file for file in sorted(_PRETEND.glob("*.[ch]"))} | {
            "source/build.sh": _PRETEND / "build.sh"
        }

        def prepare(context: Path) -> None:
            run(context / "source" / "build.sh", self._programs.llama, context / "out")

        return Recipe(f"pretend-{stage}", _PRETEND / "Dockerfile", sources, prepare, target=stage, base="server")

    def _python(self, name: str, base: str) -> Recipe:
        requirements = _LOCKS[name]
        sources = {"operator/paddock": REPOSITORY / "operator" / "paddock"}
        prepare = _with_wheels(self._programs.cache, name)
        key = hashlib.sha256(requirements.read_bytes()).hexdigest()
        dockerfile = REPOSITORY / "images" / f"{name}.Dockerfile"
        return Recipe(name, dockerfile, sources, prepare, inputs=(key,), base=base, usual_seconds=30)


def _download(cache: Path, name: str, requirements: Path) -> Path:
    """Download the locked packages of image `name`, once, and return their folder."""
    key = hashlib.sha256(requirements.read_bytes() + repr(_PYTHON).encode()).hexdigest()[:16]
    wheels = cache / "wheels" / f"{name}-{key}"
    if not wheels.is_dir():
        say(f"  downloading the packages of {requirements.name}")
        staged = wheels.with_suffix(".part")
        pip = (sys.executable, "-m", "pip", "download", "-q", "--require-hashes", *_PYTHON)
        run(*pip, "-r", requirements, "-d", staged)
        staged.rename(wheels)
    return wheels


def _with_wheels(cache: Path, name: str) -> Callable[[Path], None]:
    """Return a step that puts the locked packages into the context as build/wheels/NAME."""

    def prepare(context: Path) -> None:
        target = context / "build" / "wheels" / name
        target.mkdir(parents=True)
        for wheel in _download(cache, name, _LOCKS[name]).iterdir():
            (target / wheel.name).write_bytes(wheel.read_bytes())

    return prepare

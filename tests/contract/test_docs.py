"""What the documentation says is so: links, modules, make targets, commands, examples, settings, generated pages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from typer.main import get_command

from cluster.settings import REPOSITORY
from paddock.agent.settings import Settings as AgentSettings
from paddock.api.crd import crds
from paddock.api.modeldeployment import ModelDeploymentSpec
from paddock.api.vocabulary import CONDITION_MEANING, REASONS, VERDICTS
from paddock.cli.main import app
from paddock.controller.settings import Settings as OperatorSettings
from paddock.core import args, images
from paddock.core.source import ClaimSource, FileSource, ModelRoot, parse_source
from paddock.fetch.settings import PREFIX as FETCH_PREFIX
from paddock.fetch.settings import Settings as FetchSettings
from support.apiserver import ApiServer, api_server, missing_programs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEPLOYMENTS = "/apis/paddock.dev/v1alpha1/namespaces/default/modeldeployments"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))
PROSE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "examples", "charts", "tests", "requirements")


def tracked() -> list[Path]:
    """Give every file that git knows or would take; of a copy without git, all that is no build output."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY)
    return [path for name in done.stdout.split("\0") if name and (path := REPOSITORY / name).is_file()]


def pages() -> list[Path]:
    """Give every page of documentation."""
    found = [path for path in tracked() if path.suffix == ".md"]
    return [path for path in found if path.relative_to(REPOSITORY).parts[0] in PROSE]


def name_of(path: Path) -> str:
    """Give a path as people write it."""
    return path.relative_to(REPOSITORY).as_posix()


def text_of(path: Path) -> str:
    """Read a page."""
    return path.read_text(encoding="utf-8")


def commands_in(text: str) -> list[str]:
    """Give the lines of code blocks and what stands between backticks."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    fenced = [line for block in blocks for line in block.splitlines()]
    indented = re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE)
    return [*fenced, *indented, *re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)]


# --- links


def anchors_of(text: str) -> set[str]:
    """Give the anchors that headings get on GitHub."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ +(.+?)\s*$", prose, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
    return {word if plain[:i].count(word) == 0 else f"{word}-{plain[:i].count(word)}" for i, word in enumerate(plain)}


def broken_links(page: Path, text: str) -> list[str]:
    """Name the links of a page that lead nowhere inside the repository."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        where, _, anchor = target.partition("#")
        path = (page.parent / where).resolve() if where else page
        lost = not path.is_relative_to(REPOSITORY) or not path.exists()
        if lost or (anchor and anchor not in anchors_of(text_of(path))):
            found.append(target)
    return found


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, text_of(page)) == []


def test_broken_links_are_found() -> None:
    page = REPOSITORY / "README.md"
    text = "[a](docs/absent.md) [b](docs/install.md#absent) [c](docs/install.md#upgrade) [d](https://example.com/x)"
    assert broken_links(page, text) == ["docs/absent.md", "docs/install.md#absent"]


def test_every_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [REPOSITORY / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or not page.is_file():
            continue
        seen.add(page)
        if page.suffix == ".md":
            links = re.findall(r"\]\(([^)\s#]+)", text_of(page))
            todo += [(page.parent / link).resolve() for link in links if ":" not in link]
            # A page that is made on the user's machine is named, not linked.
            todo += [REPOSITORY / name for name in re.findall(r"`(docs/[\w/.-]+\.md)`", text_of(page))]
    lost = [name_of(page) for page in pages() if page.is_relative_to(REPOSITORY / "docs") and page not in seen]
    assert lost == []


# --- what pages name exists


def test_the_list_of_modules_is_the_tree() -> None:
    section = text_of(REPOSITORY / "docs" / "architecture.md").split("## Modules", 1)[1].split("\n## ", 1)[0]
    section = re.sub(r"<!--.*?-->", "", section)
    listed = re.findall(r"`((?:\w+/)*\w+\.py)`", section)
    package = REPOSITORY / "operator" / "paddock"
    there = [path.relative_to(package).as_posix() for path in package.rglob("*.py") if not path.name.startswith("__")]
    assert sorted(listed) == sorted(there)


def test_the_source_root_is_no_package() -> None:
    assert not (REPOSITORY / "operator" / "__init__.py").exists()
    assert [path.name for path in (REPOSITORY / "operator").iterdir() if path.name != "__pycache__"] == ["paddock"]


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]*):", text_of(REPOSITORY / "Makefile"), re.MULTILINE))
    unknown = {
        f"{name_of(page)}: make {target}"
        for page in pages()
        for command in commands_in(text_of(page))
        for target in re.findall(r"(?:^|&& |; )make ([a-z][a-z0-9-]*)", command)
        if target not in targets
    }
    assert unknown == set()
    assert {"demo", "test", "check", "bench", "setup"} <= targets


def test_every_command_and_option_of_the_command_line_that_is_named_exists() -> None:
    known: dict[str, Any] = getattr(get_command(app), "commands", {})
    wrong = []
    for page in pages():
        for command in commands_in(text_of(page)):
            for name, rest in re.findall(r"(?:^|\| ?|kubectl )paddock ([a-z]+)\b([^|&;]*)", command):
                if name not in known:
                    wrong.append(f"{name_of(page)}: paddock {name}")
                    continue
                options = {one for option in known[name].params for one in (*option.opts, *option.secondary_opts)}
                given = re.findall(r"(?<=\s)(--[a-z][a-z-]*|-[a-zA-Z])\b", re.sub(r'"[^"]*"', "", rest))
                wrong += [f"{name_of(page)}: paddock {name} {one}" for one in given if one not in options]
    assert wrong == []


def test_every_variable_that_is_named_is_a_setting() -> None:
    fields = {*OperatorSettings.model_fields, *AgentSettings.model_fields}
    # Of the command line, the local cluster and the pretend GPUs; see the pages that name them.
    others = {"PADDOCK_DEBUG", "PADDOCK_CACHE", "PADDOCK_STATE", "PADDOCK_PRETEND_GPUS", "PADDOCK_PRETEND_LIES"}
    others |= {"PADDOCK_LLAMA_CPP", "PADDOCK_PRETEND_ACCOUNTS", "PADDOCK_GPU_MODEL"}
    others |= {FETCH_PREFIX + name.upper() for name in FetchSettings.model_fields}
    known = {f"PADDOCK_{name.upper()}" for name in fields} | others
    unknown = {
        f"{name_of(page)}: {name}"
        for page in pages()
        for name in re.findall(r"\bPADDOCK_[A-Z][A-Z_]*\b", text_of(page))
        if name not in known
    }
    assert unknown == set()


def test_every_value_of_the_chart_that_is_named_exists() -> None:
    values = yaml.safe_load(text_of(REPOSITORY / "charts" / "paddock" / "values.yaml"))
    words = text_of(REPOSITORY / "docs" / "reference" / "values.md")
    tops = "|".join(sorted(values))
    wrong = []
    for name in ("install", "operations", "placement", "memory", "security", "troubleshooting", "architecture"):
        text = text_of(REPOSITORY / "docs" / f"{name}.md")
        for path in re.findall(rf"`((?:{tops})(?:\[\])?\.[A-Za-z.]+)", text):
            pool = path.startswith("agents[].") and f"| `{path.removeprefix('agents[].')}` |" in words
            if not pool and f"| `{path}` |" not in words and not re.match(r"server\.(?!user|reserve|hostBudget)", path):
                wrong.append(f"{name}: {path}")
    assert wrong == []


def test_every_field_that_is_named_exists() -> None:
    page = text_of(REPOSITORY / "docs" / "reference" / "modeldeployment.md")
    known = set(re.findall(r"^\| `([\w.\[\]]+)` \|", page, re.MULTILINE))
    groups = r"(?:model|serving|placement|server)"
    wrong = []
    for name in ("install", "operations", "placement", "memory", "security", "troubleshooting", "architecture"):
        text = text_of(REPOSITORY / "docs" / f"{name}.md")
        paths = set(re.findall(rf"`(?:spec\.)?{groups}\.([a-z]\w*)", text)) - {
            "user",
            "reserve",
            "hostBudget",
        }  # of the chart's `server`
        wrong += [f"{name}: {path}" for path in sorted(paths - known)]
    assert wrong == []


def test_every_metric_that_is_named_exists() -> None:
    code = "".join(
        text_of(REPOSITORY / "operator" / "paddock" / name) for name in ("controller/serve.py", "agent/metrics.py")
    )
    there = set(re.findall(r'"((?:paddock|process)_[a-z_]+(?:total|bytes|seconds|info|\w))"', code))
    there |= {f"paddock_agent_memory_{kind}_bytes" for kind in ("total", "free")}
    named = set(re.findall(r"\b((?:paddock|process)_[a-z_]+)\b", text_of(REPOSITORY / "docs" / "operations.md")))
    assert named == there


def test_every_word_leads_from_the_troubleshooting_page() -> None:
    text = text_of(REPOSITORY / "docs" / "troubleshooting.md")
    assert [str(word) for word in (*REASONS, *VERDICTS) if f"`{word}`" not in text] == []
    assert "(reference/reasons.md)" in text
    words = {*map(str, REASONS), *map(str, VERDICTS), *map(str, CONDITION_MEANING)}
    # Faults of agents, which the message of a GPU's condition begins with, and words of Kubernetes and the API.
    others = {"NoDevice", "LibraryMissing", "DriverFailed", "Forbidden", "READY", "Never"}
    named = set(re.findall(r"^\| (`[A-Z]\w+`(?:, `[A-Z]\w+`)*) \|", text, re.MULTILINE))
    unknown = {word for cell in named for word in re.findall(r"\w+", cell)} - words - others
    assert unknown == set()


# --- examples


def documents(path: Path) -> list[dict[str, Any]]:
    """Give the objects of a file."""
    return [one for one in yaml.safe_load_all(text_of(path)) if one]


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_examples_are_told_about_and_would_be_accepted(path: Path) -> None:
    assert f"[{path.name}]({path.name})" in text_of(REPOSITORY / "examples" / "README.md")
    deployments = [one for one in documents(path) if one["kind"] == "ModelDeployment"]
    assert deployments
    root = ModelRoot(path="/models", host_path="/var/lib/paddock/models")
    for one in deployments:
        spec = ModelDeploymentSpec.model_validate(one["spec"])
        assert args.check(spec.serving.args) is None
        assert isinstance(parse_source(spec.model.source, [root]), FileSource | ClaimSource)


PATHS = {
    "ModelDeployment": DEPLOYMENTS,
    "PlacementPolicy": "/apis/paddock.dev/v1alpha1/placementpolicies",
    "Secret": "/api/v1/namespaces/default/secrets",
}


def snippets() -> list[tuple[str, dict[str, Any]]]:
    """Give every YAML block of the pages that is a spec, or a part of one, as a ModelDeployment; a policy as it is."""
    found = []
    for page in pages():
        blocks = re.findall(r"^ *```yaml\n(.*?)^ *```", text_of(page), re.MULTILINE | re.DOTALL)
        for number, block in enumerate(blocks):
            body = next(iter(yaml.safe_load_all(block)), None)
            if not isinstance(body, dict) or not {"spec", "placement", "serving"} & body.keys():
                continue
            if body.get("kind") == "PlacementPolicy":
                found.append((f"{name_of(page)}-{number}", body))
                continue
            spec = body.get("spec", body)
            spec = {"model": {"source": "file:///models/x.gguf"}, **spec}
            meta = {"apiVersion": "paddock.dev/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "snippet"}}
            found.append((f"{name_of(page)}-{number}", {**meta, "spec": spec}))
    return found


def test_there_are_snippets() -> None:
    assert {name.rpartition("-")[0] for name, _ in snippets()} >= {"docs/placement.md", "docs/install.md"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    if (lacking := missing_programs()) is not None:
        pytest.skip(lacking)
    with api_server(tmp_path_factory.mktemp("apiserver")) as running:
        for text in crds().values():
            assert running.call("POST", CRDS, text, "application/yaml").status == 201
        running.wait("GET", DEPLOYMENTS)
        yield running


def test_an_api_server_takes_every_example_and_snippet(server: ApiServer) -> None:
    bodies = [(name_of(path), one) for path in EXAMPLES for one in documents(path)] + snippets()
    for name, body in bodies:
        where = PATHS[body["kind"]]
        answer = server.call("POST", f"{where}?dryRun=All&fieldValidation=Strict", body)
        assert answer.status == 201, f"{name}: {answer.message}"


def test_the_example_of_the_library_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", text_of(REPOSITORY / "docs" / "library.md"), re.DOTALL)
    exec(compile(block, "docs/library.md", "exec"), {})  # noqa: S102 our own page


# --- generated pages and pictures


@pytest.mark.parametrize("script", ["generate.py", "generate_cli.py"])
def test_generated_pages_are_what_is_committed(script: str) -> None:
    command = [sys.executable, str(REPOSITORY / "docs" / script), "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_of_arguments_has_every_spelling() -> None:
    page = text_of(REPOSITORY / "docs" / "reference" / "arguments.md")
    names = [name for one in args.ALLOWED for name in one.names]
    assert [name for name in (*names, *args.OWN_FIELD) if f"`{name}`" not in page] == []


def test_the_images_that_are_named_are_those_of_the_table() -> None:
    page = text_of(REPOSITORY / "docs" / "install.md")
    tags = {row.image.rpartition(":")[2] for row in images.TABLE}
    assert {tag for tag in tags if tag not in page} == set()
    assert set(re.findall(r"\bserver(?:-[a-z]+)?-b\d+\b", page)) == tags


def test_pictures_need_nothing_from_elsewhere() -> None:
    pictures = list((REPOSITORY / "docs" / "pictures").glob("*.svg"))
    assert pictures
    for path in pictures:
        root = ET.fromstring(text_of(path))  # noqa: S314 our own file
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("aria-label")
        assert re.findall(r"(?:href|src|url)\s*[=(]\s*[\"']?(?!#)\w+:", text_of(path)) == []


# --- nothing of the machine that it was made on

PLACES = re.compile(r"(?<![\w.])/(?:work|root)/|(?<![\w.])/tmp/(?!paddock\b)[a-z]+-of-|\blocalhost:[35]\d{3}\b")
INDEX_OPTION = re.compile(r"(?:--(?:extra-)?index-url|--find-links|GOPROXY|registry-mirrors)[= ]+[\"']?https?://(\S+)")
HOSTS = {"pypi.org", "proxy.golang.org", "ghcr.io", "docker.io"}


def test_no_file_names_a_place_or_a_registry_of_one_machine() -> None:
    assert shutil.which("git")
    found = []
    for path in tracked():
        if path == REPOSITORY / "tests" / "contract" / "test_docs.py" or path.suffix in (".png", ".gguf"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{name_of(path)}: {hit.group(0)}" for hit in PLACES.finditer(text)]
        hosts = (hit.group(1).split("/", 1)[0] for hit in INDEX_OPTION.finditer(text))
        found += [f"{name_of(path)}: {host}" for host in hosts if host not in HOSTS]
    assert found == []

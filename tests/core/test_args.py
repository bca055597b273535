"""Which arguments users may add, and that the real llama-server knows all that are allowed or rendered."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from paddock.api.modeldeployment import CacheType, FlashAttention, Mode
from paddock.core.args import ALLOWED, OWN_FIELD, check, normal
from paddock.core.images import BUILD
from paddock.core.pod import Mounted, arguments
from support.builders import INTEL, RTX_4080, bound, deployment

MOUNTED = Mounted("claim", "/models", "/models/gemma.gguf", 0)
CACHE = Path(os.environ.get("PADDOCK_CACHE", Path.home() / ".cache/paddock"))
SERVER = CACHE / f"llama.cpp-{BUILD}/bin/llama-server"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--temp", "0.2"],
        ["--temp", "-1"],
        ["--keep", "-1", "--ignore-eos", "-s", "42"],
        ["--top_k", "40", "--repeat_last_n", "-1"],
        ["--chat-template", "{% for m in messages %}\n\t{{ m.content }}\n{% endfor %}"],
        ["--json-schema", '{"type": "object"}'],
        ["--rope-freq-base", "1e6"],
        ["--yarn-ext-factor", "-1.0"],
        ["--reverse-prompt", "Ende"],
    ],
)
def test_harmless_arguments_are_allowed(arguments: list[str]) -> None:
    assert check(arguments) is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        # another device
        (["--device=CUDA1"], "'--device=CUDA1' has a field of its own: use placement.devices"),
        (["-dev", "CUDA1"], "'-dev' has a field of its own: use placement.devices"),
        (["--split_mode", "layer"], "'--split_mode' has a field of its own: use placement.devices"),
        (["--main_gpu=1"], "'--main_gpu=1' has a field of its own: use placement.devices"),
        (["-c", "4096"], "'-c' has a field of its own: use serving.contextLength"),
        (["--gpu_layers", "10"], "'--gpu_layers' has a field of its own: use serving.gpuLayers"),
        (["--api-key", "secret"], "'--api-key' has a field of its own: use serving.apiKeySecretRef"),
        # code, files, network, other buffers
        (["--tools_runtime", "docker"], "'--tools_runtime' is not an allowed llama-server argument"),
        (["--tools", "all"], "is not an allowed"),
        (["--rpc", "10.0.0.1:50052"], "is not an allowed"),
        (["--override_tensor", "x=CPU"], "is not an allowed"),
        (["-ot", "x=CPU"], "is not an allowed"),
        (["--lora", "/etc/passwd"], "use model.loraAdapters"),
        (["--mmproj", "/etc/passwd"], "use model.projector"),
        (["-md", "/etc/passwd"], "use model.draft"),
        (["--grammar-file", "/etc/passwd"], "is not an allowed"),
        (["--chat-template-file", "/etc/passwd"], "is not an allowed"),
        (["--slot-save-path", "/tmp"], "is not an allowed"),
        (["--cpu-moe"], "is not an allowed"),
        (["--no-kv-offload"], "is not an allowed"),
        (["-nkvo"], "is not an allowed"),
        (["--log-file", "/tmp/x"], "is not an allowed"),
        (["-lv", "1"], "is not an allowed"),
        (["--fit", "on"], "is not an allowed"),
        (["--sleep-idle-seconds", "5"], "is not an allowed"),
        (["--nonsense"], "'--nonsense' is not an allowed llama-server argument; see docs/reference/arguments.md"),
        (["-temp", "1"], "is not an allowed"),
        (["—temp", "1"], "where an argument is expected"),
        # values
        (["--temp"], "--temp needs a value"),
        (["--temp", "0.1", "--top-k"], "--top-k needs a value"),
        (["--temp", "--rpc"], "--temp needs a value, found '--rpc'"),
        (["--chat-template", "-dev"], "--chat-template needs a value, found '-dev'"),
        (["--ignore-eos", "true"], "found 'true' where an argument is expected after --ignore-eos"),
        (["0.7"], "found '0.7' where an argument is expected"),
        (["--temp=0.2"], "write '--temp' and its value as two list items instead of '--temp=0.2'"),
        (["--repeat_penalty=1"], "write '--repeat-penalty' and its value as two list items"),
        (["--temp 0.2"], "'--temp 0.2' is not an allowed"),
        (["--temp", "0.2\x00--rpc"], "has a control character"),
        (["--grammar", "a\x1b[2J"], "has a control character"),
        # more of the node than a server should take
        *(
            (["--threads-http", value], f"--threads-http takes a whole number from 1 to 64, found {value!r}")
            for value in ("0", "65", "100000000000", "1.5", "1e1", "²", "many", "")
        ),
        (["--threads_http", "-1"], "--threads-http takes a whole number from 1 to 64, found '-1'"),
        (["-to", "0"], "-to takes a whole number from 1 to 86400"),
    ],
)
def test_what_could_break_the_pin_or_run_code_is_refused_with_a_remedy(arguments: list[str], why: str) -> None:
    found = check(arguments)
    assert found is not None
    assert why in found


def test_no_argument_is_both_allowed_and_a_field() -> None:
    names = [name for one in ALLOWED for name in one.names]
    assert len(names) == len(set(names))
    assert not set(names) & set(OWN_FIELD)


def test_fields_that_messages_name_exist() -> None:
    spec = deployment().spec
    assert spec is not None
    for field in OWN_FIELD.values():
        value: object = spec
        for part in field.split("."):
            snake = re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", part)
            assert hasattr(value, snake), field
            value = getattr(value, snake)


# The real server


@pytest.fixture(scope="module")
def groups() -> list[tuple[list[str], int]]:
    """Give every argument of the real llama-server: its names, and the number of its values."""
    if not SERVER.exists():
        pytest.skip(f"no llama-server {BUILD} in {SERVER.parent}: tests/cluster/build.sh makes it")
    done = subprocess.run([SERVER, "--help"], capture_output=True, text=True, check=True, timeout=30)
    return parse_help(done.stdout)


@pytest.fixture(scope="module")
def known(groups: list[tuple[list[str], int]]) -> dict[str, int]:
    """Give the number of values by name."""
    return {name: values for names, values in groups for name in names}


def parse_help(text: str) -> list[tuple[list[str], int]]:
    out: list[tuple[list[str], int]] = []
    for line in text.splitlines():
        if not line.startswith("-") or line.startswith("-----"):
            continue
        names: list[str] = []
        rest = line
        while found := re.match(r"(-[A-Za-z0-9.-]+)(,\s+)?", rest):
            names.append(found[1])
            rest = rest[found.end() :]
            if not found[2]:
                break
        # One space, then the value's name; the text of an argument without value is further right.
        out.append((names, 1 if re.match(r" [^ ]", rest) else 0))
    return out


def test_help_is_read_as_meant(known: dict[str, int]) -> None:
    assert len(known) > 250
    assert known["--device"] == known["-dev"] == known["--temp"] == known["--host"] == 1
    assert known["--metrics"] == known["--no-kv-unified"] == known["-nocb"] == known["--no-ui"] == 0


@pytest.mark.parametrize("argument", ALLOWED, ids=lambda one: str(one.names[0]))
def test_the_server_knows_every_allowed_argument(argument: object, known: dict[str, int]) -> None:
    one = next(each for each in ALLOWED if each is argument)
    assert {name: known.get(name) for name in one.names} == dict.fromkeys(one.names, one.values)


def test_the_server_knows_every_argument_that_has_a_field(known: dict[str, int]) -> None:
    assert set(OWN_FIELD) <= set(known)


def test_everything_else_that_the_server_knows_is_refused(known: dict[str, int]) -> None:
    allowed = {name for one in ALLOWED for name in one.names}
    assert [name for name in known if name not in allowed and check([name, "1"][: 1 + known[name]]) is None] == []


def test_every_spelling_is_known(groups: list[tuple[list[str], int]]) -> None:
    """An alias that the tables lack is refused too, but its user is told less than could be told."""
    ours = {name for one in ALLOWED for name in one.names} | set(OWN_FIELD)
    for names, _ in groups:
        positive = {name for name in names if not name.startswith(("--no-", "-no"))}
        if positive & ours:
            assert positive <= ours


SPECS = {
    "device": ({}, RTX_4080),
    "vulkan": ({}, INTEL),
    "cpu": ({"gpuLayers": 0}, None),
    "embedding": ({"mode": Mode.EMBEDDING}, RTX_4080),
    "rerank": ({"mode": Mode.RERANK}, RTX_4080),
    "user": ({"args": ["--temp", "0.2", "--ignore-eos"]}, RTX_4080),
}


@pytest.mark.parametrize("case", list(SPECS))
def test_the_server_knows_every_argument_that_is_rendered(case: str, known: dict[str, int]) -> None:
    serving, on = SPECS[case]
    rendered = arguments(deployment(serving=serving), bound(on), MOUNTED, 2)
    waiting = 0
    seen: list[str] = []
    for text in rendered:
        if waiting:
            waiting -= 1
            continue
        assert normal(text) in known, f"{text} in {rendered}"
        waiting = known[normal(text)]
        seen.append(text)
    assert waiting == 0
    assert len(seen) == len(set(seen))


def test_the_server_reads_the_rendered_arguments_and_fails_at_the_missing_file_alone(
    known: dict[str, int], tmp_path: Path
) -> None:
    assert known
    serving = {"gpuLayers": 0, "args": ["--temp", "-1", "--keep", "-1"], "cacheTypeK": CacheType.Q8_0}
    serving["flashAttention"] = FlashAttention.ON
    missing = Mounted("claim", "/models", str(tmp_path / "none.gguf"), 0)
    rendered = arguments(deployment(serving=serving), bound(None), missing, 1)
    rendered[rendered.index("--port") + 1] = "0"
    done = subprocess.run([SERVER, *rendered], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    assert "error while handling argument" not in done.stderr
    assert "invalid argument" not in done.stderr
    assert "failed to open GGUF file" in done.stderr

# ruff: noqa: INP001  (a script)
"""Write docs/cli.md from the command line itself; with `--check` only say whether it differs, and fail if it does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

from paddock.cli.main import app

TARGET = Path(__file__).resolve().parent / "cli.md"
SHARED = ("--namespace", "--context", "--kubeconfig")
HIDDEN = ("--help", "--install-completion", "--show-completion")
EXAMPLES = {
    "devices": ("paddock devices", "paddock devices -o wide", "paddock devices -o json"),
    "get": ("paddock get -A", "paddock get gemma -o yaml"),
    "explain": ("paddock explain gemma", "paddock explain gemma --brief"),
    "plan": ("paddock plan -f model.yaml --need 12Gi", "paddock plan -f model.yaml --fleet saved.yaml -o json"),
    "fleet": ("paddock fleet > saved.yaml",),
    "simulate": (
        "paddock simulate --workload trace.csv",
        "paddock simulate --fleet saved.yaml --fleet two-more-cards.yaml --workload trace.csv --svg memory.svg",
    ),
    "logs": ("paddock logs gemma -f", "paddock logs gemma --replica 1 --previous"),
    "chat": ('paddock chat gemma "Why is the sky blue?"', "paddock chat gemma < question.txt"),
    "cache": (
        "paddock cache list",
        "paddock cache prefetch gemma --select models=yes",
        "paddock cache verify --node node1",
        "paddock cache clear --key 5f2b",
    ),
    "restart": ("paddock restart gemma --wait",),
    "estimate": (
        "paddock estimate model.gguf",
        "paddock estimate model-00001-of-00003.gguf --context 32768 --parallel 4 --budget 24GiB --backend cuda",
        "paddock estimate https://example.com/model.gguf --cache-type-k q8_0 --cache-type-v q8_0 -o json",
    ),
    "doctor": ("paddock doctor", "paddock doctor --node node1", "paddock doctor -o json"),
    "top": ("paddock top", "paddock top --once", "paddock top --once -o json"),
    "crds": ("paddock crds | kubectl apply --server-side -f -",),
    "version": ("paddock version --client",),
}
HEAD = """<!-- Written by docs/generate_cli.py; change the source instead. -->
# Command line

`pip install ".[cli]"` in a checkout installs the program `paddock` (it is on no package index yet). The same program is
a plug-in of kubectl: every command below also works as `kubectl paddock ...`.

- In a terminal, tables are cut to its width (`-o wide` never is), and `explain` wraps. In a pipe nothing is cut, there
  is no colour, and each row is one line. `NO_COLOR=1` switches colours off everywhere.
- `-o json` and `-o yaml` print the objects as the API server has them (`explain`: a document of its own, in which
  `recorded` is what the operator wrote down and `now` is what the same question would give at this moment).
- A problem is one line on standard error that says what to do, and exit status 1; wrong usage has exit status 2.
  `PADDOCK_DEBUG=1` shows the traceback of an unexpected error.
- `paddock --install-completion` installs completion for the shell in use.
"""


def page() -> str:
    """Give the page."""
    commands: dict[str, Any] = getattr(get_command(app), "commands", {})
    parts = [HEAD]
    shared = {
        name: option
        for command in commands.values()
        if asks_cluster(command)
        for option in command.params
        for name in option.opts
    }
    parts.append("## Options of every command that asks the cluster\n\n" + table([shared[name] for name in SHARED]))
    parts += [section(name, command) for name, command in commands.items()]
    return "\n".join(parts)


def asks_cluster(command: Any) -> bool:
    """Tell whether a command has the shared options, and does not use one of their names for something else."""
    return {*SHARED} <= {name for one in command.params for name in one.opts}


def section(name: str, command: Any) -> str:
    """Describe one command."""
    hidden = {*HIDDEN, *(SHARED if asks_cluster(command) else ())}
    own = [one for one in command.params if not hidden & {*one.opts}]
    arguments = [one for one in own if one.param_type_name == "argument"]
    options = [one for one in own if one.param_type_name == "option"]
    usage = " ".join(
        [
            "paddock",
            name,
            *(one.metavar if one.required else f"[{one.metavar}]" for one in arguments),
            *(["[OPTIONS]"] if command.params else []),
        ]
    )
    out = f"## {name}\n\n{command.help}\n\n    {usage}\n"
    if own:
        out += "\n" + table([*arguments, *options])
    return out + "\n" + "".join(f"    {line}\n" for line in EXAMPLES[name])


def table(parameters: list[Any]) -> str:
    """Give a Markdown table of arguments and options."""
    lines = ["| | |\n|---|---|\n"]
    lines += [
        f"| {spelled(one)} | {(one.help or '').replace('|', chr(92) + '|')}{default(one)} |\n" for one in parameters
    ]
    return "".join(lines)


def spelled(parameter: Any) -> str:
    """Give how an argument or option is typed."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar}`".replace("|", "\\|")
    names = " ".join(f"`{name}`" for name in [*sorted(parameter.opts, key=len), *parameter.secondary_opts])
    return names if parameter.is_flag else f"{names} `{parameter.metavar}`".replace("|", "\\|")


def default(parameter: Any) -> str:
    """Give the default where there is one to tell."""
    value = parameter.default
    if value is None or isinstance(value, bool) or parameter.param_type_name == "argument":
        return ""
    return f" Default: `{getattr(value, 'value', value)}`."


def main() -> int:
    """Write the page, or compare it."""
    text = page()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write("docs/cli.md is not what docs/generate_cli.py writes; run it\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())

# ruff: noqa: INP001  (a script)
"""Write what is generated: crds/ (and in the chart) and docs/reference/ from models, vocabulary and chart values.

`python docs/generate.py` writes the files; with `--check` it only says which ones differ, and fails if any does.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from paddock.agent.settings import Settings as AgentSettings
from paddock.api.crd import KINDS, Kind, crds
from paddock.api.documented import document
from paddock.api.vocabulary import API_VERSION, CONDITION_MEANING, REASONS, VERDICTS, Entry
from paddock.controller.settings import Settings as OperatorSettings
from paddock.core.args import ALLOWED, OWN_FIELD, Argument
from paddock.core.images import BUILD
from paddock.fetch.settings import PREFIX as FETCH_PREFIX
from paddock.fetch.settings import Settings as FetchSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[1]
Schema = dict[str, Any]
NOTE = "<!-- Written by docs/generate.py; change the source instead. -->\n"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Give a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


# --- the custom resources


def type_name(node: Schema) -> str:
    """Say what values a field takes."""
    if node.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if node.get("x-kubernetes-preserve-unknown-fields"):
        return f"integer{bounds(node)}, `{node['pattern'].strip('^$')}` or object"
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    if "items" in node:
        return f"list of {type_name(node['items'])}"
    if patterns := node.get("patternProperties"):
        return f"map of {type_name(next(iter(patterns.values())))}"
    if isinstance(node.get("additionalProperties"), dict):
        return f"map of {type_name(node['additionalProperties'])}"
    return str(node.get("format") if node.get("format") == "date-time" else node.get("type")) + bounds(node)


def bounds(node: Schema) -> str:
    """Say the limits of a number, or the greatest length of a text."""
    if "minimum" in node and "maximum" in node:
        return f" {node['minimum']} to {node['maximum']}"
    if "minimum" in node:
        return f" from {node['minimum']}"
    return f" up to {node['maxLength']} characters" if "maxLength" in node else ""


def field_rows(node: Schema, prefix: str = "") -> list[tuple[str, ...]]:
    """Give a row for every field of an object, and for those inside it."""
    rows: list[tuple[str, ...]] = []
    for name, child in node.get("properties", {}).items():
        path = f"{prefix}{name}"
        needed = "required" if name in node.get("required", []) else ""
        plain = "properties" not in child or "type" not in child
        default = f"`{json.dumps(child['default'])}`" if plain and "default" in child else needed
        rows.append((f"`{path}`", type_name(child), default, child.get("description", "")))
        rows += field_rows(child, f"{path}.")
        rows += field_rows(child.get("items", {}), f"{path}[].")
    return rows


def rule_messages(node: Schema) -> list[str]:
    """Give what the API server says when a rule of the object or of a field is broken, each once."""
    found = [rule["message"] for rule in node.get("x-kubernetes-validations", [])]
    inner = [*node.get("properties", {}).values(), node.get("items", {}), node.get("additionalProperties", {})]
    found += [message for child in inner if isinstance(child, dict) and child for message in rule_messages(child)]
    return list(dict.fromkeys(found))


def kind_page(kind: Kind) -> str:
    """Give the reference page of a custom resource."""
    schema = kind.schema
    short = f", short `{kind.short_names[0]}`" if kind.short_names else ""
    where = f"`{API_VERSION}`, {kind.scope.lower()}, `kubectl get {kind.plural}`{short}"
    parts = [f"# {kind.kind}\n\n{NOTE}\n{schema['description']}\n\n{where}.\n"]
    head = ("field", "type", "default", "meaning")
    for part in ("spec", "status"):
        if part not in schema["properties"]:
            continue
        node = schema["properties"][part]
        plain = {name: child for name, child in node["properties"].items() if "properties" not in child}
        top = table(head, field_rows({**node, "properties": plain}))
        parts.append(f"## {part}\n\n{node['description']}\n\n{top}")
        for name, child in node["properties"].items():
            if "properties" in child:
                parts.append(f"### {part}.{name}\n\n{child['description']}\n\n" + table(head, field_rows(child)))
    if messages := rule_messages(schema):
        parts.append("## Rules\n\nThe API server refuses an object that breaks one of these, with these words:\n\n")
        parts[-1] += "".join(f"- {message}\n" for message in messages)
    columns = [(column.name, f"`{column.path}`", "`-o wide`" if column.wide else "") for column in kind.columns]
    parts.append("## Columns of kubectl get\n\n" + table(("column", "field", "shown"), columns))
    return "\n".join(parts)


# --- the vocabulary


def reasons_page() -> str:
    """Give the page of every condition, reason and verdict."""

    def rows(entries: dict[Any, Entry]) -> list[tuple[str, ...]]:
        return [(f"`{word}`", entry.meaning, entry.remedy) for word, entry in entries.items()]

    conditions = [(f"`{kind}`", meaning) for kind, meaning in CONDITION_MEANING.items()]
    head = ("word", "meaning", "what to do")
    return "\n".join(
        [
            f"# Conditions, reasons, verdicts\n\n{NOTE}",
            "## Conditions\n\nOf a ModelDeployment, and `Ready` of a GPU.\n\n"
            + table(("condition", "True means"), conditions),
            "## Reasons\n\nThe `reason` of a condition or an Event; the message beside it has the numbers.\n\n"
            + table(head, rows(dict(REASONS))),
            "## Verdicts\n\nWhat `paddock explain NAME` says about each device.\n\n"
            + table(head, rows(dict(VERDICTS))),
        ]
    )


# --- the chart's values


class Value(NamedTuple):
    """A key of values.yaml with the comment above it."""

    path: str
    comment: str


_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]\w*):")
_POOL = re.compile(r"^  (?P<key>[A-Za-z]\w*): +(?P<text>.*)$")


def read_comments(text: str) -> tuple[list[Value], dict[str, str]]:
    """Give every commented key in order, and the fields that the comment of `agents` lists."""
    values: list[Value] = []
    pool: dict[str, str] = {}
    comment: list[str] = []
    parents: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line.lstrip()[2:])
            continue
        if match := _KEY.match(line):
            parents = [*parents[: len(match["indent"]) // 2], match["key"]]
            if comment:
                plain, listed = _split_listed(comment)
                values.append(Value(".".join(parents), plain))
                pool |= listed
        comment = []
    return values, pool


def _split_listed(comment: list[str]) -> tuple[str, dict[str, str]]:
    plain: list[str] = []
    listed: dict[str, str] = {}
    for line in comment:
        if match := _POOL.match(line):
            listed[match["key"]] = match["text"]
        elif listed:
            listed[list(listed)[-1]] += " " + line.strip()
        else:
            plain.append(line)
    return " ".join(plain), listed


def value_schema(schema: Schema, path: str) -> Schema:
    """Find the schema of a value by its dotted path; KeyError when the schema has no such value."""
    node = schema
    for name in path.split("."):
        node = resolve(schema, node)["properties"][name]
    return resolve(schema, node)


def resolve(schema: Schema, node: Schema) -> Schema:
    """Follow references, also those of list items and map values."""
    if reference := node.get("$ref"):
        return resolve(schema, schema["$defs"][reference.removeprefix("#/$defs/")])
    out = dict(node)
    for key in ("items", "additionalProperties"):
        if isinstance(out.get(key), dict):
            out[key] = resolve(schema, out[key])
    return out


def default_of(values: Schema, path: str) -> str:
    """Give the default of a value as one line of JSON."""
    node: Any = values
    for name in path.split("."):
        node = node[name]
    text = json.dumps(node)
    return f"`{text}`"


def values_page(text: str, schema: Schema) -> str:
    """Give the page of the chart's values."""
    defaults = yaml.safe_load(text)
    values, pool = read_comments(text)
    rows = []
    for value in values:
        node = value_schema(schema, value.path)
        default = "see below" if value.path == "agents" else default_of(defaults, value.path)
        rows.append((f"`{value.path}`", type_name(node), default, value.comment))
    fields = resolve(schema, {"$ref": "#/$defs/pool"})["properties"]
    pools = [(f"`{name}`", type_name(resolve(schema, fields[name])), meaning) for name, meaning in pool.items()]
    written = yaml.safe_dump({"agents": defaults["agents"]}, sort_keys=False)
    return "\n".join(
        [
            f"# Values of the chart\n\n{NOTE}",
            "An unknown or misspelt value is refused. A list that you give replaces the whole default list.\n",
            table(("value", "type", "default", "meaning"), rows),
            "## Entries of agents\n\n" + table(("field", "type", "meaning"), pools),
            f"The default:\n\n```yaml\n{written}```\n",
        ]
    )


# --- settings of the programs


def settings_page() -> str:
    """Give the page of the environment variables that the programs read."""

    def rows(settings: type[BaseModel], prefix: str = "PADDOCK_") -> list[tuple[str, ...]]:
        document(settings)
        fields = settings.model_fields.items()
        return [
            (f"`{prefix}{name.upper()}`", setting_default(field.default), " ".join((field.description or "").split()))
            for name, field in fields
        ]

    head = ("variable", "default", "meaning")
    return "\n".join(
        [
            f"# Settings\n\n{NOTE}",
            "Environment variables. Set those that the chart has no value for by `operator.env` and `agents[].env`.\n",
            "## Operator\n\n" + table(head, rows(OperatorSettings)),
            "## Agent\n\n" + table(head, rows(AgentSettings)),
            "## Fetcher\n\n" + table(head, rows(FetchSettings, FETCH_PREFIX)),
        ]
    )


def setting_default(value: object) -> str:
    """Give a default as the variable's text would be; nothing where there is none."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | dict):
        return f"`{json.dumps(value)}`" if value else ""
    return f"`{value}`" if value not in (None, "") else ""


# --- arguments of llama-server


def values_of(argument: Argument) -> str:
    """Say how many values an argument takes, or which."""
    if argument.bounds is not None:
        return f"1, from {argument.bounds[0]} to {argument.bounds[1]}"
    return str(argument.values) if argument.values else ""


def arguments_page() -> str:
    """Give the page of the arguments that spec.serving.args may hold, and of those that have a field of their own."""
    allowed = [(spelled(one.names), one.text, values_of(one)) for one in ALLOWED]
    by_field: dict[str, list[str]] = {}
    for name, field in OWN_FIELD.items():
        by_field.setdefault(field, []).append(name)
    own = [(spelled(names), f"`spec.{field}`") for field, names in by_field.items()]
    intro = (
        "What `spec.serving.args` may hold, each name and each value as a list item of its own: "
        f'`["--temp", "0.7", "--no-jinja"]`. Names are those of build {BUILD}; in long names `_` counts as `-`.\n\n'
        "Everything else is refused with the reason `ArgumentRefused`: it could read or write files, run tools, open "
        "other devices, contact other machines or change the memory that is needed."
    )
    return "\n".join(
        [
            f"# Arguments of llama-server\n\n{NOTE}",
            f"{intro}\n",
            "## Allowed\n\n" + table(("argument", "meaning", "values"), allowed),
            "## With a field of their own\n\n" + table(("argument", "use"), own),
        ]
    )


def spelled(names: Sequence[str]) -> str:
    """Give every spelling of an argument."""
    return ", ".join(f"`{name}`" for name in names)


# --- all of it


def generated() -> dict[str, str]:
    """Give every generated file: path from the repository's root, and text."""
    chart = ROOT / "charts" / "paddock"
    values = (chart / "values.yaml").read_text(encoding="utf-8")
    schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    # Helm follows a link from the chart to crds/ only with a warning, and a chart has to hold all that it installs.
    files = {
        f"{folder}/{name}": text for folder in ("crds", "charts/paddock/files/crds") for name, text in crds().items()
    }
    files |= {f"docs/reference/{kind.kind.lower()}.md": kind_page(kind) for kind in KINDS}
    files["docs/reference/arguments.md"] = arguments_page()
    files["docs/reference/reasons.md"] = reasons_page()
    files["docs/reference/settings.md"] = settings_page()
    files["docs/reference/values.md"] = values_page(values, schema)
    return files


def differing(files: dict[str, str]) -> list[str]:
    """Name the files that are absent or have another text."""
    return [
        name
        for name, text in files.items()
        if not (path := ROOT / name).is_file() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    """Write or check; 1 when a check finds a difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file differs")
    only_check = parser.parse_args().check
    files = generated()
    names = differing(files)
    for name in names:
        sys.stdout.write(f"{'differs' if only_check else 'written'}: {name}\n")
        if not only_check:
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_text(files[name], encoding="utf-8")
    if only_check and names:
        sys.stdout.write("Run python docs/generate.py and commit the result.\n")
    return 1 if only_check and names else 0


if __name__ == "__main__":
    sys.exit(main())

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from paddock.api.crd import KINDS, MODEL_DEPLOYMENT, Kind, crds
from paddock.api.vocabulary import ConditionType
from support.structural import problems

if TYPE_CHECKING:
    from collections.abc import Iterator

every_kind = pytest.mark.parametrize("kind", KINDS, ids=[kind.plural for kind in KINDS])


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}.{key}")


@every_kind
def test_the_schema_is_structural(kind: Kind) -> None:
    assert problems(kind.schema) == []


@every_kind
def test_every_field_is_explained(kind: Kind) -> None:
    silent = [
        path
        for path, node in nodes(kind.schema)
        if "description" not in node and not path.endswith((".items", ".additionalProperties", ".metadata"))
    ]
    assert silent == []


@every_kind
def test_the_text_has_no_anchors_and_says_what_the_definition_says(kind: Kind) -> None:
    text = crds()[kind.file_name]
    assert " &id" not in text
    assert yaml.safe_load(text) == kind.definition()


@every_kind
def test_columns_show_fields_and_conditions_that_exist(kind: Kind) -> None:
    known = {path for path, _ in nodes(kind.schema)} | {".metadata.creationTimestamp"}
    types = {str(each) for each in ConditionType}
    for column in kind.columns:
        head, condition, tail = column.path.replace("[0]", ".items").partition('[?(@.type=="')
        name, _, field = tail.partition('")]')
        path = f"{head}.items{field}" if condition else head
        assert path in known, column
        assert not condition or name in types


def test_strings_and_lists_of_the_spec_are_bounded_so_that_rules_have_a_known_cost() -> None:
    unbounded = [
        path
        for path, node in nodes(MODEL_DEPLOYMENT.schema["properties"]["spec"])
        if (node.get("type") == "string" and not {"maxLength", "enum", "pattern"} & node.keys())
        or (node.get("type") == "array" and "maxItems" not in node)
        or ("additionalProperties" in node and "maxProperties" not in node)
    ]
    assert unbounded == []


def test_every_list_says_how_it_merges() -> None:
    loose = [
        path
        for kind in KINDS
        for path, node in nodes(kind.schema)
        if node.get("type") == "array" and "x-kubernetes-list-type" not in node
    ]
    assert loose == []

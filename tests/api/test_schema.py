from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from paddock.api.base import Model
from paddock.api.modeldeployment import ServingSpec
from paddock.api.schema import structural
from support.structural import problems


class Inner(Model):
    """An inner object."""

    size: Annotated[int, Field(ge=0, le=7)] = 3
    """A size."""
    note: str | None = None


class Outer(Model):
    """An object."""

    count: int
    inner: Inner = Inner()
    """What is
    inside."""
    bare: Inner
    maybe: Inner | None = None
    tags: dict[str, str] = {}  # noqa: RUF012  (pydantic copies defaults)
    names: list[str] = ["a"]  # noqa: RUF012


@pytest.fixture
def schema() -> dict[str, Any]:
    return structural(Outer, defaults=True)


def test_references_and_optional_values_are_resolved(schema: dict[str, Any]) -> None:
    assert problems(schema) == []
    assert schema["properties"]["maybe"]["properties"]["note"] == {"type": "string"}


def test_only_fields_without_default_are_required(schema: dict[str, Any]) -> None:
    assert schema["required"] == ["count", "bare"]


def test_the_text_beside_a_field_goes_before_that_of_its_type(schema: dict[str, Any]) -> None:
    assert schema["properties"]["inner"]["description"] == "What is inside."
    assert schema["properties"]["bare"]["description"] == "An inner object."


def test_integers_say_their_width(schema: dict[str, Any]) -> None:
    assert schema["properties"]["count"] == {"type": "integer", "format": "int64"}
    assert schema["properties"]["inner"]["properties"]["size"]["format"] == "int32"


def test_an_object_states_the_defaults_inside_it_and_empty_values_none(schema: dict[str, Any]) -> None:
    assert schema["properties"]["inner"]["default"] == {"size": 3}
    assert "default" not in schema["properties"]["bare"]
    assert "default" not in schema["properties"]["maybe"]
    assert "default" not in schema["properties"]["tags"]
    assert schema["properties"]["names"]["default"] == ["a"]


def test_a_status_has_no_defaults() -> None:
    assert '"default"' not in repr(structural(Outer, defaults=False)).replace("'", '"')


class Union(BaseModel):
    either: int | str


class Odd(BaseModel):
    value: Annotated[int, Field(gt=3)]


@pytest.mark.parametrize(("model", "message"), [(Union, "a union"), (Odd, "exclusiveMinimum")])
def test_what_has_no_structural_form_is_an_error(model: type[BaseModel], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        structural(model, defaults=True)


UNION: dict[str, Any] = structural(ServingSpec, defaults=True)["properties"]["contextLength"]


def test_a_field_of_several_forms_is_closed_on_every_side() -> None:
    assert problems(UNION) == []
    for key in ("required", "maxProperties", "maxItems", "not", "pattern", "multipleOf"):
        assert problems({name: value for name, value in UNION.items() if name != key}) != [], key


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({}, ": type None"),
        ({"type": "object", "properties": {"a": {"$ref": "x", "type": "string"}}}, ".a: $ref"),
        ({"type": "array"}, ": array without items"),
        ({"type": "string", "default": 1}, ": default 1 is no string"),
        ({"x-kubernetes-preserve-unknown-fields": True}, ": x-kubernetes-preserve-unknown-fields"),
        (
            {**UNION, "required": ["a"]},
            ": x-kubernetes-preserve-unknown-fields",
        ),
        (
            {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"},
            ": list map without keys",
        ),
    ],
)
def test_the_check_finds_what_is_not_structural(schema: dict[str, Any], problem: str) -> None:
    assert problem in problems(schema)

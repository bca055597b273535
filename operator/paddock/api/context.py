"""The context of a server as users ask for it: a number of tokens, the largest that fits, or a range.

One field of three forms has no type that the API server's rules could look into, so its schema is made of limits that
each hold one form, and `min` above `preferred` is told by the operator.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, PlainSerializer, PlainValidator, ValidationError, WithJsonSchema

from paddock.api.base import Model

MOST: Final = 16_777_216
"""Tokens."""
AUTO: Final = "Auto"

Tokens = Annotated[int, Field(ge=1, le=MOST)]


class ContextRange(Model):
    """The context that is wanted, and how little of it would do."""

    least: Annotated[Tokens, Field(alias="min", description="Tokens with which a device must be found.")]
    preferred: Annotated[Tokens, Field(description="Tokens that are taken where the chosen device has room for them.")]


class ContextChoice(Model):
    """The context that was chosen once, for all replicas of one spec."""

    length: int
    """Tokens that each request may use."""
    spec: str
    """Hash of the spec that it was chosen for: another spec decides anew."""


def _read(value: object) -> object:
    """Read one of the three forms; raises ValueError."""
    if value == AUTO or isinstance(value, ContextRange):
        return value
    if isinstance(value, dict):
        try:
            found = ContextRange.model_validate(value)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            raise ValueError(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error
        if found.least > found.preferred:
            raise ValueError(f"min is {found.least}, more than preferred, which is {found.preferred}")
        return found
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise ValueError(f"give a number of tokens from 1 to {MOST}, Auto, or {{min, preferred}}")
    return value


def _write(value: object) -> object:
    return value.to_dict() if isinstance(value, ContextRange) else value


def _end(field: str) -> dict[str, Any]:
    described = ContextRange.model_fields[field].description
    return {"type": "integer", "minimum": 1, "maximum": MOST, "description": described}


_SCHEMA: Final[dict[str, Any]] = {
    "x-kubernetes-preserve-unknown-fields": True,
    "minimum": 1,
    "maximum": MOST,
    "multipleOf": 1,
    "pattern": f"^{AUTO}$",
    "properties": {"min": _end("least"), "preferred": _end("preferred")},
    "required": ["min", "preferred"],
    "maxProperties": 2,
    "maxItems": 0,
    "not": {"enum": [True, False, []]},
}
"""Each keyword is held against one form alone: numbers, texts, objects, lists. So every other form is refused."""

ContextLength = Annotated[
    int | Literal["Auto"] | ContextRange,
    PlainValidator(_read),
    PlainSerializer(_write, return_type=object),
    WithJsonSchema(_SCHEMA, mode="validation"),
]
"""A number of tokens, Auto, or a range."""

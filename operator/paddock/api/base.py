"""The base of every model at a border: frozen, camelCase outside, snake_case inside."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from typing_extensions import override


def in_words(problem: str) -> str:
    """Give the message of a validation without the name that pydantic puts before what a validator says."""
    return problem.removeprefix("Value error, ")


class Model(BaseModel):
    """A frozen value that is read from or written to JSON; unknown fields are ignored, so that old reads new."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="ignore",
        defer_build=True,  # most are only ever parts of others
    )

    @override
    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Give itself: pydantic copies every default that is a model, at every reading."""
        return self

    def to_dict(self) -> dict[str, object]:
        """Give the JSON form: camelCase keys, absent values left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

"""Descriptions out of the text that follows each field."""

from typing import Annotated

from pydantic import BaseModel, Field

from paddock.api.documented import document
from paddock.api.modeldeployment import ModelDeploymentSpec, ModelDeploymentStatus
from paddock.api.placementpolicy import PlacementPolicySpec
from paddock.controller.settings import Settings


class Inner(BaseModel):
    """A part."""

    size: int
    """Its size."""


class Outer(Inner):
    """A whole."""

    parts: tuple[Inner, ...] | None = None
    """What it
    holds."""
    name: Annotated[str, Field(description="Said by hand.")]
    """Not used."""
    plain: int = 0


def test_every_field_is_described_at_every_depth() -> None:
    document(Outer)
    schema = Outer.model_json_schema()
    said = {name: one.get("description") for name, one in schema["properties"].items()}
    assert said == {"size": "Its size.", "parts": "What it\nholds.", "name": "Said by hand.", "plain": None}
    assert schema["$defs"]["Inner"]["properties"]["size"]["description"] == "Its size."


def test_every_option_of_every_model_has_a_description() -> None:
    for model in (ModelDeploymentSpec, ModelDeploymentStatus, PlacementPolicySpec, Settings):
        document(model)
        assert [name for name, field in model.model_fields.items() if not field.description] == [], model

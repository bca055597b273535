"""The docstrings of fields as their descriptions: for schemas and references, which no running program needs.

pydantic can do this itself, but then at each import, where it takes as long as making the models.
"""

import ast
import inspect
import textwrap
from typing import Any, get_args

from pydantic import BaseModel


def document(model: type[BaseModel]) -> None:
    """Describe the fields of a model, and of all models in it, by the text that follows each; what is described stays.

    Models are values that are known by their class: this changes it, once. Raises OSError without the source's text.
    """
    _document(model, set())


def _document(model: type[BaseModel], seen: set[type[BaseModel]]) -> None:
    if model in seen:
        return
    seen.add(model)
    for field in model.model_fields.values():
        for inner in _models(field.annotation):
            _document(inner, seen)
    for owner in reversed(model.__mro__):
        if issubclass(owner, BaseModel) and owner is not BaseModel:
            for name, text in _docstrings(owner).items():
                if name in model.model_fields and model.model_fields[name].description is None:
                    model.model_fields[name].description = text
    model.model_rebuild(force=True)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [one for argument in get_args(annotation) for one in _models(argument)]


def _docstrings(owner: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    out: dict[str, str] = {}
    name = None
    for statement in body.body if isinstance(body, ast.ClassDef) else ():
        match statement:
            case ast.AnnAssign(target=ast.Name(id=field)):
                name = field
            case ast.Expr(value=ast.Constant(value=str(text))) if name is not None:
                out[name], name = inspect.cleandoc(text), None
            case _:
                name = None
    return out

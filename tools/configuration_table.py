"""Prints the table of docs/configuration.md from app/settings: every knob, its type, default and meaning.

Run by `make docs`; a test fails where the page and the code differ.
"""

import ast
import inspect
import types
import typing
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from app.launch import config_file
from app.settings.applications import ServiceSettings

BEGIN, END = "<!-- knobs: begin (written by `make docs`) -->", "<!-- knobs: end -->"


def knob_tables() -> str:
    """Markdown: one table per section of `args`, then those of the file around it."""
    sections = [(f"args.{name}", field) for name, field in ServiceSettings.model_fields.items()]
    sections += [
        (n, f) for n, f in config_file.ServiceConfig.model_fields.items() if n.endswith(("_options", "_config"))
    ]
    parts = []
    for prefix, field in sections:
        model = _section(field)
        parts.append(f"### `{prefix}`\n\n{inspect.getdoc(model)}\n")
        parts.append("| setting | type | default | meaning |\n| --- | --- | --- | --- |")
        parts.append("\n".join(_rows(model, "")) + "\n")
    return "\n".join(parts)


def with_tables(page: str) -> str:
    """The page with its tables written anew."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{knob_tables()}\n{END}{after}"


def _section(field: FieldInfo) -> type[BaseModel]:
    """The class of a section, which may be left out."""
    kinds = typing.get_args(field.annotation) or (field.annotation,)
    return next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))


def _rows(model: type[BaseModel], prefix: str) -> list[str]:
    meanings = _meanings(model)
    rows = []
    for name, field in model.model_fields.items():
        cells = [f"`{prefix}{name}`", _type(field.annotation), _default(field), meanings.get(name, "")]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        for part in typing.get_args(field.annotation) or (field.annotation,):
            if isinstance(part, type) and issubclass(part, BaseModel):
                rows += _rows(part, f"{prefix}{name}.")
    return rows


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """The string literal below each field, on one line."""
    (definition,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(definition, ast.ClassDef)
    meanings, name = {}, None
    for statement in definition.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=field)):
                name = field
            case ast.Expr(value=ast.Constant(value=str(text))) if name is not None:
                meanings[name] = " ".join(text.split())
                name = None
            case _:
                name = None
    return meanings


def _type(annotation: object) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_type(part) for part in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    names: dict[object, str] = {str: "text", int: "whole number", float: "number", bool: "boolean", type(None): "none"}
    return names[annotation]


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "(required)"
    if value is None:
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    path = Path(__file__).parents[1] / "docs" / "configuration.md"
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")

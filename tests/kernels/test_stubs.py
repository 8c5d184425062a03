"""The stubs are written by hand, for readers and mypy: they have the names, parameters and defaults of the module."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

from kernels import _native

FOLDER = Path(_native.__file__).parent / "_native"
Signature = tuple[list[str], ...]


def signature(function: ast.FunctionDef) -> Signature:
    """Parameters by place, by name alone, and those that have a default."""
    by_place = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    by_name = [each.arg for each in function.args.kwonlyargs]
    optional = by_place[len(by_place) - len(function.args.defaults) :]
    optional += [name for name, default in zip(by_name, function.args.kw_defaults, strict=True) if default]
    return by_place, by_name, optional


def contents(text: str) -> dict[str, Signature | None]:
    """What a stub has, by name."""
    found: dict[str, Signature | None] = {}
    todo = [("", node) for node in ast.parse(text).body]
    for prefix, node in todo:
        match node:
            case ast.ClassDef():
                found[prefix + node.name] = None
                todo += [(f"{prefix}{node.name}.", inner) for inner in node.body]
            case ast.FunctionDef():
                found[prefix + node.name] = signature(node)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found[prefix + name] = None
    return found


@pytest.mark.parametrize(
    ("module", "stub"), [("kernels._native", "__init__.pyi"), ("kernels._native.testing", "testing.pyi")]
)
def test_a_stub_has_what_the_module_has(module: str, stub: str) -> None:
    generator = pytest.importorskip("nanobind.stubgen").StubGen(import_module(module))
    generator.put(import_module(module))
    wanted, written = contents(generator.get()), contents((FOLDER / stub).read_text(encoding="utf-8"))
    protocols = [name for name in written if name.partition(".")[0] == "ModelFiles"]  # what `Model` takes
    assert {name: each for name, each in written.items() if name not in protocols} == wanted

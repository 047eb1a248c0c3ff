"""Compares the built native module with _native.pyi: the same public names, the same parameters of every function."""

import ast
import importlib
import importlib.resources
import re
import sys
from collections.abc import Mapping
from types import ModuleType

MODULE = "dflash_local._native"
Names = dict[str, str]  # qualified name -> "value" or the parameters


def parameters(function: ast.FunctionDef) -> str:
    """Parameters without their types: names, kinds, and which of them have a default."""
    for argument in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]:
        argument.annotation = None
    for special in (function.args.vararg, function.args.kwarg):
        if special is not None:
            special.annotation = None
    function.args.defaults = [ast.Constant(...) for _ in function.args.defaults]
    function.args.kw_defaults = [default and ast.Constant(...) for default in function.args.kw_defaults]
    return f"({ast.unparse(function.args)})"


def is_public(name: str) -> bool:
    return not name.startswith("_") or name == "__init__"


def stub_names(body: list[ast.stmt], prefix: str = "") -> Names:
    names: Names = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[prefix + node.target.id] = "value"
        elif isinstance(node, ast.FunctionDef) and is_public(node.name):
            names[prefix + node.name] = "value" if node.decorator_list else parameters(node)
        elif isinstance(node, ast.ClassDef) and not any(ast.unparse(base) == "TypedDict" for base in node.bases):
            names[prefix + node.name] = "class"
            names |= stub_names(node.body, f"{prefix}{node.name}.")
    return names


def native_signature(value: object) -> str:
    """The parameters of a nanobind function, from the signature it carries, less what is not Python syntax in it."""
    ((text, _doc, _defaults),) = getattr(value, "__nb_signature__")  # noqa: B009
    text = re.sub(r"\\\d+", "...", text)  # places of defaults
    text = re.sub(r"ndarray\[[^]]*\]", "ndarray", text)
    (function,) = ast.parse(f"{text}: ...").body
    assert isinstance(function, ast.FunctionDef)
    return parameters(function)


def native_names(members: Mapping[str, object], prefix: str = "") -> Names:
    names: Names = {}
    for name, value in members.items():
        if not is_public(name) or isinstance(value, ModuleType):
            continue
        if hasattr(value, "__nb_signature__") and not isinstance(value, type):
            names[prefix + name] = native_signature(value)
        elif isinstance(value, type):
            names[prefix + name] = "class"
            names |= native_names(vars(value), f"{prefix}{name}.")
        else:
            names[prefix + name] = "value"
    return names


def differences() -> list[str]:
    package, _, stub = MODULE.rpartition(".")
    text = importlib.resources.files(package).joinpath(f"{stub}.pyi").read_text(encoding="utf-8")
    expected = stub_names(ast.parse(text).body)
    actual = native_names(vars(importlib.import_module(MODULE)))
    return [
        f"{name}: the stub has {expected.get(name, 'nothing')}, the module {actual.get(name, 'nothing')}"
        for name in sorted(expected | actual)
        if expected.get(name) != actual.get(name)
    ]


if __name__ == "__main__":
    found = differences()
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(1 if found else 0)

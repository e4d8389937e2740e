"""A mutant: one function of a file with one formula changed, put into the modules that are already loaded.

The code object of the live function is replaced, so every `from x import f` sees the change, and nothing is imported
anew. That is done in a forked child, which ends with the mutant.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

ROOT = Path(__file__).parents[2]
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(source: str) -> dict[str, FunctionNode]:
    """Functions and methods of a module by qualified name; those inside functions belong to the outer one."""
    return dict(_functions(ast.parse(source).body, ""))


def changed_functions(before: str, after: str) -> list[str]:
    """Qualified names of the functions in which two versions of a file differ."""
    old, new = functions_of(before), functions_of(after)
    return [name for name, node in new.items() if name not in old or ast.dump(node) != ast.dump(old[name])]


def apply(path: str, mutated: str) -> list[str]:
    """Puts the changed functions of a mutated file into its loaded module; returns their names.

    Raises ValueError where nothing changed: a mutant that is the original tests nothing.
    """
    file = ROOT / path
    names = changed_functions(file.read_text(encoding="utf-8"), mutated)
    if not names:
        raise ValueError(f"{path}: no function differs from the original")
    module = importlib.import_module(path.removeprefix("lab/").removesuffix(".py").replace("/", "."))
    codes = _codes(compile(mutated, str(file), "exec", dont_inherit=True))
    nodes = functions_of(mutated)
    for name in names:
        function = live_function(module, name)
        function.__code__ = codes[name]
        positional, keyword = _defaults(nodes[name], function.__globals__)
        function.__defaults__ = positional or None
        function.__kwdefaults__ = keyword or None
    return names


def live_function(module: Any, name: str) -> FunctionType:
    """The plain function behind a qualified name: inside properties, class methods, caches and wrappers."""
    owner: Any = module
    for part in name.split("."):
        owner = vars(owner)[part]
    if isinstance(owner, property):
        owner = owner.fget
    if isinstance(owner, staticmethod | classmethod):
        owner = owner.__func__
    function = inspect.unwrap(owner)
    if not isinstance(function, FunctionType):
        raise TypeError(f"{module.__name__}.{name} is no function")
    return function


def _functions(body: list[ast.stmt], prefix: str) -> list[tuple[str, FunctionNode]]:
    found: list[tuple[str, FunctionNode]] = []
    for node in body:
        if isinstance(node, FunctionNode):
            found.append((prefix + node.name, node))
        elif isinstance(node, ast.ClassDef):
            found += _functions(node.body, f"{prefix}{node.name}.")
    return found


def _codes(code: CodeType) -> dict[str, CodeType]:
    """Code of every function outside functions, by qualified name."""
    found: dict[str, CodeType] = {}
    for constant in code.co_consts:
        if not isinstance(constant, CodeType):
            continue
        if constant.co_flags & inspect.CO_OPTIMIZED:
            found[constant.co_qualname] = constant
        else:  # the body of a class
            found |= _codes(constant)
    return found


def _defaults(node: FunctionNode, names: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def value(expression: ast.expr) -> Any:
        return eval(compile(ast.Expression(expression), "<default>", "eval"), names)

    arguments = node.args
    keyword = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return (
        tuple(value(default) for default in arguments.defaults),
        {argument.arg: value(default) for argument, default in keyword if default is not None},
    )

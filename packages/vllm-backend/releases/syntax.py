"""Finds names in the Python sources of a package through their syntax trees, and imports none of them."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Found:
    """What stands behind a name.

    Attributes:
        kind: `module`, `class`, `function`, `property`, or `value` for anything that is assigned or annotated.
        file: Where it is defined, from the folder that holds the package.
        parameters: Of a function, or of a class's constructor: `name`, `name=` with a default, `*name`, `**name`.
        annotation: Of a value, or of what a function returns; empty where none is written.
        body: A digest of a function's source without docstring, comments and blank lines; empty for everything else.
    """

    kind: str
    file: str
    parameters: tuple[str, ...] = ()
    annotation: str = ""
    body: str = ""


class Sources:
    """The modules below one folder, parsed when they are needed."""

    def __init__(self, root: Path, package: str) -> None:
        """Look at `root`, the folder that holds the package."""
        self._root = root
        self._package = package
        self._modules: dict[str, tuple[Path, ast.Module, list[str]] | None] = {}

    def find(self, target: str) -> Found | None:
        """Find `"module:qualified.name"`, or a module where nothing follows the colon; None if it is not there."""
        module, _, path = target.partition(":")
        if not path:
            parsed = self._parsed(module)
            return Found("module", self._place(parsed[0])) if parsed else None
        return self._lookup(module, path.split("."), frozenset())

    # Modules ------------------------------------------------------------------------------------------------------

    def _parsed(self, module: str) -> tuple[Path, ast.Module, list[str]] | None:
        if module not in self._modules:
            self._modules[module] = None
            base = self._root.joinpath(*module.split("."))
            for path in (base / "__init__.py", base.with_suffix(".py")):
                if path.is_file():
                    text = path.read_text(encoding="utf-8")
                    self._modules[module] = (path, ast.parse(text), text.splitlines())
                    break
        return self._modules[module]

    def _place(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _lookup(self, module: str, names: list[str], seen: frozenset[tuple[str, str]]) -> Found | None:
        """Follow a qualified name that starts in a module, through imports and base classes."""
        where = self._define(module, names[0], seen)
        if where is None:
            return None
        home, node = where
        if isinstance(node, ast.ClassDef):
            return self._in_class(home, node, names[1:], seen)
        if len(names) > 1:
            return None
        return self._describe(home, node)

    def _define(
        self, module: str, name: str, seen: frozenset[tuple[str, str]]
    ) -> tuple[str, ast.ClassDef | _Function | ast.Assign | ast.AnnAssign | ast.Module] | None:
        """Find the module and the statement that define a module's name."""
        parsed = self._parsed(module)
        if parsed is None or (module, name) in seen:
            return None
        path, tree, _ = parsed
        seen |= {(module, name)}
        stars = []
        for statement in _statements(tree.body):
            if isinstance(statement, ast.ClassDef | _Function) and statement.name == name:
                return module, statement
            if isinstance(statement, ast.Assign | ast.AnnAssign) and name in _assigned(statement):
                return module, statement
            if isinstance(statement, ast.ImportFrom):
                source = self._absolute(module, path, statement)
                for alias in statement.names:
                    if alias.name == "*":
                        stars.append(source)
                    elif (alias.asname or alias.name) == name:
                        found = self._define(source, alias.name, seen)
                        if found is not None:
                            return found
        for source in stars:
            found = self._define(source, name, seen)
            if found is not None:
                return found
        submodule = self._parsed(f"{module}.{name}")
        return (f"{module}.{name}", submodule[1]) if submodule is not None else None

    def _absolute(self, module: str, path: Path, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        parts = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
        parts = parts[: len(parts) - statement.level + 1]
        return ".".join([*parts, *([statement.module] if statement.module else [])])

    # Classes ------------------------------------------------------------------------------------------------------

    def _in_class(
        self, module: str, node: ast.ClassDef, names: list[str], seen: frozenset[tuple[str, str]]
    ) -> Found | None:
        if not names:
            return Found("class", self._place(self._path(module)), tuple(self._constructor(module, node, seen)))
        if len(names) > 1:
            return None
        (name,) = names
        for home, kind in self._ancestry(module, node, seen):
            found = self._member(home, kind, name)
            if found is not None:
                return found
        return None

    def _ancestry(
        self, module: str, node: ast.ClassDef, seen: frozenset[tuple[str, str]]
    ) -> Iterator[tuple[str, ast.ClassDef]]:
        """List a class and those of its bases that belong to the package, depth first."""
        yield module, node
        for base in node.bases:
            name = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(name, ast.Name) and (module, name.id) not in seen:
                where = self._define(module, name.id, seen)
                if where is not None and isinstance(where[1], ast.ClassDef):
                    yield from self._ancestry(where[0], where[1], seen | {(module, name.id)})

    def _member(self, module: str, node: ast.ClassDef, name: str) -> Found | None:
        last: Found | None = None
        for statement in _statements(node.body):
            if isinstance(statement, _Function) and statement.name == name:
                decorators = {ast.unparse(decorator) for decorator in statement.decorator_list}
                if "overload" in decorators:
                    continue
                # The last definition is the one that counts; a setter follows its getter, and is not it.
                if not any(decorator.endswith(".setter") for decorator in decorators):
                    last = self._describe(module, statement)
            elif isinstance(statement, ast.Assign | ast.AnnAssign) and name in _assigned(statement):
                last = self._describe(module, statement)
        if last is not None:
            return last
        for statement in _statements(node.body):
            if isinstance(statement, _Function) and name in _attributes_set(statement):
                return Found("value", self._place(self._path(module)))
        return None

    def _constructor(self, module: str, node: ast.ClassDef, seen: frozenset[tuple[str, str]]) -> list[str]:
        """List the parameters of a class: those of its `__init__`, or the annotated fields of a dataclass or struct."""
        fields: list[str] = []
        for home, kind in self._ancestry(module, node, seen):
            init = self._member(home, kind, "__init__")
            if init is not None and init.kind == "function":
                return [name for name in init.parameters if name != "self"]
            own = [
                statement.target.id + ("=" if statement.value is not None else "")
                for statement in kind.body
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            ]
            fields = [*own, *fields]
        return fields

    # Descriptions -------------------------------------------------------------------------------------------------

    def _path(self, module: str) -> Path:
        parsed = self._parsed(module)
        assert parsed is not None
        return parsed[0]

    def _describe(self, module: str, node: ast.AST) -> Found:
        file = self._place(self._path(module))
        if isinstance(node, ast.Module):
            return Found("module", file)
        if isinstance(node, ast.AnnAssign):
            return Found("value", file, annotation=ast.unparse(node.annotation))
        if not isinstance(node, _Function):
            return Found("value", file)
        decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
        kind = "property" if decorators & {"property", "cached_property"} else "function"
        annotation = ast.unparse(node.returns) if node.returns is not None else ""
        return Found(kind, file, tuple(_parameters(node.args)), annotation, self._digest(module, node))

    def _digest(self, module: str, node: _Function) -> str:
        parsed = self._parsed(module)
        assert parsed is not None
        documented = ast.get_docstring(node, clean=False) is not None
        text = range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1) if documented else range(0)
        numbers = [number for number in range(node.lineno, (node.end_lineno or 0) + 1) if number not in text]
        lines = [parsed[2][number - 1].strip() for number in numbers]
        kept = [line for line in lines if line and not line.startswith("#")]
        return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:12]


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """List statements, those inside `if` and `try` included: imports for type checkers, and alternatives."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, part, []))
            for handler in getattr(statement, "handlers", []):
                yield from _statements(handler.body)


def _assigned(statement: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def _attributes_set(function: _Function) -> set[str]:
    """Return the attributes of `self` that a method sets."""
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    first_default = len(positional) - len(arguments.defaults)
    for index, argument in enumerate(positional):
        yield argument.arg + ("=" if index >= first_default else "")
    if arguments.vararg is not None:
        yield f"*{arguments.vararg.arg}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield argument.arg + ("=" if default is not None else "")
    if arguments.kwarg is not None:
        yield f"**{arguments.kwarg.arg}"

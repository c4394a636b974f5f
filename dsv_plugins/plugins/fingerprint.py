"""Fingerprints of plugins' code: an edited plugin is another plugin, whatever its version says.

A fingerprint covers the file of a factory with the files of its package, or with the files beside it that it imports;
the compiled code of the factory itself, which tells apart two classes of one name; and the versions of the libraries
that those files import. Of a package that is installed for good, the version stands for the files.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from dsv_plugins.plugins.records import unwrapped

__all__ = ["CONTENT", "fingerprint"]

CONTENT = "__plugin_content__"
"""The attribute of a module that says what was run, if that was not read from its file."""

DIGITS = 12
OWN_PACKAGE = "dsv_plugins"
INSTALLED = {"site-packages", "dist-packages"}
"""Folders whose files change with a version only. Packages that are installed to be edited lie elsewhere."""
NOT_CODE = {"__module__", "__doc__", "__qualname__", "__firstlineno__"}
"""Members of a class that say where it is, not what it does."""
NO_NEIGHBOURS = {OWN_PACKAGE, "torch", *sys.stdlib_module_names}
"""What a file imports from elsewhere, whatever lies beside it."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def fingerprint(factory: Callable[..., object]) -> str:
    """A hash of the code behind a factory; empty for our own, whose version says it all."""
    module = inspect.getmodule(unwrapped(factory))
    if module is not None and module.__name__.partition(".")[0] == OWN_PACKAGE:
        return ""
    digest = hashlib.sha256()
    for part in _code(factory, set()):
        digest.update(part)
    files = _files(module)
    if any(INSTALLED & set(file.parts) for file in files):
        assert module is not None
        digest.update(_version(module.__name__.partition(".")[0]).encode())
    else:
        sources = [_source(file) for file in files]
        if module is not None and hasattr(module, CONTENT):  # what was run counts, not what its file says by now
            own = Path(str(module.__file__)).absolute()
            sources = [module.__dict__[CONTENT], *(_source(file) for file in files if file != own)]
        for content in (*sources, *_libraries(sources)):
            digest.update(content)
    return digest.hexdigest()[:DIGITS]


# ---------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------


def _files(module: ModuleType | None) -> list[Path]:
    """The files that a module's behaviour depends on and that belong to its author, in a fixed order."""
    if module is None:
        return []
    package = sys.modules.get(module.__name__.partition(".")[0])
    folders = getattr(package, "__path__", None)
    if folders:
        return sorted(file for folder in folders for file in Path(folder).rglob("*.py"))
    file = getattr(module, "__file__", None)
    return sorted(_with_neighbours(Path(file))) if file else []


def _with_neighbours(file: Path) -> set[Path]:
    """A file, and those beside it that it imports, directly or not."""
    found: set[Path] = set()
    waiting = [file.absolute()]
    while waiting:
        each = waiting.pop()
        if each in found or not each.is_file():
            continue
        found.add(each)
        for name in _imported(_source(each)) - NO_NEIGHBOURS:
            waiting.append(each.with_name(f"{name}.py"))
            waiting.extend(each.with_name(name).rglob("*.py"))
    return found


@functools.cache
def _source(file: Path) -> bytes:
    # Read once: a process runs the code that it loaded, whatever the file says later.
    try:
        return file.read_bytes()
    except OSError:
        return b""


@functools.cache
def _imported(source: bytes) -> frozenset[str]:
    """The first parts of the names that a file imports."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return frozenset(names)


def _libraries(sources: list[bytes]) -> list[bytes]:
    """The libraries that files import, with their versions. Torch and ours are a part of every candidate's id."""
    names = {name for source in sources for name in _imported(source)}
    names -= NO_NEIGHBOURS
    return [f"{name} {_version(name)}".encode() for name in sorted(names)]


def _version(package: str) -> str:
    """The version of the distribution that a package comes with; empty if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # such as PIL, which comes with pillow
        names = _distributions().get(package, [])
        return metadata.version(names[0]) if names else ""


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


# ---------------------------------------------------------------------------
# Compiled code, for what has no file and for two of one name in a file
# ---------------------------------------------------------------------------


def _code(value: object, seen: set[int]) -> Iterator[bytes]:
    """What a function, a class or a partial does, and with which plain values."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, functools.partial):
        for part in (value.func, *value.args, *(value.keywords[name] for name in sorted(value.keywords))):
            yield from _code(part, seen)
        yield repr(sorted(value.keywords)).encode()
    elif isinstance(value, FunctionType):
        yield from _compiled(value.__code__)
        for part in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            yield from _code(part, seen)
        for cell in value.__closure__ or ():
            yield from _code(_content(cell), seen)
    elif isinstance(value, type):
        yield value.__qualname__.encode()
        for name, member in sorted(vars(value).items()):
            function = getattr(member, "__func__", member)
            # Not lists and the like, which may be caches; their first content is in the file.
            if isinstance(function, (FunctionType, tuple, *PLAIN)) and name not in NOT_CODE:
                yield name.encode()
                yield from _code(function, seen)
        for base in value.__bases__:
            if base.__module__ == value.__module__:
                yield from _code(base, seen)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _code(part, seen)
    elif isinstance(value, PLAIN):
        yield repr(value).encode()
    elif dataclasses.is_dataclass(value):
        yield type(value).__qualname__.encode()
        for field in dataclasses.fields(value):
            yield from _code(getattr(value, field.name), seen)
    else:
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()


def _compiled(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _compiled(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant))).encode()
        else:
            yield repr(constant).encode()


def _content(cell: object) -> object:
    try:
        return cell.cell_contents  # type: ignore[attr-defined]
    except ValueError:  # not set yet
        return None

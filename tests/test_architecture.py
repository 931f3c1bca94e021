"""The rooms of the package: which module may import which, read from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import ort_gridsample

PACKAGE = Path(ort_gridsample.__file__).parent
#: The lowest first; a room may import those below it, and itself. What is not named is a room of its own on top.
ROOMS = (
    "spec errors progress versions",
    "core",
    "checks",
    "functions",
    "model",
    "runtime",
    "patching",
    "interop",
    "cli",
)

#: What is imported by a name that is made at run time.
UNKNOWN = "?"

Imports = Mapping[str, set[str]]


def imports(root: Path) -> Imports:
    """Of every module below ``root``, by its dotted name there, what it imports: such names, or others' as they are."""
    modules = {}
    for file in root.rglob("*.py"):
        parts = file.relative_to(root).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return {
        name: {_inside(found, modules, root.name) for found in _imported(file, name)} for name, file in modules.items()
    }


def _imported(file: Path, name: str) -> Iterator[str]:
    """What is imported anywhere in the file, also in functions; relative names begin with a slash."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    package = [part for part in package if part]

    def relative(level: int, module: str) -> str:
        return "/" + ".".join([*package[: len(package) - level + 1], *module.split(".")]).strip(".")

    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = relative(node.level, node.module or "") if node.level else str(node.module)
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            module = node.args[0].value if isinstance(node.args[0], ast.Constant) else UNKNOWN
            level = len(module) - len(module.lstrip("."))
            yield relative(level, module[level:]) if level else module


def _inside(found: str, modules: Mapping[str, Path], package: str) -> str:
    """The module of the package that is meant: ``from .a import b`` is ``a.b`` or ``a``."""
    if found.startswith("/"):
        inside = found[1:].strip(".")
    elif found.split(".")[0] == package:
        inside = found.partition(".")[2]
    else:
        return found
    return inside if inside in modules else inside.rpartition(".")[0]


def room(module: str) -> int:
    """The room's number, from below."""
    first = module.split(".")[0]
    return next((number for number, names in enumerate(ROOMS) if first in names.split()), len(ROOMS))


def reached(module: str, graph: Imports) -> dict[str, str]:
    """All that ``module`` imports, directly or not, each with the chain that leads there."""
    chains, todo = {module: module}, [module]
    while todo:
        at = todo.pop()
        for found in sorted(graph.get(at, ()) - chains.keys()):
            chains[found] = f"{chains[at]} → {found}"
            todo.append(found)
    return chains


def upward(graph: Imports) -> list[str]:
    """Imports of a room by a lower one."""
    return [
        f"{module} → {found or 'the package'}"
        for module, all_found in sorted(graph.items())
        for found in sorted(all_found)
        if found in graph and room(found) > room(module)
    ]


def leads_to(graph: Imports, inside: str, others: tuple[str, ...]) -> list[str]:
    """Chains of imports from a module of the room ``inside`` to a package among ``others``, or to who knows what."""
    return [
        chain
        for module in sorted(graph)
        if module.split(".")[0] == inside
        for found, chain in sorted(reached(module, graph).items())
        if found not in graph and found.split(".")[0] in (*others, UNKNOWN)
    ]


def sessions(root: Path) -> list[str]:
    """The places in ``model/`` that name a session."""
    return [
        f"{file.relative_to(root)}:{node.lineno}"
        for file in sorted((root / "model").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr == "InferenceSession")
        or (isinstance(node, ast.Name) and node.id == "InferenceSession")
    ]


def test_no_module_imports_upward() -> None:
    graph = imports(PACKAGE)
    assert len({room(module) for module in graph}) == len(ROOMS) + 1, "a room is gone, or another one new"
    assert upward(graph) == []


def test_nothing_under_core_imports_onnx() -> None:
    graph = imports(PACKAGE)
    assert leads_to(graph, "core", ("onnx", "onnxruntime", "onnxruntime_extensions")) == []
    assert any(found.startswith("numba") for found in reached("core.choice", graph)), "a lazy import is not seen"


def test_nothing_in_model_opens_a_session() -> None:
    assert leads_to(imports(PACKAGE), "model", ("onnxruntime", "onnxruntime_extensions")) == []
    assert sessions(PACKAGE) == []


#: Trees that are wrong: their files, and what must be said of them.
WRONG = {
    "upward": (
        {"core/a.py": "from ..checks import b\n", "checks.py": "b = 1\n"},
        lambda root: upward(imports(root)),
        ["core.a → checks"],
    ),
    "upward, of a module by its room": (
        {"model/a.py": "def f():\n    from ..runtime import b\n", "runtime/b.py": ""},
        lambda root: upward(imports(root)),
        ["model.a → runtime.b"],
    ),
    "upward, by the full name": (
        {"functions.py": "import house.cli.a\n", "cli/a.py": ""},
        lambda root: upward(imports(root)),
        ["functions → cli.a"],
    ),
    "upward, of the package": (
        {"errors.py": "from . import a\n", "__init__.py": "a = 1\n"},
        lambda root: upward(imports(root)),
        ["errors → the package"],
    ),
    "core and onnx": (
        {"core/a.py": "import onnx.helper\n"},
        lambda root: leads_to(imports(root), "core", ("onnx",)),
        ["core.a → onnx.helper"],
    ),
    "core and onnx, not directly": (
        {"core/a.py": "from ..spec import b\n", "spec.py": "from .tables import c\n", "tables.py": "import onnx\n"},
        lambda root: leads_to(imports(root), "core", ("onnx",)),
        ["core.a → spec → tables → onnx"],
    ),
    "core and onnx, late": (
        {"core/a.py": "import_module('.b', __package__)\n", "core/b.py": "from onnx import helper\n"},
        lambda root: leads_to(imports(root), "core", ("onnx",)),
        ["core.a → core.b → onnx.helper", "core.b → onnx.helper"],
    ),
    "core and who knows what": (
        {"core/a.py": "import importlib\nimportlib.import_module(f'{a}.b')\n"},
        lambda root: leads_to(imports(root), "core", ("onnx",)),
        ["core.a → ?"],
    ),
    "model and onnxruntime": (
        {"model/a.py": "from .targets.b import c\n", "model/targets/b.py": "def c():\n    import onnxruntime\n"},
        lambda root: leads_to(imports(root), "model", ("onnxruntime",)),
        ["model.a → model.targets.b → onnxruntime", "model.targets.b → onnxruntime"],
    ),
    "a session": (
        {"model/a.py": "def f(runtime):\n    return runtime.InferenceSession('m.onnx')\n"},
        sessions,
        ["model/a.py:2"],
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_tree_is_seen(wrong: str, tmp_path: Path) -> None:
    files, check, said = WRONG[wrong]
    root = tmp_path / "house"
    for name, source in files.items():
        for folder in [root / name, *(root / name).parents][1:]:
            if folder == tmp_path:
                break
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").touch()
        (root / name).write_text(source)
    assert check(root) == said

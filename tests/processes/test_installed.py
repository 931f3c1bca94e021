"""Installed releases: their bounds, errors for missing ones, and builds of onnxruntime."""

import ast
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ort_gridsample import __version__, cli, versions
from ort_gridsample.custom_ops.compiled_ops.catalog import OPS
from support.installations import call, onnxruntime_files, other_build_of_onnxruntime
from support.paths import needs_python_ops
from support.processes import PROGRAMS, run_json_program, run_script

REPOSITORY = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
#: The table of the hook that sets the metadata.
HOOK = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]


@pytest.mark.parametrize(
    ("name", "release", "is_supported"),
    [
        ("onnxruntime", "1.17", True),
        ("onnxruntime", "1.17.0", True),
        ("onnxruntime", "1.100.0.dev20300101+gpu", True),
        ("onnxruntime", "2.0", True),
        ("onnxruntime", "1.16.3", False),
        ("onnxruntime", "0.99", False),
        ("numpy", "1.26.0rc1", True),
        ("numpy", "2.0.0", True),
        ("numpy", "1.25.2", False),
    ],
)
def test_incompatibility_message_is_empty_for_supported_releases(
    name: str, release: str, is_supported: bool
) -> None:
    assert bool(versions.incompatibility_message(name, release)) is not is_supported


@pytest.fixture(scope="module")
def import_errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("broken")
    (folder / "onnx.py").write_text("import missing_dependency")
    return run_json_program("broken_installations.py", str(folder))


def test_import_with_old_or_missing_dependency_names_the_release_to_install(
    import_errors: dict[str, str],
) -> None:
    for name in ("numpy", "onnx", "onnxruntime"):
        oldest = versions.OLDEST[name]
        assert import_errors[f"old {name}"] == (
            f"ort_gridsample needs {name} {oldest} or newer, and 0.9.1 is installed: "
            f"pip install '{name}>={oldest}'"
        )
        missing = import_errors[f"no {name}"]
        assert missing.startswith(
            f"ort_gridsample needs {name}, and none is installed: pip install {name}"
        )
        assert ("onnxruntime-gpu" in missing) == (name == "onnxruntime")


def test_import_in_broken_environment_explains_what_is_wrong(
    import_errors: dict[str, str],
) -> None:
    assert import_errors["incomplete onnxruntime"].startswith(
        "what is installed as onnxruntime is incomplete: uninstall every build of it"
    )
    assert import_errors["old Python"] == (
        "ort_gridsample needs Python 3.11 or newer, and this is 3.9"
    )


def test_import_error_of_another_package_is_unchanged(import_errors: dict[str, str]) -> None:
    message = "No module named 'missing_dependency'"
    assert import_errors["missing dependency of onnx"] == message


@needs_python_ops
def test_older_onnxruntime_extensions_are_refused_before_their_library_is_loaded() -> None:
    error, is_loaded = run_json_program("older_extensions.py")
    message = "ort_gridsample needs onnxruntime-extensions 0.11 or newer, and 0.10.1 is installed"
    assert message in error
    assert not is_loaded


@pytest.mark.parametrize(
    ("release", "needed"), [("0.60.0", "0.61 or newer"), ("0.69.0", "older than 0.69")]
)
def test_untested_numba_is_used_only_if_requested(release: str, needed: str) -> None:
    pytest.importorskip("numba", reason="Numba is not installed")
    script = f"""
import numba
numba.__version__ = "{release}"
import numpy as np, ort_gridsample as ogs
def sample():
    return ogs.grid_sample(np.ones((1, 1, 4, 4), "f"), np.zeros((1, 2, 2, 2), "f")).shape
print(sample(), ogs.get_core(), ogs.get_ops())
for function in lambda: ogs.set_ops("compiled"), lambda: ogs.set_core("jit") or sample():
    print(told(function))
"""
    defaults, *errors = run_script(script)
    assert defaults == "(1, 1, 2, 2) numpy python"
    message = f"numba {needed}, and {release} is installed: pip install 'numba>=0.61"
    assert len(errors) == 2
    for error in errors:
        assert error.startswith("ImportError: ")
        assert f"ort_gridsample needs {message}" in error


def test_bounds_of_releases_agree() -> None:
    requirements = [*HOOK["dependencies"], *PROJECT["optional-dependencies"]["jit"]]
    assert (
        dict(re.findall(r"^([\w-]+)>=([\d.]+)", requirement)[0] for requirement in requirements)
        == versions.OLDEST
    )
    assert f"numba>={versions.OLDEST['numba']},<{versions.UNTESTED_NUMBA}" in requirements
    assert PROJECT["requires-python"] == ">=" + ".".join(map(str, versions.PYTHON))
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + "".join(map(str, versions.PYTHON))


MODULES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (REPOSITORY / "ort_gridsample").rglob("*.py")
}
#: The modules that Python, entry points and tools import, and those imported by a computed name.
ENTRIES = {
    "ort_gridsample",
    "ort_gridsample.__main__",
    "ort_gridsample.custom_ops.compiled_ops.foreign",
    "ort_gridsample.library.emission",
    "ort_gridsample.library.wheel",
    "ort_gridsample._pyinstaller.hook-ort_gridsample",
    *(f"ort_gridsample.cli.{name}" for name in cli.COMMANDS),
    *(f"ort_gridsample.custom_ops.compiled_ops.{op.implementation.split('.')[0]}" for op in OPS),
}


def imported_modules(name: str) -> Iterator[str]:
    """Yield the package's modules that a module imports, at any depth of its code."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            folders = package.split(".")
            base = ".".join(folders[: len(folders) - node.level + 1])
            if node.module:
                base = f"{base}.{node.module}"
            candidates = [base, *(f"{base}.{alias.name}" for alias in node.names)]
            yield from (candidate for candidate in candidates if candidate in MODULES)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            first = node.args[0]
            if isinstance(first, ast.Constant) and f"{package}{first.value}" in MODULES:
                yield f"{package}{first.value}"


def test_every_module_is_imported() -> None:
    reached: set[str] = set()
    pending = set(ENTRIES)
    while pending:
        name = pending.pop()
        reached.add(name)
        parents = [name.rpartition(".")[0]] if "." in name else []
        pending |= {*parents, *imported_modules(name)} - reached
    assert set(MODULES) - reached == set()


def test_package_contains_no_benchmark_suite() -> None:
    assert not any("bench" in name for name in MODULES if name != "ort_gridsample.cli.bench")


@pytest.fixture
def build() -> ModuleType:
    """The module with hatchling's hooks."""
    pytest.importorskip("hatchling", reason="it comes with the extra 'dev'")
    spec = importlib.util.spec_from_file_location("hatch_build", REPOSITORY / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def links_to_files(text: str) -> list[str]:
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [path for path in re.findall(r"\]\(([^)]+)\)", text) if path[:1] != "#"]


def test_readme_on_package_index_without_a_repository_has_no_relative_links(
    build: ModuleType,
) -> None:
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    shown = build.with_absolute_links(readme, "", "HEAD")
    assert all(path.startswith("https://") for path in links_to_files(shown))
    for text in re.findall(r"(?<!!)\[([^\[\]]+)\]\([^)#:]+\)", readme):
        assert text in shown


def test_readme_on_package_index_links_to_the_files_of_the_repository(build: ModuleType) -> None:
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    environment = {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "a/b"}
    repository = build.repository_address(environment)
    shown = build.with_absolute_links(readme, repository, "abc")
    paths = links_to_files(shown)
    assert all(path.startswith("https://") for path in paths)
    prefix = re.compile(r"https://example\.org/a/b/(blob|raw)/abc/")
    files = [prefix.sub("", path).partition("#")[0] for path in paths if prefix.match(path)]
    assert len(files) > 10
    assert all((REPOSITORY / file).exists() for file in files)


def test_metadata_of_a_build_in_a_repository_have_its_addresses(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://example.org")
    monkeypatch.setenv("GITHUB_REPOSITORY", "a/b")
    metadata: dict[str, Any] = {}
    build.ProjectHook(str(REPOSITORY), HOOK).update(metadata)
    assert metadata["urls"]["Repository"] == "https://example.org/a/b"
    assert {*metadata["urls"]} == {*build.ADDRESSES}


def test_metadata_of_a_build_from_an_sdist_are_those_of_the_sdist(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    packed = "Metadata-Version: 2.4\nProject-URL: Issues, https://example.org/i\n\n# Title\nText"
    (tmp_path / "PKG-INFO").write_text(packed)
    metadata: dict[str, Any] = {}
    build.ProjectHook(str(tmp_path), HOOK).update(metadata)
    assert metadata["urls"] == {"Issues": "https://example.org/i"}
    assert metadata["readme"]["text"] == "# Title\nText"


def test_metadata_of_another_build_have_no_addresses(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    metadata: dict[str, Any] = {}
    build.ProjectHook(str(REPOSITORY), HOOK).update(metadata)
    assert metadata["urls"] == {}


def test_changelog_starts_with_this_version() -> None:
    text = (REPOSITORY / ".github" / "docs" / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", text, re.MULTILINE)[0] == __version__


def test_citation_is_of_this_version() -> None:
    text = (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (\S+)", text, re.MULTILINE) == [__version__]


#: The page's commands after the one that installs the other build. Here they install a clone.
COMMANDS = re.compile(
    r"^pip (install --no-deps \.)\npip (install [^#\n]*)\npip (install [^#\n]*)", re.MULTILINE
)


@pytest.mark.network
@pytest.mark.timeout(900)
def test_installation_does_not_change_another_build_of_onnxruntime(tmp_path: Path) -> None:
    python = other_build_of_onnxruntime(tmp_path)
    before = onnxruntime_files(python)
    (commands,) = COMMANDS.findall(
        (REPOSITORY / "ort_gridsample" / "INSTALL.md").read_text(encoding="utf-8")
    )
    for command in commands:
        words = [REPOSITORY if word == "." else word for word in shlex.split(command)]
        call(python, "-m", "pip", *words)
    assert call(python, PROGRAMS / "sample_one_pixel.py") == "3 compiled op\n"
    assert onnxruntime_files(python) == before

"""Test the files of a release, which .ci/release builds.

Most tests take files that stand in for the libraries. One builds a small library.
"""

import email
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.message import Message
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ort_gridsample import __version__
from ort_gridsample.custom_ops.compiled_ops.linking import MACHINES
from ort_gridsample.kernels import library_trailer
from support.cases import Attributes
from support.installations import call, onnxruntime_files, other_build_of_onnxruntime
from support.models import grid_sample_model
from support.processes import PROGRAMS

REPOSITORY = Path(__file__).parents[2]
for _name in ("cyclonedx", "hatchling", "twine", "ziglang", "numba"):
    if importlib.util.find_spec(_name) is None:
        pytest.skip(f"{_name} comes with the extra 'release'", allow_module_level=True)

TAGS = {
    "x86_64-linux": "py3-none-manylinux_2_17_x86_64",
    "aarch64-linux": "py3-none-manylinux_2_17_aarch64",
    "x86_64-windows": "py3-none-win_amd64",
    "aarch64-macos": "py3-none-macosx_11_0_arm64",
}
LIBRARY_IN_WHEEL = {
    "x86_64-linux": "libort_gridsample.so",
    "aarch64-linux": "libort_gridsample.so",
    "x86_64-windows": "libort_gridsample.dll",
    "aarch64-macos": "libort_gridsample.dylib",
}
on_every_target = pytest.mark.parametrize("target", TAGS)


def load_script() -> ModuleType:
    """Return the module .ci/release_files.py."""
    path = REPOSITORY / ".ci" / "release_files.py"
    spec = importlib.util.spec_from_file_location("release_files", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release_files: Any = load_script()


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release whose libraries have no code."""
    folder = tmp_path_factory.mktemp("release")
    libraries = {}
    for target, machine in MACHINES.items():
        name = f"{machine.processor}-{machine.system}"
        content = library_trailer.append_trailer(target.encode(), __version__, name, ["generic"])
        libraries[target] = folder / release_files.library_name(target)
        libraries[target].write_bytes(content)
    release_files.write_files(folder, libraries)
    return folder


def wheel_path(release: Path, distribution: str, target: str) -> Path:
    return release / f"{distribution}-{__version__}-{TAGS[target]}.whl"


def wheel_metadata(path: Path) -> Message:
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def requirements(metadata: Message) -> set[str]:
    """Return the names of the distributions that are required without an extra."""
    required = [text for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text]
    return {re.match(r"[\w-]+", text)[0] for text in required}  # type: ignore[index]


def test_release_has_wheels_libraries_and_the_sdist(release: Path) -> None:
    distributions = ("ort_gridsample", "onnxruntime_ep_gridsample")
    wheels = {wheel_path(release, name, target).name for name in distributions for target in TAGS}
    libraries = {
        f"libort_gridsample-{__version__}-{target}{Path(LIBRARY_IN_WHEEL[target]).suffix}"
        for target in TAGS
    }
    others = {
        f"ort_gridsample-{__version__}.tar.gz",
        "ort-gridsample.cdx.json",
        "LICENSE",
        "SHA256SUMS",
    }
    assert {path.name for path in release.iterdir()} == wheels | libraries | others


def test_checksums_of_a_release_are_those_of_all_other_files(release: Path) -> None:
    lines = (release / "SHA256SUMS").read_text("utf-8").splitlines()
    hashes = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert hashes == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in release.iterdir()
        if path.name != "SHA256SUMS"
    }


@on_every_target
@pytest.mark.parametrize("distribution", ["ort_gridsample", "onnxruntime_ep_gridsample"])
def test_wheel_has_the_library_of_its_platform(
    distribution: str, target: str, release: Path
) -> None:
    library = (release / release_files.library_name(target)).read_bytes()
    with zipfile.ZipFile(wheel_path(release, distribution, target)) as archive:
        names = [name for name in archive.namelist() if "libort_gridsample" in name]
        assert names == [f"{distribution}/{LIBRARY_IN_WHEEL[target]}"]
        assert archive.read(names[0]) == library
        tag = archive.read(f"{distribution}-{__version__}.dist-info/WHEEL").decode()
    assert f"\nTag: {TAGS[target]}\n" in tag
    assert "\nRoot-Is-Purelib: false\n" in tag


@on_every_target
def test_wheel_with_a_library_does_not_require_numba(target: str, release: Path) -> None:
    metadata = wheel_metadata(wheel_path(release, "ort_gridsample", target))
    assert requirements(metadata) == {"numpy", "onnx", "onnxruntime", "onnxruntime-extensions"}
    assert any(text.startswith("numba") for text in metadata.get_all("Requires-Dist", []))


@on_every_target
def test_wheel_of_the_provider_requires_nothing(target: str, release: Path) -> None:
    metadata = wheel_metadata(wheel_path(release, "onnxruntime_ep_gridsample", target))
    assert requirements(metadata) == set()


def test_sdist_requires_numba_where_it_has_no_other_ops(release: Path) -> None:
    with tarfile.open(release / f"ort_gridsample-{__version__}.tar.gz") as archive:
        packed = archive.extractfile(f"ort_gridsample-{__version__}/PKG-INFO")
        assert packed is not None
        metadata = email.message_from_bytes(packed.read())
    (numba,) = (
        text
        for text in metadata.get_all("Requires-Dist", [])
        if text.startswith("numba") and "extra ==" not in text
    )
    assert "python_version >= '3.14'" in numba


def test_metadata_of_a_release_are_valid(release: Path) -> None:
    release_files.check_distributions(release)


def test_bill_of_materials_has_the_compiler_the_linker_and_all_libraries(release: Path) -> None:
    """The script itself checks the format."""
    bill = json.loads((release / "ort-gridsample.cdx.json").read_text("utf-8"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/ort-gridsample@{__version__}"
    components = {part["name"]: part for part in bill["components"]}
    for name in ("numba", "llvmlite", "ziglang"):
        version = importlib.metadata.version(name)
        assert components.pop(name)["purl"] == f"pkg:pypi/{name}@{version}"
    llvm = components.pop("LLVM")
    assert re.fullmatch(r"\d+\.\d+\.\d+", llvm["version"])
    for target in TAGS:
        path = release / release_files.library_name(target)
        (entry,) = components.pop(path.name)["hashes"]
        assert entry == {"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert components == {}
    depends_on = {entry["ref"]: entry.get("dependsOn") for entry in bill["dependencies"]}
    assert llvm["purl"] in depends_on[release_files.library_name("x86_64-linux")]


def test_release_with_an_invalid_bill_of_materials_is_refused(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = release_files.JsonV1Dot6.output_as_string
    monkeypatch.setattr(
        release_files.JsonV1Dot6,
        "output_as_string",
        lambda self, **options: output(self, **options).replace('"library"', '"book"'),
    )
    with pytest.raises(ValueError, match="bill of materials"):
        release_files.sbom({})


def test_release_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(paths: dict[str, Path], cpus: object, models: object) -> None:
        for target, path in paths.items():
            content = library_trailer.append_trailer(b"", __version__, "x86_64-linux", [target])
            path.write_bytes(content)

    def fail(folder: Path) -> None:
        raise RuntimeError(f"{len(list(folder.iterdir()))} files")

    monkeypatch.setattr(release_files, "build_libraries", build)
    monkeypatch.setattr(release_files, "check_distributions", fail)
    with pytest.raises(RuntimeError, match="7 files"):
        release_files.write_release(tmp_path / "out", ["x86_64-linux"])
    assert list(tmp_path.iterdir()) == []


def test_release_is_not_written_to_a_folder_with_files(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="is not empty"):
        release_files.write_release(tmp_path)


def test_wheel_with_a_file_that_is_no_library_is_not_built(tmp_path: Path) -> None:
    path = tmp_path / "it.so"
    path.write_bytes(b"\x7fELF")
    with pytest.raises(subprocess.CalledProcessError):
        release_files.build_distribution(tmp_path, "wheel", path)
    assert not list(tmp_path.glob("*.whl"))


@pytest.mark.network
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not any(machine.is_this for machine in MACHINES.values()),
    reason="a release has no wheel for this machine",
)
def test_wheels_do_not_change_another_build_of_onnxruntime(release: Path, tmp_path: Path) -> None:
    python = other_build_of_onnxruntime(tmp_path)
    before = onnxruntime_files(python)
    (target,) = (name for name, machine in MACHINES.items() if machine.is_this)
    install = [python, "-m", "pip", "install", "--quiet"]
    call(*install, wheel_path(release, "onnxruntime_ep_gridsample", target))
    call(*install, "--no-deps", wheel_path(release, "ort_gridsample", target))
    assert onnxruntime_files(python) == before


# --- The script ---


def call_in(environment: dict[str, str], *command: object) -> str:
    """Return what a command prints in an environment of these variables only."""
    words = [*map(str, command)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform != "linux", reason="the script is for Linux")
def test_wheel_of_the_script_needs_neither_numba_nor_a_compiler(tmp_path: Path) -> None:
    """The library has only the kernels of one model: all of them take 6 minutes of a processor."""
    import onnx

    model = tmp_path / "model.onnx"
    onnx.save(grid_sample_model("float32", "float32", 3, [Attributes("linear")]), model)
    (target,) = (name for name, machine in MACHINES.items() if machine.is_this)
    out = tmp_path / "out"
    script = [REPOSITORY / ".ci/release", out, "--target", target, "--model", model]
    script += ["--cpu", "native"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    call_in({**os.environ, "PATH": path}, *script)
    assert len(list(out.iterdir())) == 7

    home = tmp_path / "home"
    home.mkdir()
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv/bin"
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    (wheel,) = out.glob("ort_gridsample-*.whl")
    call_in({"HOME": str(home), **settings}, binaries / "pip", "install", "--quiet", wheel)
    alone = {"HOME": str(home), "PATH": str(binaries)}
    program = tmp_path / "program.py"
    shutil.copy(PROGRAMS / "installed_wheel.py", program)
    results = json.loads(call_in(alone, binaries / "python", program))
    library = results.pop("library")
    assert results == {
        "has_numba": False,
        "runs_on": "compiled op",
        "core": "jit",
        "session": results["function"],
        "function": results["function"],
    }
    assert "/site-packages/ort_gridsample/libort_gridsample.so, release" in library
    assert list(home.rglob("*.nbi")) == []

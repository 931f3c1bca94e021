"""The files of the built page."""

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import pytest

MAX_COMPRESSED_BYTES = 16_000_000
FILES = [
    "index.html",
    "main.js",
    "onnxruntime/ort-wasm-simd-threaded.wasm",
    "pyodide/pyodide.asm.wasm",
    "python/onnx.zip",
    "python/ort_gridsample.zip",
    "worker.js",
]


def test_page_has_at_most_16_mb_compressed(index: Any) -> None:
    assert sum(file["gzip_bytes"] for file in index["files"]) <= MAX_COMPRESSED_BYTES


def test_index_has_the_size_and_hash_of_every_file(page_folder: Path, index: Any) -> None:
    written = {path.relative_to(page_folder).as_posix() for path in page_folder.rglob("*.*")}
    indexed = {file["path"]: file for file in index["files"]}
    assert written - {"index.json"} == set(indexed) - {"LICENSE"}
    assert indexed.keys() >= set(FILES)
    for name, file in indexed.items():
        content = (page_folder / name).read_bytes()
        assert file["bytes"] == len(content), name
        assert file["sha256"] == hashlib.sha256(content).hexdigest(), name


def test_index_has_the_version_and_license_of_every_package(index: Any) -> None:
    names = {package["name"] for package in index["packages"]}
    assert names >= {"numpy", "onnx", "onnxruntime-web", "ort_gridsample", "pyodide"}
    assert all(package["version"] and package["license"] for package in index["packages"])


@pytest.mark.parametrize("package", ["numpy", "onnx", "protobuf"])
def test_archive_of_a_wheel_keeps_its_license(page_folder: Path, package: str) -> None:
    with zipfile.ZipFile(page_folder / "python" / f"{package}.zip") as archive:
        names = [name for name in archive.namelist() if "license" in name.lower()]
    assert names


def test_equal_builds_have_equal_archives(
    page_folder: Path, build_script: Any, tmp_path: Path
) -> None:
    archives = {"ort_gridsample": build_script.package_members()}
    compiled = build_script.compiled(archives, page_folder, tmp_path)["ort_gridsample"]
    content = (page_folder / "python" / "ort_gridsample.zip").read_bytes()
    assert build_script.archive_of(compiled) == content


def test_archives_contain_bytecode_only(page_folder: Path) -> None:
    for path in (page_folder / "python").iterdir():
        with zipfile.ZipFile(path) as archive:
            suffixes = {Path(name).suffix for name in archive.namelist()}
        assert ".pyc" in suffixes
        assert ".py" not in suffixes


def test_numpy_of_another_hash_is_refused(build_script: Any, tmp_path: Path) -> None:
    (tmp_path / "numpy.whl").write_bytes(b"another")
    digest = hashlib.sha256(b"numpy").hexdigest()
    with pytest.raises(build_script.NotFetchedError, match="another hash"):
        build_script.fetch_numpy("numpy.whl", digest, tmp_path, "0")

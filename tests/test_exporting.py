"""The script that makes the exported models still makes them: the same nodes, the same answers."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import pytest

FOLDER = Path(__file__).parent / "exported"
NEEDED = dict(re.findall(r"^([\w-]+)==(\S+)$", (FOLDER / "requirements.txt").read_text(), re.MULTILINE))


def installed(name: str) -> str:
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return "none"


def nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[tuple[object, ...]]:
    """What each node is and how it is wired, at any depth; not the numbers, which processors round differently."""
    for node in graph.node:
        yield node.domain, node.op_type, node.name, tuple(node.input), tuple(node.output)
        for attribute in node.attribute:
            yield attribute.name, attribute.type, attribute.i, attribute.s, tuple(attribute.ints)
            yield from nodes(attribute.g)


def assert_alike(again: Path, stored: Path) -> None:
    """The same opsets and nodes in the models, and the same answers beside them."""
    a, b = onnx.load(again), onnx.load(stored)
    assert {e.domain: e.version for e in a.opset_import} == {e.domain: e.version for e in b.opset_import}, stored.stem
    for made, there in zip((a.graph, *a.functions), (b.graph, *b.functions), strict=True):
        assert list(nodes(made)) == list(nodes(there)), stored.stem
    with np.load(again.with_suffix(".npz")) as made, np.load(stored.with_suffix(".npz")) as there:
        assert set(made) == set(there), stored.stem
        for key in there:
            largest = np.abs(there[key][np.isfinite(there[key])]).max()
            np.testing.assert_allclose(made[key], there[key], rtol=0, atol=1e-5 * largest, err_msg=f"{stored} {key}")


def run_script(name: str, into: Path, *needed: str) -> None:
    """Run the script ``name``, which writes ``into`` there; skip the test where it has not what it needs."""
    missing = [f"{each}=={NEEDED[each]}" for each in needed if installed(each) != NEEDED[each]]
    if missing:
        pytest.skip(f"the script needs {', '.join(missing)}")
    command = [sys.executable, str(FOLDER / name), "--into", str(into)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_script_makes_what_is_stored(tmp_path: Path) -> None:
    run_script("export.py", tmp_path, *NEEDED)
    stored = sorted(FOLDER.glob("*.onnx"))
    assert sorted(path.name for path in tmp_path.glob("*.onnx")) == [path.name for path in stored]
    for path in stored:
        assert_alike(tmp_path / path.name, path)


def test_the_script_of_what_is_unrolled_makes_what_is_stored(tmp_path: Path) -> None:
    run_script("unrolled.py", tmp_path / "again.zip", "torch", "onnxscript")
    with zipfile.ZipFile(tmp_path / "again.zip") as again, zipfile.ZipFile(FOLDER / "unrolled.zip") as stored:
        assert again.namelist() == stored.namelist()
        for name in stored.namelist():
            made, there = (onnx.load_from_string(archive.read(name)) for archive in (again, stored))
            assert list(nodes(made.graph)) == list(nodes(there.graph)), name

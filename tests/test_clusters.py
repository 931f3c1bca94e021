"""The examples that run a folder of pictures on a cluster of one machine: every picture, and one compilation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import ort_gridsample as ogs
from conftest import OPS

Image = pytest.importorskip("PIL.Image", reason="pillow is not installed: pip install '.[examples]'")
REPOSITORY = Path(__file__).parents[1]
THETA = np.array([[[0.87, -0.5, 0], [0.5, 0.87, 0]]], np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(("library", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_folder_on_a_cluster(library: str, package: str, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    folder, into = tmp_path / "pictures", tmp_path / "straight"
    folder.mkdir()
    rng = np.random.default_rng(0)
    pictures = {f"{i:02}.png": rng.integers(0, 256, (24, 40, 3), np.uint8) for i in range(24)}
    for name, picture in pictures.items():
        Image.fromarray(picture).save(folder / name)
    command = [sys.executable, REPOSITORY / "examples" / f"{library}_folder.py", folder, into]
    paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]

    said = done.stdout
    assert "kernels on disk: 0\n" in said
    (compiled,) = re.findall(r"after the first session: (\d+)", said)
    assert (int(compiled) > 0) == ("compiled" in OPS)
    assert re.search(rf"^24 pictures in {re.escape(str(into))}, by [12] workers$", said, re.MULTILINE)
    assert "kernels that workers compiled: 0\n" in said
    assert sorted(path.name for path in into.iterdir()) == sorted(pictures)
    for name, picture in pictures.items():
        X = np.ascontiguousarray(picture.transpose(2, 0, 1)[None])
        expected = ogs.grid_sample(X, ogs.affine_grid(THETA, X.shape), "cubic", "reflection")[0].transpose(1, 2, 0)
        found = np.asarray(Image.open(into / name))
        # Sums in another order may be truncated another way.
        assert np.abs(found.astype(int) - expected).max() <= 1, name

"""What a type checker knows of the functions and the cores: what comes out, and what it must refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from test_typing import mypy

pytest.importorskip("mypy.api", reason="mypy comes with the extra 'dev'")

#: Each line is right, or says which argument is wrong.
CODE = """
import numpy as np
import numpy.typing as npt
import ort_gridsample as ogs

X = np.zeros((1, 1, 2, 2), np.float32)
halves = np.zeros((1, 1, 2, 2), np.float16)
grid = np.zeros((1, 1, 1, 2))
Y: npt.NDArray[np.float32] = ogs.grid_sample(X, grid, "bicubic", "reflection", True, num_threads=np.int64(2))
sampled = ogs.grid_sample(halves, grid)
Y = sampled  # wrong: assignment
listed: npt.NDArray[np.uint8] = ogs.grid_sample([[[1, 2]]], [[[0.0]]])
ogs.grid_sample(X, grid, padding_mode="bogus")  # wrong: call-overload
ogs.grid_sample(X, grid, num_threads=1.5)  # wrong: call-overload
theta: npt.NDArray[np.float16] = ogs.affine_grid(np.zeros((1, 2, 3), np.float16), X.shape)
wide = ogs.affine_grid(np.zeros((1, 2, 3)), np.array([1, 1, 2, 2], np.int32))
theta = wide  # wrong: assignment
ogs.affine_grid([[[1, 0, 0], [0, 1, 0]]], "1122")  # wrong: arg-type
ogs.set_core("bogus")  # wrong: arg-type
ogs.set_num_threads(1.5)  # wrong: arg-type
if ogs.get_core() == "bogus":  # wrong: comparison-overlap
    pass
"""


@pytest.mark.slow
def test_a_type_checker_refuses_what_there_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user.py").write_text(CODE)
    found = {(line, said.rpartition("[")[2].rstrip("]")) for _, line, said in mypy(tmp_path, monkeypatch)}
    lines = enumerate(CODE.splitlines(), 1)
    assert found == {(number, line.partition("# wrong: ")[2]) for number, line in lines if "# wrong" in line}

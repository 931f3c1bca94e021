"""Write the outputs of PyTorch for a few small calls to ``pytorch_answers.npz``.

Run ``python make_pytorch_answers.py``.
"""

import itertools
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

FILE = Path(__file__).with_name("pytorch_answers.npz")
PADDING = ("zeros", "border", "reflection")
MODES = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}
LENGTHS = {2: (5, 4), 3: (3, 4, 5)}
OUTPUTS = {2: (4, 6), 3: (2, 3, 4)}
SIZES = {2: [(3, 5), (1, 1), (4, 1)], 3: [(2, 3, 4), (1, 1, 1), (1, 3, 2)]}


def inputs() -> dict[str, np.ndarray]:
    """Return X, grid and theta for 2 and 3 spatial axes, in float32."""
    rng = np.random.default_rng(20)
    arrays = {}
    for r, lengths in LENGTHS.items():
        arrays[f"X{r}"] = rng.normal(size=(2, 2, *lengths)).astype(np.float32)
        arrays[f"grid{r}"] = rng.uniform(-2.6, 2.6, (2, *OUTPUTS[r], r)).astype(np.float32)
        arrays[f"theta{r}"] = rng.normal(size=(2, r, r + 1)).astype(np.float32)
    return arrays


def answers(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs, named "operator rank mode padding alignment"."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    outputs = {}
    for r, (mode, name), padding, aligned in itertools.product(
        LENGTHS, MODES.items(), PADDING, (0, 1)
    ):
        if mode == "cubic" and r == 3:
            continue  # PyTorch has no cubic in three axes
        Y = F.grid_sample(tensors[f"X{r}"], tensors[f"grid{r}"], name, padding, bool(aligned))
        outputs[f"grid_sample {r} {mode} {padding} {aligned}"] = Y.numpy()
    for r, aligned in itertools.product(LENGTHS, (0, 1)):
        for lengths in SIZES[r]:
            grid = F.affine_grid(tensors[f"theta{r}"], (2, 1, *lengths), bool(aligned))
            outputs[f"affine_grid {r} {'x'.join(map(str, lengths))} {aligned}"] = grid.numpy()
    return outputs


if __name__ == "__main__":
    arrays = inputs()
    np.savez_compressed(FILE, **arrays, **answers(arrays))

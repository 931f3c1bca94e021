"""Run a folder of pictures through a model with Ray Data.

Run ``python examples/ray_folder.py [FOLDER [INTO]]``, after ``pip install 'ray[data]' pillow``.
Without a folder, the example creates one. Each actor has a session of its own, and Ray shows the
progress. Kernels that the first session compiles are stored in NUMBA_CACHE_DIR, which the actors
share, so that no actor compiles anything.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import ray
from PIL import Image

import ort_gridsample as ogs

# On a cluster of several machines, use a folder that all of them can read.
KERNELS = Path(
    os.environ.setdefault("NUMBA_CACHE_DIR", str(Path.home() / ".cache" / "ort_gridsample"))
)

MODEL = """
    <ir_version: 9, opset_import: ["": 20]>
    straighten (uint8[N, H, W, 3] pictures, float[N, 2, 3] thetas) => (uint8[N, H, W, 3] straight) {
        X = Transpose <perm = [0, 3, 1, 2]> (pictures)
        size = Shape (X)
        grid = AffineGrid (thetas, size)
        Y = GridSample <mode = "cubic", padding_mode = "reflection"> (X, grid)
        straight = Transpose <perm = [0, 2, 3, 1]> (Y)
    }
"""
THETA = np.array([[0.87, -0.5, 0], [0.5, 0.87, 0]], np.float32)


class Straighten:
    """An actor that straightens batches of pictures with its session."""

    def __init__(self, model: bytes, into: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # there is an actor for each processor
        self.session = ogs.InferenceSession(model, options)
        self.into = into

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        thetas = np.broadcast_to(THETA, (len(batch["image"]), 2, 3))
        (straight,) = self.session.run(None, {"pictures": batch["image"], "thetas": thetas})
        for path, picture in zip(batch["path"], straight, strict=True):
            Image.fromarray(picture).save(self.into / Path(path).name)
        return {"path": batch["path"], "process": np.full(len(straight), os.getpid())}


def count_kernels() -> int:
    """Return the number of compiled functions on disk."""
    return sum(1 for _ in KERNELS.rglob("*.nbc"))


def main(folder: Path, into: Path) -> None:
    model = onnx.parser.parse_model(MODEL).SerializeToString()
    print(f"kernels on disk: {count_kernels()}")
    ogs.InferenceSession(model)
    n_kernels = count_kernels()
    print(f"after the first session: {n_kernels}")
    environment = {
        "env_vars": {
            "NUMBA_CACHE_DIR": str(KERNELS),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
    }
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    pictures = ray.data.read_images(str(folder), mode="RGB", include_paths=True)
    actors = ray.data.ActorPoolStrategy(size=2)
    rows = pictures.map_batches(
        Straighten, fn_constructor_args=(model, into), batch_size=8, compute=actors
    ).take_all()
    processes = {row["process"] for row in rows}
    print(f"{len(rows)} pictures in {into}, by {len(processes)} workers")
    print(f"kernels that workers compiled: {count_kernels() - n_kernels}")
    ray.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        if len(sys.argv) > 1:
            source = Path(sys.argv[1])
        else:
            source = Path(temporary)
            photograph = Image.open(Path(__file__).with_name("demo.png")).convert("RGB")
            for x in range(0, photograph.width - 200, 25):
                photograph.crop((x, 100, x + 200, 300)).save(source / f"{x:04}.png")
        into = Path(sys.argv[2] if len(sys.argv) > 2 else "straightened").absolute()
        into.mkdir(exist_ok=True)
        main(source, into)

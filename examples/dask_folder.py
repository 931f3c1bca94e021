"""Run a folder of pictures through a model on a Dask cluster.

Run ``python examples/dask_folder.py [FOLDER [INTO]]``, after ``pip install distributed pillow``.
Without a folder, the example creates one. A session can be pickled, so it is scattered like any
data, and each worker creates a session of its own from it. Kernels that the first session compiles
are stored in NUMBA_CACHE_DIR, which the workers share, so that no worker compiles anything.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from distributed import Client, LocalCluster, progress
from PIL import Image

import ort_gridsample as ogs

# On a cluster of several machines, use a folder that all of them can read. The workers of a
# LocalCluster inherit this process' environment.
KERNELS = Path(
    os.environ.setdefault("NUMBA_CACHE_DIR", str(Path.home() / ".cache" / "ort_gridsample"))
)

MODEL = """
    <ir_version: 9, opset_import: ["": 20]>
    straighten (uint8[1, 3, H, W] picture) => (uint8[1, 3, H, W] straight) {
        theta = Constant <value = float[1, 2, 3] {0.87, -0.5, 0, 0.5, 0.87, 0}> ()
        size = Shape (picture)
        grid = AffineGrid (theta, size)
        straight = GridSample <mode = "cubic", padding_mode = "reflection"> (picture, grid)
    }
"""


def straighten(path: Path, into: Path, session: onnxruntime.InferenceSession) -> tuple[str, int]:
    """Straighten one picture, and return its name and the id of the process."""
    picture = np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1)[None]
    (straight,) = session.run(None, {"picture": picture})
    Image.fromarray(straight[0].transpose(1, 2, 0)).save(into / path.name)
    return path.name, os.getpid()


def count_kernels() -> int:
    """Return the number of compiled functions on disk."""
    return sum(1 for _ in KERNELS.rglob("*.nbc"))


def main(folder: Path, into: Path) -> None:
    print(f"kernels on disk: {count_kernels()}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # there is a worker for each processor
    session = ogs.InferenceSession(onnx.parser.parse_model(MODEL), options)
    n_kernels = count_kernels()
    print(f"after the first session: {n_kernels}")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        scattered = client.scatter(session, broadcast=True)
        paths = sorted(folder.glob("*.png"))
        futures = client.map(straighten, paths, into=into, session=scattered)
        if sys.stdout.isatty():
            progress(futures)
        results = client.gather(futures)
    processes = {process for _, process in results}
    print(f"{len(results)} pictures in {into}, by {len(processes)} workers")
    print(f"kernels that workers compiled: {count_kernels() - n_kernels}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        if len(sys.argv) > 1:
            pictures = Path(sys.argv[1])
        else:
            pictures = Path(temporary)
            photograph = Image.open(Path(__file__).with_name("demo.png")).convert("RGB")
            for x in range(0, photograph.width - 200, 25):
                photograph.crop((x, 100, x + 200, 300)).save(pictures / f"{x:04}.png")
        into = Path(sys.argv[2] if len(sys.argv) > 2 else "straightened")
        into.mkdir(exist_ok=True)
        main(pictures, into)

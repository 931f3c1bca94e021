"""Run a folder of pictures through a model on a Dask cluster: ``python examples/dask_folder.py [FOLDER [INTO]]``.

Needs ``pip install distributed pillow``. Without a folder it makes one. A session can be pickled, so it is scattered
like any data, and each worker makes its own of it. What the first session compiles lies in NUMBA_CACHE_DIR: a folder
that the workers share, so that none of them compiles anything.
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

# On a cluster of machines, a folder that all of them see; LocalCluster's workers have this process' environment.
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
    """One picture; says where it is, and which process did it."""
    picture = np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1)[None]
    (straight,) = session.run(None, {"picture": picture})
    Image.fromarray(straight[0].transpose(1, 2, 0)).save(into / path.name)
    return path.name, os.getpid()


def kernels() -> int:
    """How many compiled functions there are on disk."""
    return sum(1 for _ in KERNELS.rglob("*.nbc"))


def main(folder: Path, into: Path) -> None:
    print(f"kernels on disk: {kernels()}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the workers are as many as the processors
    session = ogs.InferenceSession(onnx.parser.parse_model(MODEL), options)
    print(f"after the first session: {(first := kernels())}")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        everywhere = client.scatter(session, broadcast=True)
        futures = client.map(
            straighten, sorted(folder.glob("*.png")), into=into, session=everywhere
        )
        if sys.stdout.isatty():
            progress(futures)
        done = client.gather(futures)
    print(f"{len(done)} pictures in {into}, by {len({process for _, process in done})} workers")
    print(f"kernels that workers compiled: {kernels() - first}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        if len(sys.argv) > 1:
            pictures = Path(sys.argv[1])
        else:
            pictures = Path(temporary)
            photograph = Image.open(Path(__file__).with_name("demo.png")).convert("RGB")
            for left in range(0, photograph.width - 200, 25):
                photograph.crop((left, 100, left + 200, 300)).save(pictures / f"{left:04}.png")
        results = Path(sys.argv[2] if len(sys.argv) > 2 else "straightened")
        results.mkdir(exist_ok=True)
        main(pictures, results)

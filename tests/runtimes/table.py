"""The runtimes that are tested, with their packages and limits."""

from dataclasses import dataclass

from ort_gridsample.graph.runtimes import RuntimeName


@dataclass(frozen=True)
class Runtime:
    """A runtime that is tested.

    Attributes:
        name: its name on the command line.
        title: its name in tables, with the version.
        packages: the packages that pip installs. If there are none, the adapter runs in node.
        alone: packages that are installed without their dependencies. pnnx requires all of PyTorch,
            and needs none of it.
        adapter: the name of its file in adapters/, if it is not the runtime's.
        python: the versions of Python that its packages support, or () for any.
        npm: the packages that npm installs.
        fast: whether it is installed, and runs everything, in seconds.
        batches: whether a tensor may have more than one image.
        tolerance: the largest error that is right, relative to the largest magnitude of the output.
        form: its name in ``patch_model``, if that has a form of nodes for it.
        note: a note for readers of the results.
    """

    name: str
    title: str
    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    adapter: str = ""
    python: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    fast: bool = False
    batches: bool = True
    tolerance: float = 1e-4
    form: RuntimeName | None = None
    note: str = ""

    @property
    def program(self) -> str:
        return f"{self.adapter or self.name}.{'py' if self.packages else 'mjs'}"


RUNTIMES = {
    runtime.name: runtime
    for runtime in (
        Runtime("onnxruntime", "onnxruntime 1.32.0, CPU", ("onnxruntime==1.32.0",)),
        Runtime("openvino", "OpenVINO 2026.4.1", ("openvino==2026.4.1",)),
        Runtime(
            "opencv5", "OpenCV 5.0", ("opencv-python-headless==5.0.0.93", "numpy"), adapter="opencv"
        ),
        Runtime(
            "opencv4",
            "OpenCV 4.14",
            ("opencv-python-headless==4.14.0.94", "numpy"),
            adapter="opencv",
            fast=True,
        ),
        Runtime("tract", "tract 0.23.9", ("tract==0.23.9", "numpy"), fast=True),
        Runtime("mnn", "MNN 3.6.1", ("MNN==3.6.1", "numpy"), form="mnn", fast=True),
        Runtime(
            "tinygrad",
            "tinygrad 0.14",
            ("tinygrad==0.14.0", "numpy"),
            note="slow where there is no clang",
        ),
        Runtime(
            "iree",
            "IREE 3.13",
            ("iree-base-compiler[onnx]==3.13.0", "iree-base-runtime==3.13.0", "numpy"),
            form="iree",
        ),
        Runtime("tvm", "TVM 0.27", ("apache-tvm==0.27.0.post1", "onnx", "numpy"), form="tvm"),
        Runtime("onnxruntime-web", "onnxruntime-web 1.30, WASM", npm=("onnxruntime-web@1.30.0",)),
        Runtime(
            "webgpu",
            "onnxruntime-webgpu 1.27",
            ("onnxruntime-webgpu==1.27.0", "brotli"),
            npm=("@sparticuz/chromium@153.0.0",),
            form="onnxruntime-webgpu",
            note="on SwiftShader, a Vulkan in software",
        ),
        Runtime(
            "onnx2torch",
            "onnx2torch 1.5.15",
            ("torch==2.13.0", "onnx2torch==1.5.15", "numpy"),
            form="onnx2torch",
        ),
        Runtime(
            "ncnn",
            "ncnn 20261020",
            ("ncnn==1.0.20261020", "numpy"),
            alone=("pnnx==20261020",),
            batches=False,
            form="ncnn",
            note="has no batches: N is 1",
        ),
        Runtime(
            "onnx2tf",
            "onnx2tf 2.6.9 and LiteRT",
            ("onnx2tf==2.6.9",),
            python=("3.12", "3.13"),
            form="onnx2tf",
        ),
        Runtime(
            "qnn",
            "onnxruntime-qnn 2.7.0, emulated HTP",
            ("onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0", "numpy"),
            tolerance=2e-2,
            form="qnn",
            note="computes in float16: right to 2 %",
        ),
        Runtime(
            "rknn",
            "RKNN 2.5.0, simulator",
            ("rknn-toolkit2==2.5.0", "setuptools<81"),
            python=("3.11", "3.10", "3.12"),
            tolerance=1e-2,
            form="rknn",
            note="computes in float16: right to 1 %",
        ),
    )
}

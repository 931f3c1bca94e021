"""RKNN's toolkit: built for the RK3588, not quantized, run in its simulator."""

from rknn.api import RKNN


def load(path, inputs, outputs):
    rknn = RKNN(verbose=False)
    rknn.config(target_platform="rk3588")

    def check(what, status):
        if status:
            raise RuntimeError(f"RKNN {what}: status {status}")

    shapes = [list(value.shape) for value in inputs.values()]
    check("load_onnx", rknn.load_onnx(path, inputs=list(inputs), input_size_list=shapes))
    check("build", rknn.build(do_quantization=False))
    check("init_runtime", rknn.init_runtime())

    def run(feed):
        answers = rknn.inference(list(feed.values()), data_format=["nchw"] * len(feed))
        if answers is None:
            raise RuntimeError("RKNN inference: no answer")
        return answers

    return run

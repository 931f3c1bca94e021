"""Parse models with TensorRT-RTX and build engines, which needs no GPU; print the results as JSON.

The input is a JSON array of objects with ``path`` and ``shapes``, the shapes of the inputs. The
output has an object for each of them: ``errors`` of the parser, ``samples`` (mode, padding mode and
alignment of each GridSample layer) and the ``bytes`` of the engine, 0 if none was built.
"""

import json
import sys
from pathlib import Path

import tensorrt_rtx as trt

MODES = {"NEAREST": "nearest", "LINEAR": "linear", "CUBIC": "cubic"}
PADDING_MODES = {"FILL": "zeros", "CLAMP": "border", "REFLECT": "reflection"}


def result(path: str, shapes: dict[str, list[int]]) -> dict[str, object]:
    builder = trt.Builder(trt.Logger(trt.Logger.INTERNAL_ERROR))
    network = builder.create_network()
    parser = trt.OnnxParser(network, builder.logger)
    parser.parse(Path(path).read_bytes())
    errors = [parser.get_error(i).desc() for i in range(parser.num_errors)]
    samples = []
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.GRID_SAMPLE:
            layer.__class__ = trt.IGridSampleLayer
            mode = MODES[layer.interpolation_mode.name]
            padding_mode = PADDING_MODES[layer.sample_mode.name]
            samples.append([mode, padding_mode, int(layer.align_corners)])
    n_bytes = 0
    if not errors:
        config = builder.create_builder_config()
        profile = builder.create_optimization_profile()
        for name, shape in shapes.items():
            profile.set_shape(name, shape, shape, shape)
        config.add_optimization_profile(profile)
        engine = builder.build_serialized_network(network, config)
        n_bytes = 0 if engine is None else engine.nbytes
    return {"errors": errors, "samples": samples, "bytes": n_bytes}


if __name__ == "__main__":
    print(json.dumps([result(**model) for model in json.load(sys.stdin)]))

"""LiteRT, after onnx2tf has converted the ONNX model with its inputs' axes left in their order."""

import os
import sys

os.environ["PATH"] = (
    os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
)  # it calls onnxsim

import onnx2tf
from ai_edge_litert.interpreter import Interpreter


def load(path, inputs, outputs):
    folder = f"{path}.converted"
    names = {
        "keep_shape_absolutely_input_names": list(inputs),
        "copy_onnx_input_output_names_to_tflite": True,
    }
    onnx2tf.convert(input_onnx_file_path=path, output_folder_path=folder, non_verbose=True, **names)
    interpreter = Interpreter(
        os.path.join(folder, os.path.basename(path).replace(".onnx", "_float32.tflite"))
    )
    places = {place["name"]: place["index"] for place in interpreter.get_input_details()}
    found = {place["name"]: place["index"] for place in interpreter.get_output_details()}

    def run(feed):
        for name, value in feed.items():
            interpreter.resize_tensor_input(places[name], value.shape)
        interpreter.allocate_tensors()
        for name, value in feed.items():
            interpreter.set_tensor(places[name], value)
        interpreter.invoke()
        return [interpreter.get_tensor(found[name]) for name in outputs]

    return run

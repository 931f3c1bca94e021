"""onnxruntime's own class of sessions.

A program may replace ``onnxruntime.InferenceSession`` by this package's class, and a program that
``ort-gridsample exec`` starts has it replaced. This package opens its plain sessions with the
original class.
"""

from onnxruntime.capi import onnxruntime_inference_collection

#: The class itself. It is read from the namespace of the module that defines it, because in a
#: program of ``ort-gridsample exec`` the attribute is computed (startup/sitecustomize.py).
PLAIN_SESSION = vars(onnxruntime_inference_collection)["InferenceSession"]

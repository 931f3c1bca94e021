"""The folder that ``ort-gridsample exec`` adds to PYTHONPATH.

Its module runs in every process of a program. It must not import this package before the program
reads onnxruntime's class of sessions.
"""

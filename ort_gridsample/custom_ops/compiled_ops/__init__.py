"""The operators as compiled ops, which ONNX Runtime calls without Python.

- ``c_api``, ``api_functions``: the table of onnxruntime's C functions, and how Python and
  compiled code call them
- ``catalog``, ``description_table``, ``descriptions``: the list of ops: their schemas and
  kernels, and the functions that describe them
- ``creation``: reads a node's attributes and creates the state of its kernel
- ``node_infos``: the state of a node that onnxruntime does not have
- ``structs``: the layouts of states and calls
- ``registry``: compiles states on demand, and registers the ops with session options
- ``trampoline``: a shared library of two pages that leads onnxruntime to this process, because
  onnxruntime accepts ops from shared libraries only
- ``requests``, ``launches``: access to inputs and outputs, and the execution of a launch on
  onnxruntime's threads
- ``shape_inference``: the shapes of outputs, for onnxruntime's shape inference
- ``record_image``, ``op_image``: records as bytes, for the memory of this process or for a
  library; the struct of an op as such a record
- ``linking``: the linkers and their machines
- ``sampling``, ``affine``, ``attention``, ``program_grids``: the ops
- ``foreign``: the ops for nodes of other packages
- ``sentences``: error messages, formatted by compiled code
"""

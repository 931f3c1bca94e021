"""The compiled ops as an execution provider, which runs standard nodes of unmodified models.

ONNX Runtime 1.24 and newer loads execution providers from shared libraries. ``ep_api`` and
``structs`` describe the part of its C API for them. ``definitions`` lists the kernels of the
provider, which are the compiled ops. ``factory``, ``execution_provider`` and ``node_kernels`` are
compiled by Numba: they are the functions that ONNX Runtime calls. ``image`` makes the data that
these functions read, for this process or for a library. ``registration`` registers the provider
of this process. There, ``fused_nodes`` lets ONNX Runtime fuse the nodes of deformable attention,
which ``fusion`` finds in what ``ort_graph`` reads, and ``fused_attention`` computes.
"""

"""The compiled ops as an execution provider, which runs standard nodes of unmodified models.

ONNX Runtime 1.24 and newer loads execution providers from shared libraries. ``ep_api`` and
``structs`` describe the part of its C API for them. ``definitions`` lists the kernels of the
provider, which are the compiled ops. ``factory``, ``execution_provider`` and ``node_kernels`` are
compiled by Numba: they are the functions that ONNX Runtime calls. ``factory_image`` creates the
data that these functions read, for this process or for a library. ``registration`` registers the
provider of this process.

In this process the provider also fuses nodes:

1. ``ort_graph`` reads ONNX Runtime's graph.
2. ``fusion`` finds subgraphs that become one node: deformable attention (``attention_fusion``), and
   GridSamples with the nodes that compute their grids (``grid_fusion``).
3. ``fused_nodes`` passes the subgraphs to ONNX Runtime, and creates the fused nodes.
4. The op creates the state of a fused node from attributes, and computes the output. ``fused_grid``
   first collects the inputs of a fused GridSample, in compiled code.
"""

"""The compiled ops as an execution provider, which runs standard nodes of unmodified models.

ONNX Runtime 1.24 and newer loads execution providers from shared libraries.

- ``ep_api``, ``structs``: onnxruntime's structs for providers, and this package's structs
- ``definitions``: the operators, their versions and types, and the op for each combination of
  types
- ``factory``: devices, and the domains of custom ops that sessions get
- ``execution_provider``: claims nodes, and creates the kernel registry
- ``node_kernels``: the kernel of a node
- ``constant_functions``: functions of the structs that have nothing to do
- ``factory_image``: the structs as data, for this process or for a library
- ``registration``: ``ogs.register_provider``

In this process the provider also fuses nodes:

1. ``ort_graph`` reads ONNX Runtime's graph.
2. ``fusion`` finds subgraphs that become one node: deformable attention (``attention_fusion``), and
   GridSamples with the nodes that compute their grids (``grid_fusion``). What the two have in
   common is ``fused_subgraph``.
3. ``fused_nodes`` passes the subgraphs to ONNX Runtime, and creates the fused nodes,
   whose memory ``compute_infos`` manages.
4. The op creates the state of a fused node from attributes, and computes the output. ``fused_grid``
   first collects the inputs of a fused GridSample, in compiled code.
"""

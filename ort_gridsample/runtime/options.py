"""``onnxruntime.SessionOptions``: reading them, copying them, and taking them to another process.

onnxruntime gives every session a copy of its options, and shows it. What was added to them as code, libraries of custom
ops and execution providers, is not part of that copy.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime.capi import _pybind_state

from .interrupts import undisturbed

#: The configuration entries of a session that onnxruntime 1.20 to 1.32 know; it does not list those of given options.
_CONFIG_KEYS = """
ep.context_embed_mode ep.context_enable ep.context_file_path ep.context_model_external_initializers_file_name
ep.context_node_name_prefix ep.context_source_model_path ep.cpu.qmoe_deferred_scale
ep.cuda.fpa_intb_dequant_gemm_min_m ep.cuda.fpa_intb_gemm ep.cuda.fpa_intb_profile_m
ep.cuda.gqa_workspace_max_total_sequence_length ep.cuda.matmul_nbits_m_chunk_size ep.cuda.moe_packed_gpu_experts
ep.cuda.runtime_fusion.causal_conv_with_state ep.cuda.runtime_fusion.unit_swish ep.enable_weightless
ep.enable_weightless_ep_context_nodes ep.enable_weightless_mode ep.nnapi.partitioning_stop_ops ep.share_ep_contexts
ep.stop_share_ep_contexts
mlas.disable_kleidiai mlas.enable_gemm_fastmath_arm64_bfloat16 mlas.kleidiai.conv_igemm_max_work
mlas.nchwc_depthwise_sliding mlas.nchwc_pointwise_conv_max_input_channel_batch mlas.qnbit.force_fp32 mlas.use_lut_gemm
optimization.constant_folding_max_output_size_in_bytes optimization.disable_specified_optimizers
optimization.enable_cast_chain_elimination optimization.enable_gelu_approximation
optimization.enable_memory_probe_recompute_config optimization.memory_optimizer_config
optimization.minimal_build_optimizations
session.allow_released_opsets_only session.collect_node_memory_stats_to_file session.compile_only
session.debug_layout_transformation session.disable_aot_function_inlining session.disable_cpu_ep_fallback
session.disable_double_qdq_remover session.disable_model_compile session.disable_prepacking
session.disable_qdq_constant_folding session.disable_quant_qdq session.dynamic_block_base
session.enable_dq_matmulnbits_fusion session.enable_moe_expert_counting session.enable_moe_expert_statistics
session.enable_quant_qdq_cleanup session.enable_saved_runtime_optimizations session.external_data_loader.chunk_bytes
session.external_data_loader.min_size_bytes session.external_data_loader.pinned_memory_bytes
session.external_data_loader.threads session.fail_on_suboptimal_compiled_model session.force_spinning_stop
session.function_expansion_byte_limit session.function_expansion_node_limit session.gqa_value_layout
session.graph_optimizations_loop_level session.inter_op.allow_spinning session.inter_op.spin_backoff_max
session.inter_op.spin_duration_us session.intra_op.allow_spinning session.intra_op.spin_backoff_max
session.intra_op.spin_duration_us session.intra_op_thread_affinities session.kernel_dispatch_policy
session.layer_assignment_settings session.load_model_format session.max_shape_override
session.model_external_initializers_file_folder_path session.moe.offload.allow_file_backing
session.moe.offload.async_max_tokens session.moe.offload.budget_group session.moe.offload.cpu_execution
session.moe.offload.cpu_threads session.moe.offload.derived_cache_dir session.moe.offload.device_expert_bytes
session.moe.offload.device_working_bytes session.moe.offload.gpu_budget_bytes session.moe.offload.gpu_device_mem_limit
session.moe.offload.host_expert_bytes session.moe.offload.host_working_bytes session.moe.offload.min_expert_weight
session.moe.offload.mode session.moe.offload.node_overrides session.moe.offload.pinned_bytes
session.moe.offload.placement session.moe.offload.popularity_file session.moe.offload.prefill_wave_experts
session.moe.offload.reserve_device_bytes session.moe.offload.skip_tail_cold_only
session.moe.offload.skip_zero_cold_doorbell session.moe.offload.source_root
session.moe.offload.tail_substitution_min_rank session.moe.offload.tail_substitution_threshold
session.moe_expert_counter_alpha session.moe_expert_counter_beta session.moe_expert_counter_state_file
session.name_based_layer_assignment session.node_partition_config_file
session.optimized_model_external_initializers_file_name
session.optimized_model_external_initializers_min_size_in_bytes session.prepack.enable_parallel
session.qdq_matmulnbits_accuracy_level session.qdq_matmulnbits_block_size session.qdqisint8allowed
session.record_ep_graph_assignment_info session.resource_cuda_partitioning_settings
session.save_external_prepacked_constant_initializers session.save_model_format session.set_denormal_as_zero
session.strict_shape_type_inference session.strict_workspace_verification
session.use_device_allocator_for_initializers session.use_env_allocators
session.use_external_initializer_file_buffers_directly session.use_ort_model_bytes_directly
session.use_ort_model_bytes_for_initializers session.x64quantprecision
"""

_ATTRIBUTES = [name for name, member in vars(onnxruntime.SessionOptions).items() if isinstance(member, property)]
_EMPTY = helper.make_model(
    helper.make_graph([], "empty", [], []), opset_imports=[helper.make_opsetid("", 13)], ir_version=8
).SerializeToString()
#: A tensor of which no other makes the largest number.
_LEAST = [-(1 << 63)] * 3

_lock = threading.Lock()

State = tuple[dict[str, Any], dict[str, str]]


def entry(options: onnxruntime.SessionOptions, key: str) -> str | None:
    """The configuration entry ``key``; None where there is none."""
    try:
        return str(options.get_session_config_entry(key))
    except Exception:  # onnxruntime's way to say that there is none
        return None


def set_entry(options: onnxruntime.SessionOptions, key: str, value: str) -> None:
    """Let the configuration entry ``key`` be ``value``."""
    if entry(options, key) != value:  # onnxruntime warns of what is set again
        options.add_session_config_entry(key, value)


def loaded(options: onnxruntime.SessionOptions, model: bytes) -> Any:
    """Onnxruntime's bare session of ``model``, read but not made ready to run.

    Raises:
        Exception: onnxruntime's, such as for an operator that nobody registered with ``options``.
    """
    return undisturbed(_loaded, options, model)  # a signal between two steps would leave the lock taken


def _loaded(options: onnxruntime.SessionOptions, model: bytes) -> Any:
    with _lock:  # or another thread would take for the caller's what is set here
        profiling = options.enable_profiling  # which would write a file
        try:
            options.enable_profiling = False
            return _pybind_state.InferenceSession(options, model, False, False)
        finally:
            options.enable_profiling = profiling


def copied(options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    """A copy of ``options``, without libraries of custom ops and execution providers that were added to them."""
    copy = loaded(options, _EMPTY).session_options
    copy.enable_profiling = options.enable_profiling
    return copy


def added_to(options: onnxruntime.SessionOptions, names: Sequence[str]) -> set[str]:
    """Those of the initializers ``names`` that were added to ``options``, which do not tell: a session must show it."""
    if not names:
        return set()
    copy = copied(options)
    copy.optimized_model_filepath, copy.enable_profiling = "", False
    copy.graph_optimization_level, copy.intra_op_num_threads = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, 1
    copy.log_severity_level = 4  # what was added has another shape than what stands here
    # Most options have none: one node that reads all answers otherwise, or fails, where a single one is not least.
    (most,) = _answers(copy, names, _LEAST, [helper.make_node("Max", [names[0], *names], ["most"])]) or [None]
    if most is not None and most.tolist() == _LEAST:
        return set()
    # What stands here now is empty, which no other can be taken for that a session needs.
    nodes = [helper.make_node("Shape", [name], [f"{name} is added"]) for name in names]
    shapes = _answers(copy, names, [], nodes) or []
    return {name for name, shape in zip(names, shapes, strict=False) if shape.tolist() != [0]}


def _answers(
    options: onnxruntime.SessionOptions, names: Sequence[str], value: Sequence[int], nodes: Sequence[onnx.NodeProto]
) -> list[Any] | None:
    """What ``nodes`` answer, whose inputs ``names`` have this ``value``; None where onnxruntime refuses the model."""
    outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.INT64, [None]) for node in nodes]
    graph = helper.make_graph(nodes, "added", [], outputs)
    for name in names:  # as make_tensor does, but quickly
        graph.initializer.add(name=name, data_type=TensorProto.INT64, dims=[len(value)], int64_data=value)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    with suppress(Exception):
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(session.run(None, {}))
    return None


def has_providers(options: onnxruntime.SessionOptions) -> bool:
    """Whether execution providers were added to ``options`` themselves, which older onnxruntimes know nothing of."""
    return hasattr(options, "has_providers") and bool(options.has_providers())


def state(options: onnxruntime.SessionOptions) -> State:
    """What of ``options`` can be read, and pickled: their attributes and the entries of ``_CONFIG_KEYS``."""
    entries = {key: value for key in _CONFIG_KEYS.split() if (value := entry(options, key)) is not None}
    return {name: getattr(options, name) for name in _ATTRIBUTES}, entries


def from_state(state: State) -> onnxruntime.SessionOptions:
    """New options of what :func:`state` read."""
    attributes, entries = state
    options = onnxruntime.SessionOptions()
    for name, value in attributes.items():
        if getattr(options, name, None) != value:
            setattr(options, name, value)
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return options

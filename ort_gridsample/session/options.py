"""``onnxruntime.SessionOptions``: reading them, copying them, and taking them to another process.

onnxruntime gives every session a copy of its options, and shows it. What was added to them as code, libraries of custom
ops and execution providers, is not part of that copy.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime.capi import _pybind_state

from ..custom_ops.signals import with_signals_deferred
from ..reference.threads import after_fork
from . import forks

#: The configuration entries of a session that onnxruntime 1.20 to 1.32 know, by the beginnings of their names; it does
#: not list those of given options.
_CONFIG_KEYS = {
    "ep": """context_embed_mode context_enable context_file_path context_model_external_initializers_file_name
    context_node_name_prefix context_source_model_path cpu.qmoe_deferred_scale enable_weightless
    enable_weightless_ep_context_nodes enable_weightless_mode nnapi.partitioning_stop_ops share_ep_contexts
    stop_share_ep_contexts""",
    "ep.cuda": """fpa_intb_dequant_gemm_min_m fpa_intb_gemm fpa_intb_profile_m gqa_workspace_max_total_sequence_length
    matmul_nbits_m_chunk_size moe_packed_gpu_experts runtime_fusion.causal_conv_with_state runtime_fusion.unit_swish""",
    "mlas": """disable_kleidiai enable_gemm_fastmath_arm64_bfloat16 kleidiai.conv_igemm_max_work nchwc_depthwise_sliding
    nchwc_pointwise_conv_max_input_channel_batch qnbit.force_fp32 use_lut_gemm""",
    "optimization": """constant_folding_max_output_size_in_bytes disable_specified_optimizers
    enable_cast_chain_elimination enable_gelu_approximation enable_memory_probe_recompute_config memory_optimizer_config
    minimal_build_optimizations""",
    "session": """allow_released_opsets_only collect_node_memory_stats_to_file compile_only debug_layout_transformation
    disable_aot_function_inlining disable_cpu_ep_fallback disable_double_qdq_remover disable_model_compile
    disable_prepacking disable_qdq_constant_folding disable_quant_qdq dynamic_block_base enable_dq_matmulnbits_fusion
    enable_moe_expert_counting enable_moe_expert_statistics enable_quant_qdq_cleanup enable_saved_runtime_optimizations
    external_data_loader.chunk_bytes external_data_loader.min_size_bytes external_data_loader.pinned_memory_bytes
    external_data_loader.threads fail_on_suboptimal_compiled_model force_spinning_stop function_expansion_byte_limit
    function_expansion_node_limit gqa_value_layout graph_optimizations_loop_level inter_op.allow_spinning
    inter_op.spin_backoff_max inter_op.spin_duration_us intra_op.allow_spinning intra_op.spin_backoff_max
    intra_op.spin_duration_us intra_op_thread_affinities kernel_dispatch_policy layer_assignment_settings
    load_model_format max_shape_override model_external_initializers_file_folder_path moe_expert_counter_alpha
    moe_expert_counter_beta moe_expert_counter_state_file name_based_layer_assignment node_partition_config_file
    optimized_model_external_initializers_file_name optimized_model_external_initializers_min_size_in_bytes
    prepack.enable_parallel qdq_matmulnbits_accuracy_level qdq_matmulnbits_block_size qdqisint8allowed
    record_ep_graph_assignment_info resource_cuda_partitioning_settings save_external_prepacked_constant_initializers
    save_model_format set_denormal_as_zero strict_shape_type_inference strict_workspace_verification
    use_device_allocator_for_initializers use_env_allocators use_external_initializer_file_buffers_directly
    use_ort_model_bytes_directly use_ort_model_bytes_for_initializers x64quantprecision""",
    "session.moe.offload": """allow_file_backing async_max_tokens budget_group cpu_execution cpu_threads
    derived_cache_dir device_expert_bytes device_working_bytes gpu_budget_bytes gpu_device_mem_limit host_expert_bytes
    host_working_bytes min_expert_weight mode node_overrides pinned_bytes placement popularity_file prefill_wave_experts
    reserve_device_bytes skip_tail_cold_only skip_zero_cold_doorbell source_root tail_substitution_min_rank
    tail_substitution_threshold""",
}

_ATTRIBUTES = [name for name, member in vars(onnxruntime.SessionOptions).items() if isinstance(member, property)]
_MODEL: dict[str, Any] = {"opset_imports": [helper.make_opsetid("", 13)], "ir_version": 8}
_EMPTY = helper.make_model(helper.make_graph([], "empty", [], []), **_MODEL).SerializeToString()
#: A tensor of which no other makes the largest number.
_LEAST = [-(1 << 63)] * 3

_lock = threading.Lock()


@after_fork
def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held the lock


State = tuple[dict[str, Any], dict[str, str]]


def entry(options: onnxruntime.SessionOptions, key: str) -> str | None:
    """The configuration entry ``key``; None where there is none."""
    with suppress(Exception):  # onnxruntime's way to say that there is none
        return str(options.get_session_config_entry(key))
    return None


def set_default(options: onnxruntime.SessionOptions, key: str, value: str) -> None:
    """Let the configuration entry ``key`` be ``value`` where there is none."""
    if entry(options, key) is None:
        options.add_session_config_entry(key, value)


def loaded(options: onnxruntime.SessionOptions, model: bytes) -> Any:
    """Onnxruntime's bare session of ``model``, read but not made ready to run; an exception is onnxruntime's own."""
    return with_signals_deferred(_loaded, options, model)  # a signal between two steps would leave the lock taken


def _loaded(options: onnxruntime.SessionOptions, model: bytes) -> Any:
    with _lock:  # or another thread would take for the caller's what is set here
        profiling = options.enable_profiling  # which would write a file
        try:
            options.enable_profiling = False
            session = _pybind_state.InferenceSession(options, model, False, False)
            forks.track(session)
            return session
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
    model = helper.make_model(graph, **_MODEL)
    with suppress(Exception):
        session = forks.cpu_session(model.SerializeToString(), options)
        return list(session.run(None, {}))
    return None


def has_providers(options: onnxruntime.SessionOptions) -> bool:
    """Whether execution providers were added to ``options`` themselves, which older onnxruntimes know nothing of."""
    return hasattr(options, "has_providers") and bool(options.has_providers())


def state(options: onnxruntime.SessionOptions) -> State:
    """What of ``options`` can be read, and pickled: their attributes and the entries of ``_CONFIG_KEYS``."""
    keys = (f"{prefix}.{name}" for prefix, names in _CONFIG_KEYS.items() for name in names.split())
    entries = {key: value for key in keys if (value := entry(options, key)) is not None}
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

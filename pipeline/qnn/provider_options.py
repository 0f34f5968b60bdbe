"""The provider options of QNN's EP that a config may set by name, and which of them an application needs.

The EP takes any name in silence, so a misspelt option would do nothing. The names are those of onnxruntime-qnn 2.7
(`qnn_execution_provider.cc` of https://github.com/onnxruntime/onnxruntime-qnn; a test finds each in the library). It
has none for the number of HVX threads or for DLBC: those are settings of graphs, which only QNN's own tools reach.
"""

from __future__ import annotations

from collections.abc import Mapping

OPTIMIZATION, PRIORITY = "htp_graph_finalization_optimization_mode", "qnn_context_priority"
PERFORMANCE_MODE, RPC_LATENCY = "htp_performance_mode", "rpc_control_latency"

COMPILE = frozenset(
    {
        "disable_file_mapped_weights",
        "enable_block_quant_weight_optimization",
        "enable_htp_fp16_clamp_overflow",
        "enable_htp_graph_splitting",
        "enable_htp_monolithic_lstm",
        "enable_htp_shared_memory_allocator",
        "enable_htp_spill_fill_buffer",
        "enable_vtcm_backup_buffer_sharing",
        "extended_udma",
        "htp_bf16_enable",
        "htp_graph_splitting_num_prepare_threads",
        "htp_reused_io_limit_mb",
        "htp_share_resource_optimization",
        "skip_backend_op_validation",
    }
)
"""Options that are given to the compiler, and are in the keys of all that is compiled with them."""

OURS: Mapping[str, str] = {
    "backend_path": "the pipeline compiles for HTP",
    "backend_type": "the pipeline compiles for HTP",
    "soc_model": "say 'soc'",
    "htp_arch": "say 'soc'",
    "vtcm_mb": "say 'vtcm_mb' of the target",
    OPTIMIZATION: "say 'optimization'",
    PRIORITY: "say 'priority'",
    PERFORMANCE_MODE: "say 'performance_mode'",
    RPC_LATENCY: "say 'rpc_latency_us'",
    "enable_htp_prepare_only": "the pipeline compiles without a device",
    "enable_htp_fp16_precision": "say 'quantization: {precision: fp16}'",
    "offload_graph_io_quantization": "inputs and outputs keep the model's types",
    "enable_framework_op_trace": "the pipeline reads the trace",
    "profiling_level": "it changes no context: measure in the application",
}
"""Options that the pipeline sets itself, each with what to say instead or why."""

ELSEWHERE = ("dlbc", "hvx_threads", "num_hvx_threads")
"""Settings of graphs that people know from QNN's own tools."""


def why_not(name: str) -> str:
    """Why a config can't set an option; empty if it can."""
    if name in COMPILE:
        return ""
    if name in ELSEWHERE:
        return "onnxruntime-qnn has no such option, only QNN's own tools do"
    return OURS.get(name) or "this version of onnxruntime-qnn knows no option of that name"

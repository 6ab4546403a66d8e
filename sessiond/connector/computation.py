"""What else decides which numbers an engine computes: options and environment variables of vLLM
that no other field of the fingerprint tells.

Whatever differs from vLLM's default counts, but for what is left out here with its reason. So a
knob that nobody has thought of makes two engines different, and never the other way round.
Knobs that only round in another way are left out, like other releases of torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from sessiond.connector.plain import plain
from sessiond.domain.canonical import JsonValue

if TYPE_CHECKING:
    from dataclasses import Field

    from vllm.config import VllmConfig

#: Parts of vLLM's configuration of which nothing counts.
_PARTS_LEFT_OUT = frozenset(
    {
        # Told by fields of their own, as far as they decide bytes: where KV is computed, by how
        # many ranks, with which weights, adapters and drafts.
        *("device_config", "parallel_config", "load_config", "quant_config"),
        *("lora_config", "speculative_config"),
        # When tokens are computed, where weights and KV lie meanwhile, and who watches.
        *("scheduler_config", "offload_config", "kv_transfer_config", "kv_events_config"),
        *("ec_transfer_config", "ec_manager_config", "weight_transfer_config"),
        *("observability_config", "logging_config", "profiler_config", "aux_output_config"),
        *("instance_id", "shutdown_timeout"),
        # Which tokens are taken, and in what form they are answered.
        *("structured_outputs_config", "reasoning_config", "watermark_config"),
        # How the same computation is compiled.
        *("compilation_config", "optimization_level", "performance_mode"),
    }
)
#: Parts of which single knobs are left out.
_KNOBS_LEFT_OUT: Mapping[str, frozenset[str]] = {
    "attention_config": frozenset(
        {
            # The field for attention has what they resolve to.
            *("backend", "backend_per_kind"),
            # Into how many pieces a sum is split, and room for them.
            *("flash_attn_max_num_splits_for_cuda_graph", "tq_max_kv_splits_for_cuda_graph"),
            *("tokenspeed_mla_min_split_kv", "sparse_mla_prefill_workspace_factor"),
            *("flex_attn_block_m", "flex_attn_block_n"),
            *("flex_attn_q_block_size", "flex_attn_kv_block_size"),
        }
    ),
    "kernel_config": frozenset(
        {
            # What is prepared before the first request.
            *("enable_flashinfer_autotune", "enable_rocm_segmented_attn_autotune"),
            *("enable_cutedsl_warmup", "enable_jit_warmup"),
            # Equal functions, of which the platform takes the fastest.
            "ir_op_priority",
        }
    ),
    "cache_config": frozenset(
        {
            # The fields for KV's data type, groups, layout and sizes have what they resolve to.
            *("block_size", "user_specified_block_size", "_block_size_resolved"),
            *("cache_dtype", "kv_cache_dtype_skip_layers", "kv_cache_layout", "sliding_window"),
            *("skip_page_size_padded", "effective_attention_block_size", "is_attention_free"),
            *("mamba_page_size_padded", "mamba_block_size", "user_specified_mamba_block_size"),
            *("mamba_cache_dtype", "mamba_ssm_cache_dtype", "mamba_cache_mode"),
            # How much there is of it, and how it is found.
            *("gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override"),
            *("num_gpu_blocks", "num_cpu_blocks", "kv_cache_size_tokens"),
            *("kv_cache_max_concurrency", "kv_offloading_size", "kv_offloading_backend"),
            *("enable_prefix_caching", "prefix_caching_hash_algo", "prefix_match_unit"),
            *("prefix_cache_retention_interval", "hash_block_size", "cache_hit_alignment_tokens"),
            "enable_mamba_shared_prefix_checkpoint",
        }
    ),
    "model_config": frozenset(
        {
            # The fields for weights, code, configuration, quantization, data type and tokens.
            *("model", "model_weights", "revision", "word_embeddings_untied_by_checkpoint"),
            *("trust_remote_code", "code_revision", "model_class_overrides", "model_impl"),
            *("hf_config", "hf_text_config", "hf_overrides", "hf_config_path", "config_format"),
            *("max_model_len", "disable_sliding_window", "dtype", "spec_target_max_model_len"),
            *("quantization", "quantization_config", "allow_deprecated_quantization"),
            *("tokenizer", "tokenizer_mode", "tokenizer_revision", "skip_tokenizer_init"),
            # What may be asked, which tokens are taken, and what is answered.
            *("served_model_name", "runner", "convert", "pooler_config", "io_processor_plugin"),
            *("allowed_local_media_path", "allowed_media_domains", "enable_prompt_embeds"),
            *("multimodal_config", "seed", "generation_config", "override_generation_config"),
            *("logits_processors", "max_logprobs", "logprobs_mode", "use_fp64_gumbel"),
            *("return_sampling_mask", "enable_trace_replay", "renderer_num_workers", "hf_token"),
            # How the same computation is run, and what sleeps.
            *("enforce_eager", "disable_cascade_attn", "is_submodel_config"),
            *("enable_sleep_mode", "sleep_mode_backend", "sleep_preserve_parameter_names"),
            *("sleep_mode_offload_cudagraph", "enable_nccl_comm_suspend"),
            "enable_cumem_allocator",
        }
    ),
}
#: What follows ``VLLM_`` in the names of variables that do not count.
_VARIABLES_LEFT_OUT = re.compile(
    "|".join(
        (
            # Told by fields of their own, or refused.
            "USE_V2_MODEL_RUNNER|KV_CACHE_LAYOUT|PLUGINS|USE_MODELSCOPE|SERVER_DEV_MODE",
            "ALLOW_RUNTIME_LORA_UPDATING|ALLOW_LONG_MAX_MODEL_LEN|SKIP_MODEL_NAME_VALIDATION",
            # Where something lies or listens, and how long somebody waits.
            r"(\w+_)?(PATH|DIR|FOLDER|ROOT|PORT|HOST|HOSTNAME|IP|URL)|ASSETS_CACHE\w*",
            r"\w*TIMEOUT\w*|\w+_INTERVAL",
            # Who watches.
            r"LOG\w*|CONFIGURE_LOGGING|DEBUG\w*|USAGE\w*|NO_USAGE_STATS|DO_NOT_TRACK",
            r"DISABLE_LOG_LOGO|TRACE_FUNCTION|\w+_FOR_PROFILING|GC_DEBUG|PATTERN_MATCH_DEBUG",
            "PROCESS_NAME_PREFIX|GPU_SYNC_CHECK|COMPUTE_NANS_IN_LOGITS|RAISE_ON_LOGIT_NANS",
            # What may be asked, which tokens are taken, and what is answered.
            r"API_KEY|MEDIA\w*|MAX_(AUDIO|EMBED|IMAGE|MEDIA|N_SEQ|STOP|NUM_BAD|BAD|COMPL)\w*",
            r"VIDEO_LOADER_BACKEND|ENABLE_(RESPONSES_API_STORE|COHERE_API)|GPT_OSS\w*|TOOL\w*",
            r"ENFORCE_STRICT_TOOL_CALLING|SYSTEM_START_DATE|XGRAMMAR\w*|V1_USE_OUTLINES_CACHE",
            r"V1_OUTPUT_PROC_CHUNK_SIZE|USE_(RUST|EXPERIMENTAL_PARSER)\w*|USE_FASTOKENS",
            r"DISABLE_REQUEST_ID_RANDOMIZATION|\w+_SAMPLER(_KERNEL)?|LORA_RESOLVER\w*",
            # How it was built.
            r"BUILD\w*|TARGET_DEVICE|USE_PRECOMPILED\w*|MAIN_CUDA_VERSION|DOCKER_BUILD_CONTEXT",
            r"IMAGE_TAG|SKIP\w*VERSION_SUFFIX|HAS_FLASHINFER_CUBIN",
            # How processes are made, and what they tell each other.
            r"RAY\w*|USE_RAY\w*|WORKER_MULTIPROC_METHOD|ENABLE_V1_MULTIPROCESSING|DP_\w*|P2P\w*",
            r"NIXL\w*|MOONCAKE\w*|EC_\w*|ELASTIC_EP\w*|KV_EVENTS\w*|KV_OFFLOAD\w*|NCCL\w*|NIC_\w*",
            r"USE_SIMPLE_KV_OFFLOAD|GPU_NIC\w*|MQ_\w*|MSGPACK\w*|OBJECT_STORAGE\w*|SKIP_P2P_CHECK",
            "ALLOW_INSECURE_SERIALIZATION|KEEP_ALIVE_ON_ENGINE_DEATH|DISABLE_PYNCCL",
            "DISTRIBUTED_USE_SPLIT_GROUP|USE_SPINLOOP_EXT|RANDOMIZE_DP_DUMMY_INPUTS",
            # Memory, threads, and what is prepared before the first request.
            r"CPU_(KVCACHE_SPACE|OMP_THREADS_BIND|NUM_OF_RESERVED_CPU|CI_ENV)|MEMORY_PROFILER\w*",
            r"WEIGHT_OFFLOADING\w*|WSL2\w*|ROCM_SLEEP_MEM_CHUNK_SIZE|\w+_BUFFER_SIZE(_MB)?",
            r"FASTSAFETENSORS\w*|\w+_WARMUP(_NUM_THREADS)?|ENABLE_STARTUP_PLAN",
            "ENABLE_CUDAGRAPH_GC|ENABLE_CUDA_COMPATIBILITY|FLASHINFER_AUTOTUNE_SKIP_OPS",
            # What runs beside what; vLLM sets one of them itself.
            r"\w*SHARED_EXPERTS_STREAM\w*|LORA_ENABLE_DUAL_STREAM|MULTI_STREAM_GEMM\w*",
            # States of Mamba, which is refused; vLLM sets it itself.
            "SSM_CONV_STATE_LAYOUT",
            # How the same computation is compiled.
            r"\w*COMPILE_CACHE\w*|\w*AOT\w*|USE_STANDALONE_COMPILE|USE_BYTECODE_HOOK|XLA\w*",
            r"ENABLE_PREGRAD_PASSES|USE_BREAKABLE_CUDAGRAPH|ENABLE_INDUCTOR\w*|USE_LAYERNAME",
        )
    )
)
#: Variables of the libraries below vLLM that have them compute with fewer bits than they are given.
_FEWER_BITS = (
    "DNNL_DEFAULT_FPMATH_MODE",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
_PREFIX = "VLLM_"


def computation(vllm_config: VllmConfig) -> dict[str, JsonValue]:
    """Return every option and variable that counts and is not as vLLM has it by itself."""
    return {"options": _options(vllm_config), "environment": _environment()}


def _options(vllm_config: VllmConfig) -> dict[str, JsonValue]:
    told: dict[str, JsonValue] = {}
    for part, value in _unusual(vllm_config, _PARTS_LEFT_OUT | _KNOBS_LEFT_OUT.keys()):
        told[part] = plain(value)
    for part, left_out in _KNOBS_LEFT_OUT.items():
        for knob, value in _unusual(getattr(vllm_config, part), left_out):
            told[f"{part}.{knob}"] = plain(value)
    return told


def _environment() -> dict[str, JsonValue]:
    from vllm.envs import environment_variables  # noqa: PLC0415 - beside what reads it

    # Only names that vLLM knows: a cluster makes variables for a service that is called "vllm".
    known = {name for name in environment_variables if name.startswith(_PREFIX)}
    counting = {n for n in known if not _VARIABLES_LEFT_OUT.fullmatch(n.removeprefix(_PREFIX))}
    return {name: os.environ[name] for name in (*counting, *_FEWER_BITS) if name in os.environ}


def _unusual(config: Any, left_out: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield the other attributes of a configuration that are not its class's defaults."""
    for each in fields(config):
        if each.name not in left_out:
            value = getattr(config, each.name)
            if value != _default(each):
                yield each.name, value


def _default(knob: Field[Any]) -> Any:
    """Return a knob's default; a knob without one is never as usual."""
    if knob.default_factory is not MISSING:
        return knob.default_factory()
    described = getattr(knob.default, "get_default", None)  # pydantic's description of it
    return described(call_default_factory=True) if described else knob.default

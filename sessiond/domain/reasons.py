"""Why KV was not kept, or not used again: one closed list.

The same codes appear in REST answers, in the CLI, in logs and in metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sessiond.domain.canonical import JsonValue


class Reason(StrEnum):
    """A stable code for one cause."""

    # The fingerprint's bytes class: these KV bytes mean something else in this engine.
    WEIGHTS_MISMATCH = "weights_mismatch"
    REVISION_MISMATCH = "revision_mismatch"
    MODEL_CODE_MISMATCH = "model_code_mismatch"
    MODEL_CONFIG_MISMATCH = "model_config_mismatch"
    QUANTIZATION_MISMATCH = "quantization_mismatch"
    ADAPTER_MISMATCH = "adapter_mismatch"
    MODEL_DTYPE_MISMATCH = "model_dtype_mismatch"
    KV_DTYPE_MISMATCH = "kv_dtype_mismatch"
    KV_SCALES_MISMATCH = "kv_scales_mismatch"
    KV_GROUPS_MISMATCH = "kv_groups_mismatch"
    KV_LAYOUT_MISMATCH = "kv_layout_mismatch"
    CHUNK_SIZE_MISMATCH = "chunk_size_mismatch"
    MODEL_RUNNER_MISMATCH = "model_runner_mismatch"
    ATTENTION_BACKEND_MISMATCH = "attention_backend_mismatch"
    COMPUTATION_MISMATCH = "computation_mismatch"
    PARALLEL_MISMATCH = "parallel_mismatch"
    SPECULATION_MISMATCH = "speculation_mismatch"
    FORMAT_MISMATCH = "format_mismatch"
    VLLM_VERSION_MISMATCH = "vllm_version_mismatch"
    LOSSY_MISMATCH = "lossy_mismatch"
    UNKNOWN_FIELD_MISMATCH = "unknown_field_mismatch"
    # The prompt class: token ids may no longer mean the same text.
    TOKENIZER_MISMATCH = "tokenizer_mismatch"
    SPECIAL_TOKENS_MISMATCH = "special_tokens_mismatch"
    CHAT_TEMPLATE_MISMATCH = "chat_template_mismatch"
    TEMPLATE_ARGUMENTS_MISMATCH = "template_arguments_mismatch"
    # The advisory class: noted, and loaded all the same.
    VLLM_RELEASE_MISMATCH = "vllm_release_mismatch"
    TORCH_VERSION_MISMATCH = "torch_version_mismatch"
    PLATFORM_MISMATCH = "platform_mismatch"
    HASH_MISMATCH = "hash_mismatch"
    SESSIOND_VERSION_MISMATCH = "sessiond_version_mismatch"
    # The snapshot itself.
    NO_SNAPSHOT = "no_snapshot"
    SNAPSHOT_CORRUPT = "snapshot_corrupt"
    SNAPSHOT_MISSING = "snapshot_missing"
    SNAPSHOT_EXPIRED = "snapshot_expired"
    SNAPSHOT_EVICTED = "snapshot_evicted"
    SNAPSHOT_KEY_MISMATCH = "snapshot_key_mismatch"
    SESSION_DELETED = "session_deleted"
    DIVERGED = "diverged"
    NOT_FAITHFUL = "not_faithful"
    NOT_TEXT = "not_text"
    ADAPTER_UNPROVEN = "adapter_unproven"
    # The engine and its surroundings.
    SIDE_CALL = "side_call"
    WENT_ELSEWHERE = "went_elsewhere"
    KV_EVICTED = "kv_evicted"
    ENGINE_LOST_KV = "engine_lost_kv"
    RAM_TIER_TOO_SMALL = "ram_tier_too_small"
    RAM_TIER_BUSY = "ram_tier_busy"
    STORE_FULL = "store_full"
    STORE_FAILED = "store_failed"
    MOVER_FAILED = "mover_failed"
    DEADLINE = "deadline"
    TURN_IN_FLIGHT = "turn_in_flight"
    HEAD_STALE = "head_stale"
    HEAD_UNCONFIRMED = "head_unconfirmed"
    ABORTED = "aborted"
    TIER_OFF = "tier_off"
    IDENTITY_PENDING = "identity_pending"
    IDENTITY_UNKNOWN = "identity_unknown"
    TICKET_INVALID = "ticket_invalid"
    TICKET_FOR_ANOTHER_MODEL = "ticket_for_another_model"
    GENERATION_EXISTS = "generation_exists"
    NOT_CONFIRMED = "not_confirmed"
    INTERNAL_ERROR = "internal_error"
    # A plan: less is loaded than could be.
    RECOMPUTE_IS_FASTER = "recompute_is_faster"
    RECOMPUTE_IS_SURER = "recompute_is_surer"
    POLICY_NEVER_LOAD = "policy_never_load"
    LOAD_PAUSED = "load_paused"
    # A snapshot is not written.
    TOO_FEW_TOKENS = "too_few_tokens"
    NO_EXPECTED_RETURN = "no_expected_return"
    WRITE_BUDGET_SPENT = "write_budget_spent"
    PRESSURE = "pressure"


@dataclass(frozen=True)
class Explanation:
    """What a reason means and what an operator can do."""

    sentence: str
    hint: str


@dataclass(frozen=True)
class Cause:
    """A reason in one case, with the two values that differ where there are two."""

    reason: Reason
    detail: str = ""
    stored: JsonValue = None
    live: JsonValue = None

    @property
    def in_words(self) -> str:
        """One sentence for a person, with what is special in this case."""
        sentence = EXPLANATIONS[self.reason].sentence
        return f"{sentence.rstrip('.')} ({self.detail})." if self.detail else sentence

    def as_json(self) -> dict[str, JsonValue]:
        """Return the form used in REST answers, in the CLI and between processes."""
        explanation = EXPLANATIONS[self.reason]
        shown: dict[str, JsonValue] = {
            "reason": self.reason.value,
            "sentence": explanation.sentence,
            "hint": explanation.hint,
        }
        if self.detail:
            shown["detail"] = self.detail
        if self.stored is not None or self.live is not None:
            shown["stored"] = self.stored
            shown["live"] = self.live
        return shown

    @classmethod
    def from_json(cls, value: Mapping[str, JsonValue]) -> Cause:
        """Read what :meth:`as_json` wrote; an unknown reason becomes ``internal_error``."""
        code = str(value.get("reason"))
        known = code in Reason.__members__.values()
        return cls(
            reason=Reason(code) if known else Reason.INTERNAL_ERROR,
            detail=str(value.get("detail") or ("" if known else code)),
            stored=value.get("stored"),
            live=value.get("live"),
        )


_OTHER_ENGINE = "Resume on an engine with the stored value, or let the context be recomputed."
_OWN_TOKENS = "The next turn's own tokens decide how much of the snapshot is used."
_NOTED = "Nothing needs to be done: the snapshot is used, and the difference is noted."

EXPLANATIONS: Mapping[Reason, Explanation] = {
    Reason.WEIGHTS_MISMATCH: Explanation(
        "The model's weights are not the ones that computed the snapshot.",
        "Serve the old weights again to use it, or purge the snapshots of the old ones.",
    ),
    Reason.REVISION_MISMATCH: Explanation(
        "The model's revision is not the one that computed the snapshot.", _OTHER_ENGINE
    ),
    Reason.MODEL_CODE_MISMATCH: Explanation(
        "The code that the checkpoint brings along (trust_remote_code), or that of vLLM's plugins "
        "and of classes that options name, differs.",
        _OTHER_ENGINE,
    ),
    Reason.MODEL_CONFIG_MISMATCH: Explanation(
        "The model's configuration (rope, windows, heads, layers) differs.", _OTHER_ENGINE
    ),
    Reason.QUANTIZATION_MISMATCH: Explanation(
        "The weights are quantized in another way.", _OTHER_ENGINE
    ),
    Reason.ADAPTER_MISMATCH: Explanation(
        "The LoRA adapter is not the one that computed the KV.", _OTHER_ENGINE
    ),
    Reason.MODEL_DTYPE_MISMATCH: Explanation(
        "The engine computes in another data type.", "Start the engine with the stored --dtype."
    ),
    Reason.KV_DTYPE_MISMATCH: Explanation(
        "The engine keeps KV in another data type.",
        "Start the engine with the stored --kv-cache-dtype.",
    ),
    Reason.KV_SCALES_MISMATCH: Explanation("The scales of the FP8 KV cache differ.", _OTHER_ENGINE),
    Reason.KV_GROUPS_MISMATCH: Explanation(
        "The KV groups (kind, layers, block or page size) differ.",
        "If block_tokens differs, start the engine with the stored --block-size. Else resume on an "
        "engine with the stored value, or let the context be recomputed.",
    ),
    Reason.KV_LAYOUT_MISMATCH: Explanation("KV lies in memory in another layout.", _OTHER_ENGINE),
    Reason.CHUNK_SIZE_MISMATCH: Explanation(
        "The engine moves KV in chunks of another size.",
        "Start the engine with the stored --chunk-tokens.",
    ),
    Reason.MODEL_RUNNER_MISMATCH: Explanation(
        "The engine uses another model runner.", _OTHER_ENGINE
    ),
    Reason.ATTENTION_BACKEND_MISMATCH: Explanation(
        "The engine uses an attention backend with another layout.", _OTHER_ENGINE
    ),
    Reason.COMPUTATION_MISMATCH: Explanation(
        "The engine computes with other options or environment variables of vLLM.",
        "Start the engine with the stored ones; what is not told is as vLLM has it by itself.",
    ),
    Reason.PARALLEL_MISMATCH: Explanation(
        "The engine splits the model over another number of ranks.", _OTHER_ENGINE
    ),
    Reason.SPECULATION_MISMATCH: Explanation(
        "The speculative decoding configuration differs.", _OTHER_ENGINE
    ),
    Reason.FORMAT_MISMATCH: Explanation(
        "The snapshot has another connector format.",
        "Use the sessiond version that wrote it, or let the context be recomputed.",
    ),
    Reason.VLLM_VERSION_MISMATCH: Explanation(
        "Another vLLM version wrote the snapshot, whose KV was not proved to be the same.",
        _OTHER_ENGINE,
    ),
    Reason.LOSSY_MISMATCH: Explanation(
        "The snapshot's KV is lossy and this engine's must not be, or the other way round.",
        "Start the engine with the stored 'lossy' setting (null: none), or let the context be "
        "recomputed.",
    ),
    Reason.UNKNOWN_FIELD_MISMATCH: Explanation(
        "One side has a fingerprint field that the other does not know.",
        "Run the same sessiond version on both sides.",
    ),
    Reason.TOKENIZER_MISMATCH: Explanation(
        "The tokenizer differs: the same text may give other tokens.", _OWN_TOKENS
    ),
    Reason.SPECIAL_TOKENS_MISMATCH: Explanation(
        "The special tokens, or whether they are added to a prompt, differ.", _OWN_TOKENS
    ),
    Reason.CHAT_TEMPLATE_MISMATCH: Explanation(
        "The chat template differs: the same messages may give other tokens.", _OWN_TOKENS
    ),
    Reason.TEMPLATE_ARGUMENTS_MISMATCH: Explanation(
        "The chat template's default arguments or content format differ.", _OWN_TOKENS
    ),
    Reason.VLLM_RELEASE_MISMATCH: Explanation(
        "Another release of vLLM wrote the snapshot; both were tested, and their KV is the same.",
        _NOTED,
    ),
    Reason.TORCH_VERSION_MISMATCH: Explanation("The torch version differs.", _NOTED),
    Reason.PLATFORM_MISMATCH: Explanation("The GPU model or CPU differs.", _NOTED),
    Reason.HASH_MISMATCH: Explanation(
        "vLLM's own block keys are made in another way (hash algorithm or seed).", _NOTED
    ),
    Reason.SESSIOND_VERSION_MISMATCH: Explanation("The sessiond version differs.", _NOTED),
    Reason.NO_SNAPSHOT: Explanation(
        "The session has no snapshot.", "Suspend it after its next turn."
    ),
    Reason.SNAPSHOT_CORRUPT: Explanation(
        "Bytes of the snapshot do not match their checksum.",
        "Check the disk; the next suspend writes a fresh snapshot.",
    ),
    Reason.SNAPSHOT_MISSING: Explanation(
        "A file of the snapshot is gone.", "Check who else removes files below the store root."
    ),
    Reason.SNAPSHOT_EXPIRED: Explanation(
        "The session was not used for its TTL, so its snapshots were removed.",
        "Give the session a longer TTL, or pin it.",
    ),
    Reason.SNAPSHOT_EVICTED: Explanation(
        "The session's snapshots were removed to make room for those of others.",
        "Pin the session, raise the quota or free disk space.",
    ),
    Reason.SNAPSHOT_KEY_MISMATCH: Explanation(
        "The snapshot was sealed with another key.",
        "Give sessiond and every engine the same key file.",
    ),
    Reason.SESSION_DELETED: Explanation(
        "The session was deleted meanwhile; its id may be a new one's.",
        "Nothing is left to do: its bytes are gone. A turn of the new one needs its own ticket.",
    ),
    Reason.DIVERGED: Explanation(
        "The prompt differs from the stored context at some token.",
        "Keep the beginning of the conversation unchanged to use more of it.",
    ),
    Reason.NOT_FAITHFUL: Explanation(
        "The session's exact tokens cannot stand for the messages, so those are rendered anew.",
        "Send the earlier messages and tools as they were, the replies as they came.",
    ),
    Reason.NOT_TEXT: Explanation(
        "The newest turn has images, audio or embeddings, whose KV cannot be kept yet.",
        "Suspend again after a turn of text that goes on with the conversation.",
    ),
    Reason.ADAPTER_UNPROVEN: Explanation(
        "It is not proven which weights the LoRA adapter has, so its KV is neither kept nor used.",
        "Take another turn if its files were still being read, and restart the engine if they "
        "changed; give a changed adapter a new folder.",
    ),
    Reason.KV_EVICTED: Explanation(
        "Part of the KV was evicted from VRAM and RAM before it was needed.",
        "Suspend earlier, or give the engine more KV space or a larger RAM tier.",
    ),
    Reason.ENGINE_LOST_KV: Explanation(
        "An engine ended before it had stored the session's newest KV.",
        "The next turn computes it again. Drain engines before they end, or suspend earlier.",
    ),
    Reason.SIDE_CALL: Explanation(
        "The newest turn began another line than the conversation that is stored.",
        "If it is the conversation from now on, its second turn makes it the one that is stored.",
    ),
    Reason.WENT_ELSEWHERE: Explanation(
        "The session went on in another engine, with less than this one has of it.",
        "Nothing needs to be done if it goes on from there; else the rest is computed again.",
    ),
    Reason.RAM_TIER_TOO_SMALL: Explanation(
        "The RAM tier holds fewer chunks than the context has.",
        "Start the engine with a larger --ram-tier-bytes.",
    ),
    Reason.RAM_TIER_BUSY: Explanation(
        "The RAM tier had no free room while other sessions were moved.",
        "Try again, or start the engine with a larger --ram-tier-bytes.",
    ),
    Reason.STORE_FULL: Explanation(
        "The store's file system has no room left.", "Delete or unpin sessions, or free disk space."
    ),
    Reason.STORE_FAILED: Explanation(
        "Writing or reading the store failed.", "See the engine's log for the system's error."
    ),
    Reason.MOVER_FAILED: Explanation(
        "The process that moves bytes ended or hung, and was replaced.",
        "See the engine's log; nothing half was kept or used.",
    ),
    Reason.DEADLINE: Explanation(
        "It took longer than its deadline.", "Check the disk, or raise the deadline."
    ),
    Reason.TURN_IN_FLIGHT: Explanation(
        "A turn of the session is running.", "Wait for the turn to end, then suspend."
    ),
    Reason.HEAD_STALE: Explanation(
        "The session took another turn since the suspend was prepared.", "Repeat the suspend."
    ),
    Reason.HEAD_UNCONFIRMED: Explanation(
        "The engine did not say in time that it had written down its newest turns.",
        "Repeat the call when the engine answers: it may be paused, asleep or busy.",
    ),
    Reason.ABORTED: Explanation("The request was aborted before its end.", "Repeat the call."),
    Reason.TIER_OFF: Explanation(
        "The snapshot tier is off: the engine's weights or caches may have changed.",
        "Restart the engine, or after a reset with the same weights: 'sessionctl engines attest'.",
    ),
    Reason.IDENTITY_PENDING: Explanation(
        "The engine's fingerprint is still being taken: its files are read for the first time.",
        "Try again in a moment; the engine serves meanwhile.",
    ),
    Reason.IDENTITY_UNKNOWN: Explanation(
        "Which model files the engine has loaded is not known, so the snapshot tier is off.",
        "Restart the engine, and leave the model's files alone while it starts.",
    ),
    Reason.TICKET_INVALID: Explanation(
        "The request's ticket is not valid for this engine.", "Ask sessiond for a fresh ticket."
    ),
    Reason.TICKET_FOR_ANOTHER_MODEL: Explanation(
        "The request's model, or its LoRA adapter, is not the one that its ticket is for.",
        'Ask for a ticket with the "model" that the request names, or create the session with it.',
    ),
    Reason.GENERATION_EXISTS: Explanation(
        "A snapshot of this generation exists already.", "Repeat the suspend."
    ),
    Reason.NOT_CONFIRMED: Explanation(
        "The engine did not confirm that the restored KV was used.",
        "See the engine's log; the context counts as recomputed.",
    ),
    Reason.INTERNAL_ERROR: Explanation(
        "sessiond's own code failed; the engine went on without it.",
        "Report it with the engine's log.",
    ),
    Reason.RECOMPUTE_IS_FASTER: Explanation(
        "Computing the context again is likely to be ready as soon as loading it, or sooner.",
        "See 'sessionctl plan' for both times; a faster disk makes loading win earlier.",
    ),
    Reason.RECOMPUTE_IS_SURER: Explanation(
        "Computing the context again is more surely ready within the latency objective.",
        "See 'sessionctl plan' for both times, or choose the policy 'auto'.",
    ),
    Reason.POLICY_NEVER_LOAD: Explanation(
        "The policy 'never_load' has the context computed again.",
        "Choose the policy 'auto' to load where that is faster.",
    ),
    Reason.LOAD_PAUSED: Explanation(
        "Loads are paused: the last ones took longer than computing again.",
        "Nothing needs to be done: one load is tried now and then. 'sessiond doctor' shows what "
        "is slow.",
    ),
    Reason.TOO_FEW_TOKENS: Explanation(
        "The context is too short for a snapshot to be worth it.",
        "Nothing needs to be done: a short context is computed again at once.",
    ),
    Reason.NO_EXPECTED_RETURN: Explanation(
        "Sessions like this one hardly ever come back, so it is not written by itself.",
        "Suspend it by a call if it will be needed.",
    ),
    Reason.WRITE_BUDGET_SPENT: Explanation(
        "The bytes that may be written in a day are written.",
        "Wait, or raise the budget if the drive may wear faster.",
    ),
    Reason.PRESSURE: Explanation(
        "Little space is free, and this snapshot is not among the most valuable.",
        "Free disk space, or suspend the session by a call.",
    ),
}

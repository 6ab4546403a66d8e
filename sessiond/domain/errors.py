"""The one error tree.

::

    SessiondError
    ├── InvalidInputError          the caller sent something that can never work
    │   ├── InvalidSessionIdError
    │   ├── InvalidTenantError
    │   ├── NothingToSuspendError
    │   ├── SuspendSkippedError
    │   ├── NotTextError
    │   ├── BodyTooLargeError
    │   └── ConfigurationError
    ├── NotFoundError
    │   ├── SessionNotFoundError
    │   ├── OperationNotFoundError
    │   ├── EngineNotFoundError
    │   ├── ResponseLostError
    │   └── SnapshotNotFoundError
    ├── ConflictError              a moment later, or after another call, it may work
    │   ├── KeyReusedError
    │   ├── SessionExistsError
    │   ├── TurnInFlightError
    │   ├── OperationInProgressError
    │   ├── GenerationExistsError
    │   ├── AttestationRefusedError
    │   ├── AdapterUnprovenError
    │   ├── SuspendRefusedError
    │   └── EventsResetError
    ├── UnauthorizedError
    ├── ForbiddenError
    ├── UnavailableError           something that sessiond needs is not there now
    │   ├── NoEngineError
    │   ├── EngineUnreachableError
    │   │   └── EngineLostError
    │   ├── EngineWithoutConnectorError
    │   ├── EngineRefusedError
    │   ├── DeadlineExceededError
    │   ├── IdentityPendingError
    │   ├── TierOffError
    │   ├── TooManyListenersError
    │   └── RegistryUnavailableError
    ├── UnsupportedEngineError     raised at start, never later
    ├── FileChangedError
    ├── TicketError
    │   ├── TicketMalformedError
    │   ├── TicketForgedError
    │   └── TicketExpiredError
    └── StoreError
        ├── StoreInsecureError
        ├── StoreVersionError
        ├── StoreCorruptError
        ├── StoreKeyError
        ├── StoreFullError
        │   └── QuotaExceededError
        └── StoreLateError

Each class has a stable ``code``; its docstring is the default message. Edges translate the
code (HTTP status, exit status) and a test proves that their tables know every class.
"""

from __future__ import annotations

from typing import ClassVar

from sessiond.domain.reasons import EXPLANATIONS, Cause, Reason


class SessiondError(Exception):
    """sessiond failed."""

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False
    hint: str = ""
    causes: tuple[Cause, ...] = ()

    def __init__(self, message: str | None = None, *, causes: tuple[Cause, ...] = ()) -> None:
        """Create one.

        :param message: by default what the first cause says, or else the class
        :param causes: why; the first one has the hint
        """
        told = causes[0].in_words if causes else (type(self).__doc__ or type(self).code).strip()
        super().__init__(message or told)
        if causes:
            self.causes = causes
            self.hint = EXPLANATIONS[causes[0].reason].hint

    @property
    def message(self) -> str:
        """One sentence for a person."""
        return str(self.args[0])


class InvalidInputError(SessiondError):
    """The request is not valid."""

    code = "invalid_input"


class InvalidSessionIdError(InvalidInputError):
    """The session id is not valid."""

    code = "invalid_session_id"
    hint = "Use 1 to 64 letters, digits, '_' or '-', beginning with a letter or digit."


class InvalidTenantError(InvalidInputError):
    """The tenant name is not valid."""

    code = "invalid_tenant"
    hint = "Use 1 to 64 letters, digits, '_' or '-', beginning with a letter or digit."


class NothingToSuspendError(InvalidInputError):
    """The session has no whole block of KV to suspend."""

    code = "nothing_to_suspend"
    hint = "A suspend needs a finished ticketed turn of at least one chunk of tokens."


class SuspendSkippedError(InvalidInputError):
    """KV of the session was evicted, so nothing was stored, as its 'on_evicted' says."""

    code = "suspend_skipped"


class NotTextError(InvalidInputError):
    """The session's newest turn has images, audio or embeddings, whose KV cannot be kept yet."""

    code = "not_text"
    hint = EXPLANATIONS[Reason.NOT_TEXT].hint


class BodyTooLargeError(InvalidInputError):
    """The request's body has more than 8 MiB."""

    code = "body_too_large"
    hint = 'Ask for the ticket without "continue": the turn itself may be as large as vLLM allows.'


class ConfigurationError(InvalidInputError):
    """The configuration is not valid."""

    code = "invalid_configuration"


class NotFoundError(SessiondError):
    """There is no such thing."""

    code = "not_found"


class SessionNotFoundError(NotFoundError):
    """There is no such session."""

    code = "session_not_found"


class OperationNotFoundError(NotFoundError):
    """There is no such operation."""

    code = "operation_not_found"


class EngineNotFoundError(NotFoundError):
    """There is no such engine."""

    code = "engine_not_found"


class ResponseLostError(NotFoundError):
    """The engine that computed this response has ended, and only its memory held it."""

    code = "response_lost"
    hint = (
        "Send the whole conversation as 'input', without 'previous_response_id': "
        "the session's KV is used again all the same."
    )


class SnapshotNotFoundError(NotFoundError):
    """The session has no such snapshot."""

    code = "snapshot_not_found"


class ConflictError(SessiondError):
    """The request does not fit the present state."""

    code = "conflict"
    retryable = True


class KeyReusedError(ConflictError):
    """The idempotency key was used for another request."""

    code = "idempotency_key_reused"
    hint = "Use a key of its own for each request."
    retryable = False


class SessionExistsError(ConflictError):
    """A session with this id exists already."""

    code = "session_exists"
    retryable = False


class TurnInFlightError(ConflictError):
    """A turn of the session is running."""

    code = "turn_in_flight"
    hint = EXPLANATIONS[Reason.TURN_IN_FLIGHT].hint


class OperationInProgressError(ConflictError):
    """Another operation holds the session."""

    code = "operation_in_progress"
    hint = "Wait for the operation to end, or for its lease to run out."


class GenerationExistsError(ConflictError):
    """A snapshot of this generation exists already."""

    code = "generation_exists"


class AttestationRefusedError(ConflictError):
    """The snapshot tier must stay off."""

    code = "attestation_refused"
    retryable = False
    hint = "Restart the engine, or do what the message says and attest again."


class AdapterUnprovenError(ConflictError):
    """It is not proven which weights the session's LoRA adapter has."""

    code = "adapter_unproven"
    retryable = False
    hint = EXPLANATIONS[Reason.ADAPTER_UNPROVEN].hint


class SuspendRefusedError(ConflictError):
    """The snapshot is not worth being written now."""

    code = "suspend_refused"
    retryable = False


class EventsResetError(ConflictError):
    """The registry does not know the event after which it should go on: it was built anew."""

    code = "events_reset"
    retryable = False
    hint = "Read the events from the beginning, with 'after=0'."


class UnauthorizedError(SessiondError):
    """The call carries no valid token."""

    code = "unauthorized"
    hint = "Send 'Authorization: Bearer TOKEN' with a token from the configuration."


class ForbiddenError(SessiondError):
    """The call concerns all tenants, and the token is no operator's."""

    code = "forbidden"
    hint = "Use a token of a tenant that SESSIOND_OPERATOR_TENANTS names; 'default' by default."


class UnavailableError(SessiondError):
    """Something that sessiond needs is not available."""

    code = "unavailable"
    retryable = True


class NoEngineError(UnavailableError):
    """No engine is running."""

    code = "no_engine"
    hint = "Start one with 'sessiond engine MODEL'; the session stays as it is."


class EngineUnreachableError(UnavailableError):
    """The engine does not answer."""

    code = "engine_unreachable"


class EngineLostError(EngineUnreachableError):
    """The engine ended, or its connection broke, while it worked on the request."""

    code = "engine_lost"
    hint = "Repeat the call: the session stays as it is."


class EngineWithoutConnectorError(UnavailableError):
    """The vLLM server answers, but it does not load sessiond's connector."""

    code = "engine_without_connector"
    retryable = False
    hint = "Start it with 'sessiond engine', or add what 'sessiond engine MODEL --print' shows."


class EngineRefusedError(UnavailableError):
    """The engine refused the request."""

    code = "engine_refused"


class DeadlineExceededError(UnavailableError):
    """The engine did not finish in time."""

    code = "deadline_exceeded"


class IdentityPendingError(UnavailableError):
    """The engine's fingerprint is still being taken: its files are read for the first time."""

    code = "identity_pending"
    hint = EXPLANATIONS[Reason.IDENTITY_PENDING].hint


class TierOffError(UnavailableError):
    """The engine's snapshot tier is off."""

    code = "tier_off"
    retryable = False
    hint = EXPLANATIONS[Reason.TIER_OFF].hint


class TooManyListenersError(UnavailableError):
    """The tenant has as many open streams of events as it may have."""

    code = "too_many_listeners"
    hint = "Close one, or raise SESSIOND_EVENT_LISTENERS."


class RegistryUnavailableError(UnavailableError):
    """The registry's database does not answer."""

    code = "registry_unavailable"


class UnsupportedEngineError(SessiondError):
    """This engine cannot be used with sessiond."""

    code = "unsupported_engine"


class FileChangedError(SessiondError):
    """A file is not the one that was loaded."""

    code = "file_changed"
    hint = "Restart the engine, and leave the model's files alone while it starts."


class TicketError(SessiondError):
    """The ticket is not valid."""

    code = "ticket_invalid"


class TicketMalformedError(TicketError):
    """The ticket cannot be read."""

    code = "ticket_malformed"


class TicketForgedError(TicketError):
    """The ticket was not signed with this store's key."""

    code = "ticket_forged"


class TicketExpiredError(TicketError):
    """The ticket is not valid at this time."""

    code = "ticket_expired"


class StoreError(SessiondError):
    """The store failed."""

    code = "store_error"


class StoreInsecureError(StoreError):
    """Others than the owner can reach the store root."""

    code = "store_insecure"
    hint = "chmod 700 the store root and run sessiond and the engine as its owner."


class StoreVersionError(StoreError):
    """The store was written by a version that this one cannot read."""

    code = "store_version"


class StoreCorruptError(StoreError):
    """A file of the store is damaged."""

    code = "snapshot_corrupt"


class StoreKeyError(StoreError):
    """A file of the store was sealed with another key."""

    code = "store_key"
    hint = "Give sessiond and every engine the same key file."


class StoreFullError(StoreError):
    """The store has no room left."""

    code = "store_full"
    retryable = True
    hint = EXPLANATIONS[Reason.STORE_FULL].hint


class StoreLateError(StoreError):
    """Reading was not begun in time."""

    code = "store_late"
    retryable = True
    hint = EXPLANATIONS[Reason.DEADLINE].hint


class QuotaExceededError(StoreFullError):
    """The snapshot does not fit the quota."""

    code = "quota_exceeded"
    retryable = False
    hint = "Delete or unpin sessions, or raise the quota."

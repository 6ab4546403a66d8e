"""The one module that reads environment variables and the configuration file.

Precedence: environment, file, default. Lower floors take plain values.
"""

import ipaddress
import os
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, cast

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from sessiond.app.paths import default_key_file, default_store_root
from sessiond.app.windows import WindowSetting
from sessiond.domain.errors import ConfigurationError, InvalidTenantError
from sessiond.domain.ids import DEFAULT_TENANT, TenantId, parse_tenant
from sessiond.domain.plans import PlanPolicy
from sessiond.domain.session import OnEvicted
from sessiond.service.limits import Limits

ENV_PREFIX: Final = "SESSIOND_"
#: Names the TOML file; without it there is none.
FILE_VARIABLE: Final = "SESSIOND_CONFIG"

_MIN_TOKEN_CHARS: Final = 16
_DEFAULTS: Final = Limits()
_DAY_S: Final = 86_400


class Settings(BaseSettings):
    """All settings of ``sessiond serve``. Each is a ``SESSIOND_*`` variable and a TOML key."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    store_root: Path = Field(
        default_factory=default_store_root, description="Folder of snapshots, on fast local disk."
    )
    key_file: Path | None = Field(
        default=None,
        description="File of the server key (32 bytes, made if missing); the engines need the "
        "same. Default: server.key beside the store root.",
    )
    registry_url: str = Field(
        default="",
        description="Database of sessions, sqlite:////path or postgresql://…. "
        "Default: registry.db beside the store root.",
    )
    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on; any other than loopback needs tokens.",
    )
    port: int = Field(default=8600, ge=0, le=65535, description="Port to listen on; 0: any.")
    tokens: dict[str, TenantId] = Field(
        default_factory=dict,
        repr=False,
        description="Bearer tokens (16 characters or more) and their tenants, as a JSON object "
        "or a TOML table. Without any, every caller is the tenant 'default'.",
    )
    operator_tenants: Annotated[tuple[TenantId, ...], NoDecode] = Field(
        default=(DEFAULT_TENANT,),
        description="Tenants, separated by commas, whose tokens may do what concerns all tenants: "
        "attest or drain an engine, sweep and gc.",
    )
    engines: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="URLs of vLLM servers that should be there, separated by commas; engines "
        "of the same store root are found without it.",
    )
    engine_api_key: str = Field(
        default="", repr=False, description="Sent to the engines, if vLLM runs with --api-key."
    )
    idle_timeout_s: float = Field(
        default=_DEFAULTS.idle_timeout_s,
        ge=0,
        allow_inf_nan=False,
        description="Seconds without a token after which a session is suspended.",
    )
    on_evicted: OnEvicted = Field(
        default=_DEFAULTS.on_evicted,
        description="What a suspend does about KV that was evicted before it came: prefix stores "
        "what is still there, recompute has the rest computed again, skip stores nothing. "
        "Sessions may have a choice of their own.",
    )
    sweep_interval_s: float = Field(
        default=5.0, gt=0, le=3600, description="Seconds between two idle sweeps."
    )
    sweep_concurrency: int = Field(
        default=_DEFAULTS.sweep_concurrency, ge=1, description="Suspends that sweeps run at once."
    )
    sweep_bytes_per_s: int = Field(
        default=_DEFAULTS.sweep_bytes_per_s,
        ge=0,
        description="Bytes per second that the suspends of sweeps write at most, on average; 0: "
        "any number. Suspends that clients ask for do not count.",
    )
    sweep_yield_s: float = Field(
        default=_DEFAULTS.sweep_yield_s,
        ge=0,
        le=3600,
        description="Seconds in which sweeps begin one suspend while resumes run, which go first, "
        "as do turns that restore their session, through the gateway or not; 0: they do not wait.",
    )
    sweep_windows: tuple[WindowSetting, ...] = Field(
        default=(),
        description="Times at which every session is suspended that has been idle for idle_s, "
        "whatever its own timeout is (unless pinned, or its timeout is a year): a JSON list or "
        "TOML tables with cron (five fields, as cron has them), idle_s in seconds, timezone "
        "('UTC' if left out) and name. A daemon that was down then makes up for it within five "
        "minutes, or not at all; during a pause they are left out.",
    )
    plan_policy: PlanPolicy = Field(
        default=_DEFAULTS.plan_policy,
        description="How it is decided between loading a snapshot and computing its context again: "
        "auto takes what is likely ready first, objective what is most surely ready within "
        "plan_objective_s, always_load and never_load say it all. Sessions may have a policy of "
        "their own.",
    )
    plan_objective_s: float = Field(
        default=_DEFAULTS.plan_objective_s,
        gt=0,
        le=3600,
        description="Seconds of the policy objective, for sessions without their own.",
    )
    first_look: bool = Field(
        default=_DEFAULTS.first_look,
        description="Whether an engine of a kind that was never measured gets three short requests "
        "while it is idle, and the store's device one read of 32 MiB, so that the first plan is "
        "not made blind. Without it, everything is loaded until turns have told.",
    )
    write_bytes_per_day: int = Field(
        default=_DEFAULTS.write_bytes_per_day,
        ge=0,
        description="Bytes that the snapshots of all daemons of the registry may write in a day, "
        "as drives wear out; 0: any number. When they are spent, sweeps suspend nothing until "
        "some are paid off, evenly over the day. All snapshots count, only those of sweeps are "
        "refused (but see SESSIOND_WRITE_HOLDS_EXPLICIT).",
    )
    write_least_tokens: int = Field(
        default=_DEFAULTS.write_least_tokens,
        ge=0,
        description="Tokens that a session must have for sweeps to suspend it; 0: one chunk.",
    )
    write_least_chance: float = Field(
        default=_DEFAULTS.write_least_chance,
        ge=0,
        le=1,
        description="Sweeps suspend no session that is less likely to come back. How likely that "
        "is, is learned for each tenant and model from at least twenty suspended sessions; old "
        "ones count less, by half in a week. 0: how likely it is does not matter.",
    )
    write_explored_part: float = Field(
        default=_DEFAULTS.write_explored_part,
        ge=0,
        le=1,
        description="Part of the unlikely sessions that sweeps suspend all the same.",
    )
    write_pressure_bytes: int = Field(
        default=_DEFAULTS.write_pressure_bytes,
        ge=0,
        description="With less than this left above SESSIOND_FREE_SPACE_FLOOR_BYTES, sweeps "
        "suspend only what is likely to come back. 0: where others would have to be evicted.",
    )
    write_pressure_chance: float = Field(
        default=_DEFAULTS.write_pressure_chance,
        ge=0,
        le=1,
        description="How likely that is then; learned as above. 0: pressure refuses nothing.",
    )
    write_holds_explicit: bool = Field(
        default=_DEFAULTS.write_holds_explicit,
        description="Whether suspends that somebody asks for, drains too, are refused as well "
        "when the day's bytes are spent or pressure says so.",
    )
    suspend_deadline_s: float = Field(
        default=_DEFAULTS.suspend_deadline_s,
        gt=0,
        le=3600,
        description="Seconds that one round of a suspend may take.",
    )
    resume_deadline_s: float = Field(
        default=_DEFAULTS.resume_deadline_s,
        gt=0,
        le=3600,
        description="Seconds that one round of a resume may take; then the context is recomputed.",
    )
    operation_wait_s: float = Field(
        default=300.0,
        ge=0,
        le=3600,
        description="Seconds that a suspend or resume call waits for its end without '?wait='.",
    )
    lease_s: float = Field(
        default=_DEFAULTS.lease_s,
        ge=1,
        le=3600,
        description="Seconds after which an operation of a silent daemon is given up.",
    )
    shutdown_grace_s: float = Field(
        default=30.0, ge=0, le=3600, description="Seconds that running operations get at the end."
    )
    threads: int = Field(
        default=8, ge=1, le=256, description="Threads for the store and the registry."
    )
    ttl_s: float = Field(
        default=_DEFAULTS.ttl_s,
        ge=0,
        allow_inf_nan=False,
        description="Seconds without use after which a session's snapshots are removed; 0: never. "
        "Sessions may have a TTL of their own.",
    )
    keep_generations: int = Field(
        default=_DEFAULTS.keep_generations,
        ge=1,
        le=1000,
        description="Readable snapshots that a session keeps; older ones are removed. With 2 and "
        "more, a session that goes to and fro between two models finds the one that fits; each "
        "takes as much room as it has chunks of its own.",
    )
    operations_age_days: int = Field(
        default=round(_DEFAULTS.operations_age_s / _DAY_S),
        ge=1,
        le=3650,
        description="Days for which an operation that has ended, or an idempotency key, is known.",
    )
    quota_tenant_bytes: int = Field(
        default=_DEFAULTS.quota_tenant_bytes,
        ge=0,
        description="Bytes on disk that one tenant's sessions may take; 0: no limit. The least "
        "recently used sessions lose their snapshots first, pinned ones never.",
    )
    quota_total_bytes: int = Field(
        default=_DEFAULTS.quota_total_bytes,
        ge=0,
        description="Bytes on disk that the whole store may take; 0: no limit.",
    )
    free_space_floor_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Bytes of the store's file system that stay free; 'sessiond engine' reads it "
        "too. Default: 2 % of the file system, at most 1 GiB.",
    )
    retention_interval_s: float = Field(
        default=_DEFAULTS.retention_interval_s,
        gt=0,
        le=3600,
        description="Seconds between two looks for what has expired or takes too much room.",
    )
    scrub_period_days: int = Field(
        default=_DEFAULTS.scrub_period_s // _DAY_S,
        ge=0,
        le=3650,
        description="Days in which the scrub reads everything in the store once; 0: no scrub.",
    )
    scrub_bytes_per_s: int = Field(
        default=_DEFAULTS.scrub_bytes_per_s,
        gt=0,
        description="Bytes per second that the scrub reads at most.",
    )
    gateway_prompt_cache_key: bool = Field(
        default=False,
        description="Whether a call's prompt_cache_key names its session, where nothing else "
        "does; only for clients that do not share it between conversations.",
    )
    gateway_body_bytes: int = Field(
        default=64 << 20,
        ge=1 << 20,
        le=1 << 30,
        description="Bytes that a call of the gateway may have: images are part of it.",
    )
    event_listeners: int = Field(
        default=_DEFAULTS.event_listeners,
        ge=1,
        le=1000,
        description="Streams of events ('GET /v1/events') that one tenant may have open at once.",
    )
    log_level: str = Field(
        default="info",
        pattern="^(debug|info|warning|error)$",
        description="debug, info, warning or error.",
    )

    @field_validator("engines", "operator_tenants", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("engines")
    @classmethod
    def _check_engines(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            if not url.startswith(("http://", "https://")):
                raise ValueError("an engine's URL begins with http:// or https://")
        return tuple(url.rstrip("/") for url in value)

    @field_validator("operator_tenants")
    @classmethod
    def _check_operators(cls, value: tuple[TenantId, ...]) -> tuple[TenantId, ...]:
        for tenant in value:
            try:
                parse_tenant(tenant)
            except InvalidTenantError as error:
                raise ValueError(error.message) from error
        return value

    @field_validator("sweep_windows")
    @classmethod
    def _check_windows(cls, value: tuple[WindowSetting, ...]) -> tuple[WindowSetting, ...]:
        names = [setting.shown_name for setting in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two windows are named {name!r}")
        return value

    @field_validator("tokens")
    @classmethod
    def _check_tokens(cls, value: dict[str, TenantId]) -> dict[str, TenantId]:
        for token, tenant in value.items():
            if len(token) < _MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable():
                raise ValueError(f"a token has {_MIN_TOKEN_CHARS} or more ASCII characters")
            try:
                parse_tenant(tenant)
            except InvalidTenantError as error:
                raise ValueError(error.message) from error
        return value

    @field_validator("store_root", "key_file")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return value.expanduser().absolute() if value else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - named by the base class
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the command line's values, the environment and the file, in this order."""
        file = os.environ.get(FILE_VARIABLE)
        if not file:
            return init_settings, env_settings
        toml = TomlConfigSettingsSource(settings_cls, Path(file).expanduser())
        return init_settings, env_settings, toml

    @cached_property
    def resolved_key_file(self) -> Path:
        """The key file's path."""
        return self.key_file or default_key_file(self.store_root)

    @cached_property
    def resolved_registry_url(self) -> str:
        """The registry's URL."""
        return self.registry_url or f"sqlite:///{self.store_root.parent / 'registry.db'}"

    @cached_property
    def limits(self) -> Limits:
        """The service's numbers."""
        return Limits(
            idle_timeout_s=self.idle_timeout_s,
            on_evicted=self.on_evicted,
            plan_policy=self.plan_policy,
            plan_objective_s=self.plan_objective_s,
            first_look=self.first_look,
            suspend_deadline_s=self.suspend_deadline_s,
            resume_deadline_s=self.resume_deadline_s,
            write_bytes_per_day=self.write_bytes_per_day,
            write_least_tokens=self.write_least_tokens,
            write_least_chance=self.write_least_chance,
            write_explored_part=self.write_explored_part,
            write_pressure_bytes=self.write_pressure_bytes,
            write_pressure_chance=self.write_pressure_chance,
            write_holds_explicit=self.write_holds_explicit,
            lease_s=self.lease_s,
            sweep_concurrency=self.sweep_concurrency,
            sweep_bytes_per_s=self.sweep_bytes_per_s,
            sweep_yield_s=self.sweep_yield_s,
            sweep_windows=tuple(setting.window for setting in self.sweep_windows),
            ttl_s=self.ttl_s,
            keep_generations=self.keep_generations,
            quota_tenant_bytes=self.quota_tenant_bytes,
            quota_total_bytes=self.quota_total_bytes,
            free_space_floor_bytes=self.free_space_floor_bytes,
            operations_age_s=self.operations_age_days * _DAY_S,
            retention_interval_s=self.retention_interval_s,
            scrub_period_s=self.scrub_period_days * _DAY_S,
            scrub_bytes_per_s=self.scrub_bytes_per_s,
            event_listeners=self.event_listeners,
        )


def load_settings(**given: object) -> Settings:
    """Return the settings; *given* ones, from the command line, come before all others.

    :raises ConfigurationError: a value is not valid, or callers from other machines would need
        no token.
    """
    file = os.environ.get(FILE_VARIABLE)
    if file and not Path(file).expanduser().is_file():
        raise ConfigurationError(f"{FILE_VARIABLE} names no file: {file}")
    # From here on pydantic checks every value.
    values = cast("dict[str, Any]", {k: v for k, v in given.items() if v is not None})
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise ConfigurationError(_shown(error)) from error
    except ValueError as error:  # TOML or JSON that cannot be parsed
        raise ConfigurationError(f"The configuration cannot be read: {error}") from error
    if not settings.tokens and not _is_loopback(settings.host):
        raise ConfigurationError(
            f"Listening on {settings.host} needs tokens: "
            "set SESSIOND_TOKENS, or listen on 127.0.0.1."
        )
    return settings


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _shown(error: ValidationError) -> str:
    return "; ".join(
        f"{ENV_PREFIX}{_place(found['loc'])}: {found['msg']}" for found in error.errors()
    )


def _place(location: tuple[int | str, ...]) -> str:
    # What is inside of the others may be a secret.
    name, *inside = (str(part) for part in location) if location else [""]
    shown = inside if name == "sweep_windows" else []
    return ".".join((name.upper(), *shown))

"""The JSON of sweeps, their windows and their pause."""

from typing import Annotated, Self

from pydantic import Field

from sessiond.api.models import Answer, Strict
from sessiond.domain.pause import Pause
from sessiond.domain.windows import SweepWindow

#: The year 9999: what comes later is no date.
_MAX_UNIX_S = 253_402_300_799


class SweepOut(Answer):
    """What one sweep did."""

    watched: int = Field(description="Sessions that may have KV in an engine.")
    due: int = Field(
        description="Of them, idle for longer than their timeout, or than a window wants."
    )
    windowed: int = Field(description="Of those due, the ones that a sweep window asked for.")
    suspended: int
    failed: int
    yielded: int = Field(description="Left for later, because resumes go first.")
    throttled: int = Field(description="Left for later by SESSIOND_SWEEP_BYTES_PER_S.")
    refused: int = Field(
        description="Not worth their bytes; each counts once for as long as the reason holds."
    )
    refused_for: dict[str, int] = Field(
        description="How many of these, by the code of the reason.",
        examples=[{"no_expected_return": 2}],
    )
    paused: bool = Field(description="Nothing was suspended from the moment of a pause on.")


class PauseIn(Strict):
    """Why the sweeps are paused, and until when."""

    reason: Annotated[str, Field(max_length=512, examples=["a backup runs"])] = ""
    until_unix_s: Annotated[
        float | None,
        Field(
            strict=True,
            gt=0,
            le=_MAX_UNIX_S,
            description="When the pause ends by itself; null: when it is taken back.",
            examples=[1800000000],
        ),
    ] = None


class PauseOut(Answer):
    """A pause of the sweeps, in every daemon of the registry."""

    by: str = Field(description="The tenant of the operator.", examples=["default"])
    since_unix_s: float
    reason: str
    until_unix_s: float | None = Field(description="Null: until it is taken back.")


class UnpauseOut(Answer):
    """The sweeps run again."""

    was_paused: bool


class WindowOut(Answer):
    """A sweep window of the configuration."""

    name: str = Field(examples=["evening"])
    cron: str = Field(examples=["0 19 * * *"])
    timezone: str = Field(examples=["Europe/Berlin"])
    idle_s: float

    @classmethod
    def of(cls, window: SweepWindow) -> Self:
        """Translate."""
        return cls(
            name=window.name,
            cron=window.cron.text,
            timezone=window.timezone,
            idle_s=window.idle_s,
        )


class SweepsOut(Answer):
    """What suspends sessions by itself."""

    paused: PauseOut | None = Field(description="Null: the sweeps run.")
    idle_timeout_s: float = Field(description="Of sessions without one of their own.")
    windows: list[WindowOut]

    @classmethod
    def of(
        cls, pause: Pause | None, idle_timeout_s: float, windows: tuple[SweepWindow, ...]
    ) -> Self:
        """Translate."""
        return cls(
            paused=PauseOut.model_validate(pause) if pause else None,
            idle_timeout_s=idle_timeout_s,
            windows=[WindowOut.of(window) for window in windows],
        )

"""The sweep windows of the configuration."""

from typing import Annotated, Self
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sessiond.domain.cron import parse_cron
from sessiond.domain.errors import ConfigurationError
from sessiond.domain.session import NEVER_IDLE_S
from sessiond.domain.windows import SweepWindow

#: A cron line of five fields.
_Cron = Annotated[str, Field(max_length=256)]


class WindowSetting(BaseModel):
    """One table of ``sweep_windows``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    cron: _Cron
    idle_s: float = Field(ge=0, le=NEVER_IDLE_S, allow_inf_nan=False)
    timezone: str = "UTC"
    #: Tells windows apart in answers, metrics and logs.
    name: str = Field(default="", max_length=64)

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            parse_cron(self.cron)
        except ConfigurationError as error:
            raise ValueError(error.message) from error
        if not _is_timezone(self.timezone):
            raise ValueError(
                f"This machine knows no time zone {self.timezone!r}; a name is like 'Europe/Berlin'"
            )
        if not self.shown_name.isprintable():
            raise ValueError("a window's name has printable characters")
        return self

    @property
    def shown_name(self) -> str:
        """The name; without one, the cron line."""
        return self.name or " ".join(self.cron.split())

    @property
    def window(self) -> SweepWindow:
        """What the service works with."""
        return SweepWindow(self.shown_name, parse_cron(self.cron), self.timezone, self.idle_s)


def _is_timezone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # unknown, or no name at all
        return False
    return True

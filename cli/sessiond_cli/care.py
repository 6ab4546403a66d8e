"""The options about how a session is looked after, for 'create' and 'set'."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sessiond.domain.plans import PlanPolicy
from sessiond.domain.session import OnEvicted
from sessiond_cli.exits import USAGE_CODE
from sessiond_cli.failures import CommandError

if TYPE_CHECKING:
    from enum import StrEnum

    from sessiond_cli.daemon import Answer

#: Stands for what the daemon is set to.
DEFAULT: Final = "default"

IdleTimeoutOption = Annotated[
    str | None,
    typer.Option(
        "--idle-timeout",
        metavar="SECONDS|default",
        show_default=False,
        help="Without a token for so long, it is suspended.",
    ),
]
TtlOption = Annotated[
    str | None,
    typer.Option(
        "--ttl",
        metavar="SECONDS|default",
        show_default=False,
        help="Unused for so long, its snapshots go; 0: never.",
    ),
]
PinOption = Annotated[
    bool | None,
    typer.Option(
        "--pin/--unpin",
        show_default=False,
        help="Whether sweeps and retention leave it alone.",
    ),
]
OnEvictedOption = Annotated[
    str | None,
    typer.Option(
        "--on-evicted",
        metavar="prefix|recompute|skip|default",
        show_default=False,
        help="What a suspend does about KV that was evicted: store what is there, compute the "
        "rest again, or store nothing.",
    ),
]
PlanPolicyOption = Annotated[
    str | None,
    typer.Option(
        "--plan-policy",
        metavar="auto|always_load|never_load|objective|default",
        show_default=False,
        help="How it is decided between loading its snapshot and computing again.",
    ),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="SECONDS|default",
        show_default=False,
        help="Within how many seconds it has to be ready; of the policy objective.",
    ),
]


def plan_body(*, plan_policy: str | None, objective: str | None) -> Answer:
    """Return the fields that were given.

    :raises CommandError: one is neither a value nor ``default``.
    """
    body: dict[str, Any] = {}
    if plan_policy is not None:
        body["plan_policy"] = plan_policy_choice(plan_policy, may_be_default=True)
    if objective is not None:
        body["objective_s"] = _seconds("--objective", objective)
    return body


def plan_policy_choice(given: str, *, may_be_default: bool = False) -> str | None:
    """Return the policy; ``None`` for ``default``.

    :raises CommandError: there is no such policy.
    """
    return _one_of(PlanPolicy, "The policy", given, may_be_default=may_be_default)


def care_body(
    *, idle_timeout: str | None, ttl: str | None, pinned: bool | None, on_evicted: str | None
) -> Answer:
    """Return the fields that were given.

    :raises CommandError: one is neither a value nor ``default``.
    """
    body: dict[str, Any] = {}
    for name, option, given in (
        ("idle_timeout_s", "--idle-timeout", idle_timeout),
        ("ttl_s", "--ttl", ttl),
    ):
        if given is not None:
            body[name] = _seconds(option, given)
    if pinned is not None:
        body["pinned"] = pinned
    if on_evicted is not None:
        body["on_evicted"] = on_evicted_choice(on_evicted, may_be_default=True)
    return body


def on_evicted_choice(given: str, *, may_be_default: bool = False) -> str | None:
    """Return the choice; ``None`` for ``default``.

    :raises CommandError: there is no such choice.
    """
    return _one_of(OnEvicted, "--on-evicted", given, may_be_default=may_be_default)


def _one_of(choices: type[StrEnum], what: str, given: str, *, may_be_default: bool) -> str | None:
    if may_be_default and given == DEFAULT:
        return None
    if given not in set(choices):
        listed = ", ".join([*choices, DEFAULT] if may_be_default else choices)
        raise CommandError(USAGE_CODE, f"{what} is one of {listed}.")
    return given


def _seconds(option: str, given: str) -> float | None:
    if given == DEFAULT:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise CommandError(USAGE_CODE, f"{option} takes seconds or 'default'.")
    return seconds

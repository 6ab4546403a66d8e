"""``sessiond bench resume``: the experiment, from the first engine to the report."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sessiond.app.bench.resume import entrants, lmcache, writing
from sessiond.app.bench.resume.ask import WrongTokenError
from sessiond.app.bench.resume.contestant import Contestant
from sessiond.app.bench.resume.effect import measure_effect
from sessiond.app.bench.resume.options import (
    AUTO,
    COMPETITION,
    LMCACHE,
    OURS,
    PRESSURE,
    RECOMPUTE,
    ResumeOptions,
)
from sessiond.app.bench.resume.referee import Book, Referee
from sessiond.app.bench.resume.report import Run, make_report
from sessiond.app.bench.resume.samples import Found, write_csv
from sessiond.app.bench.resume.sessions import Context, PassOrder, due_s, orders
from sessiond.app.bench.resume.site import Site, kv_token_bytes
from sessiond.app.bench.resume.track import Track
from sessiond.app.bench.stage import own_folder
from sessiond.app.trials import Say
from sessiond.testing.model import build_model
from sessiond.testing.texts import real_text

_TEXT_CHARS = 300_000


def measure_resume(options: ResumeOptions, say: Say) -> dict[str, Any]:
    """Run every contestant, write the samples and the page, and return the report.

    :raises ConfigurationError: the options cannot be used.
    :raises RuntimeError: vLLM does not serve with this type of KV cache here.
    :raises UnexpectedPathError: a session did not come back the way that was to be measured.
    :raises WrongTokenError: a restored session gave another first token than from VRAM.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - comes with vLLM, needed here only

    options.require_possible()
    present = lmcache.versions(options.lmcache_python)
    taking_part = [name for name in options.contestants if name != LMCACHE or present]
    model = build_model(options.models.absolute())
    text = Tokenizer.from_file(str(model / "tokenizer.json")).encode(real_text(_TEXT_CHARS)).ids
    longest = options.whole_tokens[-1]
    passes = orders(text, options, taking_part)
    found = Found()
    with own_folder(options.folder, "resume") as folder:
        dtype = options.kv_cache_dtype
        token_bytes = kv_token_bytes(model, dtype)
        site = Site(folder, model, token_bytes, longest, options.lmcache_python, dtype)
        if dtype != AUTO:
            found.effect = measure_effect(_all_contexts(passes), site, options, say)
        try:
            with Track(folder, text) as track:
                for order in passes:
                    _one_pass(order, site, options, Book(track, found, say))
        finally:
            write_csv(options.samples_file, found.samples)  # also of a run that breaks off
    disk_bytes = options.disk_budget_bytes or shutil.disk_usage(options.folder).free
    report = make_report(Run(options, site, passes, found, present, disk_bytes))
    writing.write(report, found.samples, options)
    return report


def _all_contexts(passes: Iterable[PassOrder]) -> list[Context]:
    return [context for order in passes for context in order.prepared]


def _one_pass(order: PassOrder, site: Site, options: ResumeOptions, book: Book) -> None:
    times = due_s(len(order.longest), options.interval_s, options.seed + order.number)
    for name in order.contestants:
        one = entrants.make(name, site, order.contestants)
        try:
            _one_contestant(Referee(one, order, times, book), one, options)
        except RuntimeError as error:
            # What others cannot do here is a result; what we cannot do, or a wrong token, is none.
            if name in (RECOMPUTE, *OURS) or isinstance(error, WrongTokenError):
                raise
            book.found.skipped[name] = f"not measured: {_brief(error)}"
            book.say(f"{name}: {error}")
        finally:
            one.close()
            shutil.rmtree(one.folder, ignore_errors=True)


def _one_contestant(referee: Referee, one: Contestant, options: ResumeOptions) -> None:
    referee.prepare()
    referee.cold()
    for scenario, measure_it in _under_load(referee, one, options):
        if referee.fills_memory:
            measure_it()
        else:
            referee.skip(scenario)
    referee.capacity()


def _under_load(
    referee: Referee, one: Contestant, options: ResumeOptions
) -> Iterator[tuple[str, Callable[[], None]]]:
    if PRESSURE in options.scenarios:
        yield PRESSURE, referee.pressure
    if COMPETITION in options.scenarios and one.keeps:  # a recompute reads nothing
        yield COMPETITION, referee.competition


def _brief(error: Exception) -> str:
    """Return an error's first line, and its last one, which may be the end of a log."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " … ".join(dict.fromkeys((lines[0], lines[-1])))

"""Makes the contestants by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sessiond.app.bench.resume.contestant import Contestant
from sessiond.app.bench.resume.options import EXAMPLE, FS, LMCACHE, OURS, RECOMPUTE
from sessiond.app.bench.resume.ours import Ours
from sessiond.app.bench.resume.rivals import LmCache, Rival
from sessiond.app.bench.resume.site import Site, example_transfer, fs_transfer

_PREFIX = "sessiond-"


def make(name: str, site: Site, taking_part: Sequence[str]) -> Contestant:
    """Return a contestant, not yet started.

    :param taking_part: all of them; the first of ours also measures RAM
    """
    if name in OURS:
        first = next(each for each in OURS if each in taking_part)
        return Ours(name, site, name.removeprefix(_PREFIX), with_ram=name == first)
    if name == LMCACHE:
        assert site.lmcache_python is not None
        return LmCache(site, site.lmcache_python)

    def fs(folder: Path) -> dict[str, object]:
        return fs_transfer(site, folder)

    transfers = {RECOMPUTE: None, FS: fs, EXAMPLE: example_transfer}
    return Rival(name, site, transfers[name])

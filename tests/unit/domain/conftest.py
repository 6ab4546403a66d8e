from __future__ import annotations

from hypothesis import settings

# No deadline: the machine may be busy for a moment.
settings.register_profile("domain", deadline=None)
settings.load_profile("domain")

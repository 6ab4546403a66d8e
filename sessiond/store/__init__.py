"""The files under a store root: segments, manifests, heads, sessions, engines.

Synchronous and plain. ``FORMAT.md`` beside this file says what the bytes are, what must hold,
and what a crash at any moment leaves.
"""

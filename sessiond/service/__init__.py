"""Suspend, resume, sweep and recovery: decides, and does no I/O of its own."""

"""Wires everything; the only place that does."""

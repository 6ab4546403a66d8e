"""The HTTP edge: translates and decides nothing."""

"""``sessiond doctor``: what limits restores on this machine, and what is wrong with it."""

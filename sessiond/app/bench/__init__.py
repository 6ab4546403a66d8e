"""``sessiond bench``: what the store reaches beside the bare device, and what others notice."""

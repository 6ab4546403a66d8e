"""``sessiond bench soak``: many agents for a long time, faults included, every token checked."""

"""``sessiond bench resume``: what it takes to come back, beside what else could be done."""

"""``sessionctl``: what an operator asks a daemon, and what the answers mean for scripts."""

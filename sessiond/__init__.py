"""sessiond keeps an agent's KV cache alive while the agent is away."""

__version__ = "0.1.0"

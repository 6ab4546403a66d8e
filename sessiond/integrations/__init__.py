"""sessiond in agent frameworks: each module needs its framework, and the client."""

"""The daemon's view of a vLLM server, over HTTP."""

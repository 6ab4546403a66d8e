"""The mover: the process beside vLLM that does all file I/O, checksums and compression."""

"""Our code inside and beside vLLM.

The modules that vLLM loads are named in its configuration: ``connector`` (the connector),
``spec`` (the offloading spec) and ``tier`` (the cold tier). ``mover`` is the process beside it.
This package imports nothing by itself, so that the mover starts without vLLM.
"""

"""What the fuzzer feeds with bytes: every reader of what may have been written by others.

The first byte of an input says how to read the rest: as it is, or with checks and seals made
right, which no fuzzer finds by itself, so that what lies behind them is reached too. A target
that raises anything but sessiond's own errors has found something; so has one that is slow or
takes much memory, which its caller watches.
"""

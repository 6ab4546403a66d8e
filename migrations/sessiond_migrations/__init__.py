"""The registry's migrations.

Rules: a migration imports nothing of sessiond, since it must mean the same for ever; it runs in
one transaction; it works with the code of the previous release (add, fill, remove: three
releases); it is never changed once released.
"""

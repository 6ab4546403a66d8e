"""Fakes and fault injection, for sessiond's own tests and for those who build on it."""

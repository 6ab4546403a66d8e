"""``sessiond demo``: one agent's story on a real model, measured, with a report at the end."""

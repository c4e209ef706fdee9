"""The asynchronous side, from which `scripts/generate_sync_sdk.py` makes the synchronous one."""

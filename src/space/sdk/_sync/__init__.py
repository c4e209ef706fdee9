"""The synchronous side, made from the asynchronous one by `scripts/generate_sync_sdk.py`."""

"""The native API under `/v1`: one file an aggregate, its forms in `schemas/`."""

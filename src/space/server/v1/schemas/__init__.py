"""The wire forms of the native API, one file an aggregate; what they mean is in `core`."""

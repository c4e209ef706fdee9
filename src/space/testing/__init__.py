"""Fakes behind the ports, and the conformance suites that real parts and fakes both pass."""

"""Kubernetes as the owner of hosts (not built yet)."""

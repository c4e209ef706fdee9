"""The egress gateway (not built yet; until then nothing leaves a sandbox)."""

"""The control plane: decides, records, drives operations."""

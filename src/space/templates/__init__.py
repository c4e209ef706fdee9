"""Templates: building and finding root filesystems."""

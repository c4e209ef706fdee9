"""`/auth/v1`: logins, tokens, users."""

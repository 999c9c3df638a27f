"""Random secrets that are shown once and stored as their SHA-256: API tokens, sign-ins, set-up tokens (S1, S6, S9)."""

import hashlib
import secrets

TOKEN_BYTES = 32  # 256 bits: too many to guess, so a plain hash keeps them safe


def new_token() -> str:
    """43 characters that may stand in an address."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def token_hash(token: str) -> str:
    """64 hex digits: what is stored, and looked up by."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()

"""People and programs: users, their sign-ins and tokens, and the one-time token of the first start."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import Base


class User(Base):
    """`role`: administrator, operator, member or viewer. `generation` rises when all sign-ins must end (S8)."""

    __tablename__ = "user"

    id: Mapped[str] = mapped_column(primary_key=True)
    login: Mapped[str] = mapped_column(unique=True)  # case-folded
    name: Mapped[str]
    role: Mapped[str] = mapped_column(default="member")
    password_hash: Mapped[str | None]  # argon2id; None: cannot sign in by password (the local administrator)
    disabled: Mapped[bool] = mapped_column(default=False)
    generation: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime]


class SignIn(Base):
    """A server-side login: the cookie holds a random value of which only the SHA-256 is stored (S6)."""

    __tablename__ = "sign_in"

    id_hash: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("user.id", ondelete="CASCADE"), index=True)
    generation: Mapped[int]
    created_at: Mapped[datetime]
    confirmed_at: Mapped[datetime]  # the last time the password was given: "fresh" for ten minutes
    seen_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    address: Mapped[str] = mapped_column(default="")
    agent: Mapped[str] = mapped_column(default="")
    grants: Mapped[dict[str, Any] | None]  # audited reading of others' sessions (S16): session id -> end, Unix seconds


class ApiToken(Base):
    """A token for programs: 256 random bits, shown once; only its SHA-256 is stored (S9)."""

    __tablename__ = "api_token"
    __table_args__ = (Index("api_token_by_hash", "token_hash", unique=True),)

    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("user.id", ondelete="CASCADE"), index=True)
    name: Mapped[str]
    token_hash: Mapped[str]
    scopes: Mapped[list[Any]]  # of read, write
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class SetupToken(Base):
    """The one-time token that makes the first administrator (S1): stored hashed, good for 30 minutes."""

    __tablename__ = "setup_token"

    token_hash: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]

"""What an operator configures: language models and profiles."""

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from shared.models.base import Base


class LanguageModel(Base):
    """`key_ref` names the environment variable that holds the key; a key itself is never stored (S41)."""

    __tablename__ = "language_model"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    model: Mapped[str]
    provider: Mapped[str | None]
    base_url: Mapped[str | None]
    key_ref: Mapped[str | None]
    context_window: Mapped[int | None]
    is_default: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime]


class Profile(Base):
    """A Hermes home with its own state and gateway."""

    __tablename__ = "profile"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    hermes_home: Mapped[str | None]
    gateway_url: Mapped[str | None]
    is_default: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime]

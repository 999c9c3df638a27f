"""The tables of the first release.

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit_event",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=True),
        sa.Column("user_name", sa.Text(), nullable=True),
        sa.Column("address", sa.Text(), nullable=True),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("facts", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_event")),
    )
    op.create_index(op.f("ix_audit_event_at"), "audit_event", ["at"], unique=False)
    op.create_table(
        "audit_retention",
        sa.Column("before", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("before", name=op.f("pk_audit_retention")),
    )
    op.create_table(
        "language_model",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=True),
        sa.Column("base_url", sa.Text(), nullable=True),
        sa.Column("key_ref", sa.Text(), nullable=True),
        sa.Column("context_window", sa.Integer(), nullable=True),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_language_model")),
        sa.UniqueConstraint("name", name=op.f("uq_language_model_name")),
    )
    op.create_table(
        "profile",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hermes_home", sa.Text(), nullable=True),
        sa.Column("gateway_url", sa.Text(), nullable=True),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_profile")),
        sa.UniqueConstraint("name", name=op.f("uq_profile_name")),
    )
    op.create_table(
        "setup_token",
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("token_hash", name=op.f("pk_setup_token")),
    )
    op.create_table(
        "user",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("login", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_user")),
        sa.UniqueConstraint("login", name=op.f("uq_user_login")),
    )
    op.create_table(
        "api_token",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("scopes", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["user.id"], name=op.f("fk_api_token_user_id_user"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_token")),
    )
    op.create_index("api_token_by_hash", "api_token", ["token_hash"], unique=True)
    op.create_index(op.f("ix_api_token_user_id"), "api_token", ["user_id"], unique=False)
    op.create_table(
        "approval_grant",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("profile", sa.Text(), nullable=True),
        sa.Column("pattern_key", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("granted_by", sa.Text(), nullable=True),
        sa.Column("granted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_by", sa.Text(), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["granted_by"], ["user.id"], name=op.f("fk_approval_grant_granted_by_user"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["revoked_by"], ["user.id"], name=op.f("fk_approval_grant_revoked_by_user"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_approval_grant")),
    )
    op.create_index("approval_grant_of_profile", "approval_grant", ["profile", "pattern_key"], unique=False)
    op.create_table(
        "chat_session",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("title_edited", sa.Boolean(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("profile", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("skill_folder", sa.Text(), nullable=True),
        sa.Column("backend_session_id", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("visibility", sa.Text(), nullable=False),
        sa.Column("on_failure", sa.Text(), nullable=False),
        sa.Column("held_reason", sa.Text(), nullable=True),
        sa.Column("held_by_run_id", sa.Text(), nullable=True),
        sa.Column("held_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("held_at_db", sa.Float(precision=53), nullable=True),
        sa.Column("next_position", sa.Integer(), nullable=False),
        sa.Column("warm_worker", sa.Text(), nullable=True),
        sa.Column("total_input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("total_output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("tokens_per_char", sa.Double(), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_message_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["user.id"], name=op.f("fk_chat_session_owner_id_user")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chat_session")),
    )
    op.create_index(
        "chat_session_by_activity",
        "chat_session",
        ["owner_id", "status", "last_message_at", "id"],
        unique=False,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "sign_in",
        sa.Column("id_hash", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("confirmed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("grants", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["user.id"], name=op.f("fk_sign_in_user_id_user"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id_hash", name=op.f("pk_sign_in")),
    )
    op.create_index(op.f("ix_sign_in_user_id"), "sign_in", ["user_id"], unique=False)
    op.create_table(
        "chat_message",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("blocks", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("author_id", sa.Text(), nullable=True),
        sa.Column("author_name", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("skill_folder", sa.Text(), nullable=True),
        sa.Column("transcript", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("transcript_z", sa.LargeBinary(), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("parent_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["author_id"], ["user.id"], name=op.f("fk_chat_message_author_id_user"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["chat_session.id"],
            name=op.f("fk_chat_message_session_id_chat_session"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chat_message")),
    )
    op.create_index("chat_message_in_order", "chat_message", ["session_id", "position"], unique=True)
    op.create_index("chat_message_of_run", "chat_message", ["run_id", "role"], unique=True)
    op.create_table(
        "compression",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("upto_position", sa.Integer(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("before_tokens", sa.Integer(), nullable=False),
        sa.Column("after_tokens", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["chat_session.id"], name=op.f("fk_compression_session_id_chat_session"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_compression")),
    )
    op.create_index(op.f("ix_compression_session_id"), "compression", ["session_id"], unique=False)
    op.create_table(
        "run",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("queue_id", sa.Text(), nullable=False),
        sa.Column("body_hash", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("lease_until_db", sa.Float(precision=53), nullable=True),
        sa.Column("dispatched_at_db", sa.Float(precision=53), nullable=True),
        sa.Column("dispatches", sa.Integer(), nullable=False),
        sa.Column("queued_at_db", sa.Float(precision=53), nullable=False),
        sa.Column("held_seconds", sa.Float(precision=53), nullable=False),
        sa.Column("abort_requested_at_db", sa.Float(precision=53), nullable=True),
        sa.Column("abort_by", sa.Text(), nullable=True),
        sa.Column("flushed_epoch", sa.Text(), nullable=True),
        sa.Column("flushed_seq", sa.BigInteger(), nullable=False),
        sa.Column("retry_of", sa.Text(), nullable=True),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("user_name", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("blocks", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("instructions", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("skill_folder", sa.Text(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("max_iterations", sa.Integer(), nullable=True),
        sa.Column("backend_run_id", sa.Text(), nullable=True),
        sa.Column("usage", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("detail_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("starting_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id"], ["chat_session.id"], name=op.f("fk_run_session_id_chat_session"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["user.id"], name=op.f("fk_run_user_id_user")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        sa.UniqueConstraint("session_id", "position", name=op.f("uq_run_session_id_position")),
        sa.UniqueConstraint("session_id", "queue_id", name=op.f("uq_run_session_id_queue_id")),
    )
    op.create_index(
        "one_active_run_per_session",
        "run",
        ["session_id"],
        unique=True,
        sqlite_where=sa.text(
            "state IN ('starting', 'running', 'awaiting_approval', 'awaiting_clarification', 'aborting')"
        ),
        postgresql_where=sa.text(
            "state IN ('starting', 'running', 'awaiting_approval', 'awaiting_clarification', 'aborting')"
        ),
    )
    op.create_index("run_by_state", "run", ["state"], unique=False)
    op.create_index(
        "run_queued",
        "run",
        ["session_id", "position"],
        unique=False,
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_table(
        "pause",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("request", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("args_hash", sa.Text(), nullable=False),
        sa.Column("expires_at_db", sa.Float(precision=53), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("choice", sa.Text(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("by_id", sa.Text(), nullable=True),
        sa.Column("by_name", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_pause_run_id_run"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["session_id"], ["chat_session.id"], name=op.f("fk_pause_session_id_chat_session"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pause")),
    )
    op.create_index("pause_of_run", "pause", ["run_id"], unique=False)
    op.create_index("pause_open", "pause", ["session_id", "state"], unique=False)
    op.create_table(
        "run_log",
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Text(), nullable=False),
        sa.Column("first_seq", sa.Integer(), nullable=False),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("events_z", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_run_log_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_log")),
    )
    op.create_index(op.f("ix_run_log_created_at"), "run_log", ["created_at"], unique=False)
    op.create_index(op.f("ix_run_log_session_id"), "run_log", ["session_id"], unique=False)
    op.create_table(
        "tool_output",
        sa.Column("run_id", sa.String(length=32), nullable=False),
        sa.Column("tool_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("full_size", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_tool_output_run_id_run"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "tool_id", name=op.f("pk_tool_output")),
    )


def downgrade() -> None:
    op.drop_table("tool_output")
    op.drop_index(op.f("ix_run_log_session_id"), table_name="run_log")
    op.drop_index(op.f("ix_run_log_created_at"), table_name="run_log")
    op.drop_table("run_log")
    op.drop_index("pause_open", table_name="pause")
    op.drop_index("pause_of_run", table_name="pause")
    op.drop_table("pause")
    op.drop_index(
        "run_queued",
        table_name="run",
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.drop_index("run_by_state", table_name="run")
    op.drop_index(
        "one_active_run_per_session",
        table_name="run",
        sqlite_where=sa.text(
            "state IN ('starting', 'running', 'awaiting_approval', 'awaiting_clarification', 'aborting')"
        ),
        postgresql_where=sa.text(
            "state IN ('starting', 'running', 'awaiting_approval', 'awaiting_clarification', 'aborting')"
        ),
    )
    op.drop_table("run")
    op.drop_index(op.f("ix_compression_session_id"), table_name="compression")
    op.drop_table("compression")
    op.drop_index("chat_message_of_run", table_name="chat_message")
    op.drop_index("chat_message_in_order", table_name="chat_message")
    op.drop_table("chat_message")
    op.drop_index(op.f("ix_sign_in_user_id"), table_name="sign_in")
    op.drop_table("sign_in")
    op.drop_index(
        "chat_session_by_activity",
        table_name="chat_session",
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.drop_table("chat_session")
    op.drop_index("approval_grant_of_profile", table_name="approval_grant")
    op.drop_table("approval_grant")
    op.drop_index(op.f("ix_api_token_user_id"), table_name="api_token")
    op.drop_index("api_token_by_hash", table_name="api_token")
    op.drop_table("api_token")
    op.drop_table("user")
    op.drop_table("setup_token")
    op.drop_table("profile")
    op.drop_table("language_model")
    op.drop_table("audit_retention")
    op.drop_index(op.f("ix_audit_event_at"), table_name="audit_event")
    op.drop_table("audit_event")

"""What people have agreed to: skills as they read them, and when what a session may do unasked ends. Answers that came
too late to a question.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "skill_consent",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("profile", sa.Text(), nullable=True),
        sa.Column("folder_name", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("given_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["user.id"], name=op.f("fk_skill_consent_user_id_user"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_skill_consent")),
    )
    op.create_index("skill_consent_of_user", "skill_consent", ["user_id", "folder_name"], unique=False)
    with op.batch_alter_table("chat_session") as table:
        table.add_column(sa.Column("grant_epoch", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("pause") as table:
        table.add_column(sa.Column("late_answer", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("pause") as table:
        table.drop_column("late_answer")
    with op.batch_alter_table("chat_session") as table:
        table.drop_column("grant_epoch")
    op.drop_index("skill_consent_of_user", table_name="skill_consent")
    op.drop_table("skill_consent")

"""What the database itself refuses: to change or remove an audit row, and to move a run that has ended.

An audit row may be deleted only by retention, which sets its switch in the same transaction (`shared.store.audit`).

Revision ID: 0002
Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

FINAL = "('completed', 'failed', 'aborted', 'interrupted', 'cancelled')"

SQLITE = (
    """
    CREATE TRIGGER audit_event_no_update BEFORE UPDATE ON audit_event
    BEGIN SELECT RAISE(ABORT, 'audit_event: rows are never changed'); END
    """,
    """
    CREATE TRIGGER audit_event_no_delete BEFORE DELETE ON audit_event
    WHEN NOT EXISTS (SELECT 1 FROM audit_retention WHERE OLD.at < before)
    BEGIN SELECT RAISE(ABORT, 'audit_event: only retention removes rows'); END
    """,
    f"""
    CREATE TRIGGER run_final_state BEFORE UPDATE OF state ON run
    WHEN OLD.state IN {FINAL} AND NEW.state <> OLD.state
    BEGIN SELECT RAISE(ABORT, 'run: a final state never changes'); END
    """,
)

POSTGRESQL = (
    """
    CREATE FUNCTION audit_event_guard() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'DELETE' AND EXISTS (SELECT 1 FROM audit_retention WHERE OLD.at < before) THEN
            RETURN OLD;
        END IF;
        RAISE EXCEPTION 'audit_event: rows are never changed, and only retention removes them'
            USING ERRCODE = 'integrity_constraint_violation';
    END $$
    """,
    """
    CREATE TRIGGER audit_event_guard BEFORE UPDATE OR DELETE ON audit_event
    FOR EACH ROW EXECUTE FUNCTION audit_event_guard()
    """,
    """
    CREATE FUNCTION audit_event_no_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'audit_event: only retention removes rows' USING ERRCODE = 'integrity_constraint_violation';
    END $$
    """,
    """
    CREATE TRIGGER audit_event_no_truncate BEFORE TRUNCATE ON audit_event
    FOR EACH STATEMENT EXECUTE FUNCTION audit_event_no_truncate()
    """,
    """
    CREATE FUNCTION run_final_state() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'run: a final state never changes' USING ERRCODE = 'integrity_constraint_violation';
    END $$
    """,
    f"""
    CREATE TRIGGER run_final_state BEFORE UPDATE OF state ON run FOR EACH ROW
    WHEN (OLD.state IN {FINAL} AND NEW.state IS DISTINCT FROM OLD.state) EXECUTE FUNCTION run_final_state()
    """,
)


def upgrade() -> None:
    for statement in SQLITE if op.get_bind().dialect.name == "sqlite" else POSTGRESQL:
        op.execute(statement)


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for name in ("audit_event_no_update", "audit_event_no_delete", "run_final_state"):
            op.execute(f"DROP TRIGGER {name}")
        return
    for table, name in (
        ("audit_event", "audit_event_guard"), ("audit_event", "audit_event_no_truncate"), ("run", "run_final_state"),
    ):  # fmt: skip
        op.execute(f"DROP TRIGGER {name} ON {table}")
        op.execute(f"DROP FUNCTION {name}()")

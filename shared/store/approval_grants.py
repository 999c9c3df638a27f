"""What is allowed always, by profile: granted with a person's answer, listed, revoked. Nothing is ever deleted."""

from sqlalchemy import Select, func, select, update
from sqlalchemy.orm import Session

from shared import clock, ids
from shared.errors import NotFound
from shared.models import ApprovalGrant, User


def add(
    db: Session,
    *,
    profile: str | None,
    pattern_key: str,
    user: User | None,
    description: str = "",
    command: str = "",
    reason: str | None = None,
) -> ApprovalGrant:
    """Allow a pattern in a profile; gives the grant there is when it is allowed already."""
    known = db.scalars(_in_force(profile).where(ApprovalGrant.pattern_key == pattern_key).limit(1)).one_or_none()
    if known is not None:
        return known
    grant = ApprovalGrant(
        id=ids.new_id(),
        profile=profile,
        pattern_key=pattern_key,
        description=description,
        command=command,
        reason=reason,
        granted_by=None if user is None else user.id,
        granted_at=clock.now(),
    )
    db.add(grant)
    db.flush()
    return grant


def in_force(db: Session, profile: str | None) -> list[ApprovalGrant]:
    """What is allowed in the profile now, oldest first."""
    return list(db.scalars(_in_force(profile).order_by(ApprovalGrant.granted_at, ApprovalGrant.id)))


def patterns(db: Session, profile: str | None) -> tuple[str, ...]:
    """Their patterns, each once."""
    return tuple(dict.fromkeys(grant.pattern_key for grant in in_force(db, profile)))


def counts(db: Session) -> dict[str | None, int]:
    """Profile -> how many patterns are allowed in it now; those without any are left out."""
    wanted = (
        select(ApprovalGrant.profile, func.count(ApprovalGrant.pattern_key.distinct()))
        .where(ApprovalGrant.revoked_at.is_(None))
        .group_by(ApprovalGrant.profile)
    )
    return dict(db.execute(wanted).all())


def revoked(db: Session, profile: str | None, *, limit: int = 50) -> list[ApprovalGrant]:
    """What was allowed in the profile and is no more, latest first."""
    wanted = select(ApprovalGrant).where(
        ApprovalGrant.profile.is_not_distinct_from(profile), ApprovalGrant.revoked_at.is_not(None)
    )
    return list(db.scalars(wanted.order_by(ApprovalGrant.revoked_at.desc(), ApprovalGrant.id).limit(limit)))


def get(db: Session, grant_id: str) -> ApprovalGrant:
    """Raises NotFound."""
    grant = db.get(ApprovalGrant, grant_id)
    if grant is None:
        raise NotFound("There is no such permission.")
    return grant


def revoke(db: Session, grant_id: str, *, user: User | None) -> ApprovalGrant:
    """From now on the pattern is asked about again in that profile: two people may have granted it at the same moment,
    so all its grants go. A grant that was revoked before stays as it is. Raises NotFound."""
    grant = get(db, grant_id)
    db.execute(
        update(ApprovalGrant)
        .where(
            ApprovalGrant.profile.is_not_distinct_from(grant.profile),
            ApprovalGrant.pattern_key == grant.pattern_key,
            ApprovalGrant.revoked_at.is_(None),
        )
        .values(revoked_at=clock.now(), revoked_by=None if user is None else user.id)
        .execution_options(synchronize_session=False)
    )
    db.refresh(grant)
    return grant


def _in_force(profile: str | None) -> Select[ApprovalGrant]:
    return select(ApprovalGrant).where(
        ApprovalGrant.profile.is_not_distinct_from(profile), ApprovalGrant.revoked_at.is_(None)
    )

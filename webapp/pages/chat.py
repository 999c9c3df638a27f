"""/chat and /chat/<session_id>: the session page, its list, and what its forms do without a socket.

Each form of the page is a command of the socket; its address here is the fallback when the socket is shut or there is
no script. A script asks with `HX-Request` and gets a notice or nothing; a plain form gets the page again.
"""

from typing import Any

from flask import Blueprint, Response, abort, redirect, request
from flask.typing import ResponseReturnValue

from shared import errors, skills
from shared.protocol import commands
from shared.store import catalogue, messages, runs, tool_outputs
from webapp import auth, render, rights, view_page, view_turns
from webapp.actions import chat_sessions as session_actions
from webapp.actions import pauses as pause_actions
from webapp.actions import runs as run_actions
from webapp.actions import skills as skill_actions
from webapp.actions.input import checked
from webapp.actions.names import DEFAULT_PROFILE
from webapp.auth import Principal
from webapp.context import db, web
from webapp.errors import Problem, problem_of
from webapp.homes import home_of
from webapp.live import snapshot
from webapp.live.fragments import PageView
from webapp.live.snapshot import Snapshot
from webapp.pages.side import side_of
from webapp.render import _, url
from webapp.view_page import Settled
from webapp.view_pauses import Viewer
from webapp.view_sources import source_of, sources_of
from webapp.view_turns import Facts
from webapp.views import Chat, First, Mark, Option, SkillOption, SkillPage, agent_of

bp = Blueprint("chat", __name__)

OLDER_LENGTH = 50


# ---- pages


@bp.get("/")
def home() -> ResponseReturnValue:
    return redirect(url("chat"), 303)


@bp.get("/chat")
def index() -> ResponseReturnValue:
    """The list of chats, and where to begin one."""
    return _begin()


@bp.get("/chat/<session_id>")
def show(session_id: str) -> ResponseReturnValue:
    """A session as of the cursor that the page carries; with `before`, a page of older turns without the rest."""
    principal = auth.current()
    rights.require(db(), principal, "read", session_id)
    view = snapshot.take(web().factory, web().log, session_id)
    before = request.args.get("before")
    chat = _chat(principal, view) if before is None else _older_chat(principal, view, before)
    side = side_of(principal, source=view.session.source)
    return render.render("pages/chat.html", side=side, chat=chat, deleted=None)


@bp.get("/chat/list")
def session_list() -> ResponseReturnValue:
    """The list alone, for the page that shows it: after a change, and while one types a search."""
    current = request.args.get("current")
    return render.render("fragments/session_list.html", side=side_of(auth.current()), current=current, oob=None)


@bp.get("/chat/skills")
def skill_list() -> ResponseReturnValue:
    """What the skill picker offers in a profile, when it is opened."""
    rights.reading(auth.current())
    profile, chosen = request.args.get("profile"), request.args.get("skill_folder", "")
    found = skills.listed(home_of(db(), web().settings, profile), web().settings.data_dir)
    origins = _origins()
    options = [
        SkillOption(each.folder_name, each.name, each.description, origins[each.source], each.folder_name == chosen)
        for each in found
    ]
    return render.render("fragments/skills.html", skills=options, chosen=chosen, profile=profile or DEFAULT_PROFILE)


@bp.get("/chat/skills/<folder_name>")
def skill(folder_name: str) -> ResponseReturnValue:
    """What a skill says now, where it comes from, and whether the reader has agreed to it."""
    principal = auth.current()
    found = skill_actions.read(web(), principal, folder_name, request.args.get("profile"))
    marks = {
        "new": Mark("queued", _("You have not used it yet")),
        "agreed": Mark("done", _("You have agreed to this text")),
        "changed": Mark("needs", _("It has changed since you agreed to it")),
    }
    shown = SkillPage(
        found.folder_name,
        found.profile or DEFAULT_PROFILE,
        marks[found.consent],
        _origins()[found.content.source],
        found.content.sha256,
        found.content.text,
        may_agree=found.consent != "agreed" and rights.may_create(principal),
    )
    session_id = request.args.get("session", "")
    if session_id:
        rights.require(db(), principal, "read", session_id)
    return render.render("pages/skill.html", side=side_of(principal), skill=shown, session_id=session_id)


@bp.post("/chat/skills/<folder_name>")
def agree_to_skill(folder_name: str) -> ResponseReturnValue:
    form, principal = request.form, auth.current()
    skill_actions.agree(web(), principal, folder_name, form.get("profile"), form.get("sha256", ""))
    session_id = form.get("session", "")
    if session_id:
        rights.require(db(), principal, "read", session_id)
        return redirect(url("chat", session_id), 303)
    return redirect(url("chat", "skills", folder_name, profile=form.get("profile", DEFAULT_PROFILE)), 303)


def _origins() -> dict[str, str]:
    return {"profile": _("this profile"), "portal": _("the portal")}


@bp.get("/chat/<session_id>/older")
def older(session_id: str) -> ResponseReturnValue:
    """The turns before a message, with the button for those before them."""
    principal = auth.current()
    session = rights.require(db(), principal, "read", session_id)
    view = Snapshot(session, (), None, (), (), None)
    chat = _older_chat(principal, view, request.args.get("before", ""))
    return render.render("fragments/older.html", chat=chat) + render.render("fragments/turns.html", chat=chat, oob=None)


@bp.get("/chat/<session_id>/frame")
def frame(session_id: str) -> ResponseReturnValue:
    """A whole view as one frame, for a page whose socket stays shut."""
    principal = auth.current()
    rights.require(db(), principal, "read", session_id)
    view = snapshot.take(web().factory, web().log, session_id)
    return PageView(web(), principal, session_id, render.reader()).snapshot(view)


@bp.get("/chat/<session_id>/runs/<run_id>/process")
def process(session_id: str, run_id: str) -> ResponseReturnValue:
    """What a finished run did: for its folded line, or as a page of its own without a script."""
    principal = auth.current()
    view = _view_of_run(principal, session_id, run_id)
    turn = view_turns.agent_turn(*view, whole=True) if view is not None else abort(404)
    if request.headers.get("HX-Request") == "true":
        return render.render("fragments/regions.html", turn=turn, oob=None)
    return render.render("pages/process.html", side=side_of(principal), turn=turn, session_id=session_id)


@bp.get("/chat/<session_id>/runs/<run_id>/output/<int:n>")
def output(session_id: str, run_id: str, n: int) -> ResponseReturnValue:
    """The whole output of a tool call, as a file."""
    view = _view_of_run(auth.current(), session_id, run_id)
    tools = [] if view is None else view[0].tools
    if n >= len(tools):
        abort(404)
    stored = tool_outputs.get(db(), run_id, tools[n].tool_id)
    text = tool_outputs.text_of(stored) if stored is not None else tools[n].result
    if text is None:
        abort(404)
    response = Response(text.encode("utf-8", "replace"), content_type="text/plain; charset=utf-8")
    response.headers["Content-Disposition"] = f'attachment; filename="turn-{run_id[:8]}-tool-{n}.txt"'
    return response


@bp.get("/chat/<session_id>/queue/<queue_id>")
def waiting_turn(session_id: str, queue_id: str) -> ResponseReturnValue:
    """The whole text of a waiting turn, to change: for its row, or as a page of its own without a script."""
    rights.require(db(), auth.current(), "queue", session_id)
    run = runs.by_queue_id(db(), session_id, queue_id)
    if _is_script():
        return render.render("fragments/edit.html", run=run, session_id=session_id, is_live=True)
    return render.render("pages/edit.html", run=run, session_id=session_id)


# ---- what the forms do


@bp.post("/chat/new")
def new() -> ResponseReturnValue:
    """A new chat, with its first turn when the form has one. What cannot be sent stays in the field."""
    principal, form = auth.current(), request.form
    source, profile, model, skill = (form.get(name) or None for name in ("source", "profile", "model", "skill_folder"))
    text = form.get("input", "").replace("\r\n", "\n")
    try:
        if text:
            checked(text, max_kb=web().settings.max_message_kb)
        session_id = session_actions.create(
            web(), principal, source=source, profile=profile, model=model, skill_folder=skill
        ).session_id
        if text:
            run_actions.submit(web(), principal, commands.Run(session_id=session_id, input=text))
    except errors.PlatformError as error:
        if not text:
            raise
        problem = problem_of(error)
        return _begin(text, problem), problem.status
    return redirect(url("chat", session_id), 303)


@bp.post("/chat/<session_id>/send")
def send(session_id: str) -> ResponseReturnValue:
    done = run_actions.submit(
        web(), auth.current(), _command(commands.Run, session_id, "input", "queue_id", "model", "skill_folder")
    )
    if _is_script():
        headers = {"X-Queue-Id": done.queue_id, "X-Position": str(done.position)}
        return "", 200 if not done.created else 201, headers
    return _back(session_id)


@bp.post("/chat/<session_id>/abort")
def stop(session_id: str) -> ResponseReturnValue:
    run_actions.abort(web(), auth.current(), session_id, request.form.get("run_id") or None)
    return _back(session_id)


@bp.post("/chat/<session_id>/cancel")
def cancel(session_id: str) -> ResponseReturnValue:
    run_actions.cancel_queued(web(), auth.current(), session_id, request.form.get("queue_id", ""))
    return _back(session_id)


@bp.post("/chat/<session_id>/edit")
def edit(session_id: str) -> ResponseReturnValue:
    text = request.form.get("input", "")
    run_actions.edit_queued(web(), auth.current(), session_id, request.form.get("queue_id", ""), text)
    return _back(session_id)


@bp.post("/chat/<session_id>/move")
def move(session_id: str) -> ResponseReturnValue:
    cmd = _command(commands.MoveQueuedRun, session_id, "queue_id", "position")
    run_actions.move_queued(web(), auth.current(), session_id, cmd.queue_id, cmd.position)
    return _back(session_id)


@bp.post("/chat/<session_id>/continue")
def go_on(session_id: str) -> ResponseReturnValue:
    run_actions.continue_queue(web(), auth.current(), session_id)
    return _back(session_id)


@bp.post("/chat/<session_id>/retry")
def retry(session_id: str) -> ResponseReturnValue:
    run_actions.retry(web(), auth.current(), request.form.get("run_id", ""))
    return _back(session_id)


@bp.post("/chat/<session_id>/approval")
def approval(session_id: str) -> ResponseReturnValue:
    cmd = _command(commands.ApprovalRespond, session_id, "approval_id", "choice", "reason")
    pause_actions.respond_approval(web(), auth.current(), cmd)
    return _back(session_id)


@bp.post("/chat/<session_id>/clarify")
def clarify(session_id: str) -> ResponseReturnValue:
    answer = request.form.get("answer", "").strip() or request.form.get("choice", "")
    if not answer:
        raise errors.InvalidCommand(_("Choose an answer, or write one."))
    cmd = commands.ClarifyRespond(session_id=session_id, clarify_id=request.form.get("clarify_id", ""), answer=answer)
    pause_actions.respond_clarification(web(), auth.current(), cmd)
    return _back(session_id)


@bp.post("/chat/<session_id>/rename")
def rename(session_id: str) -> ResponseReturnValue:
    session_actions.rename(web(), auth.current(), session_id, request.form.get("title", ""))
    return _back(session_id)


@bp.post("/chat/<session_id>/options")
def options(session_id: str) -> ResponseReturnValue:
    session_actions.set_options(
        web(),
        auth.current(),
        session_id,
        on_failure=request.form.get("on_failure"),
        profile=request.form.get("profile"),
    )
    return _back(session_id)


@bp.post("/chat/<session_id>/archive")
def archive(session_id: str) -> ResponseReturnValue:
    archived = request.form.get("archived") != "0"
    session_actions.archive(web(), auth.current(), session_id, archived)
    return redirect(url("chat") if archived else url("chat", session_id), 303)


@bp.post("/chat/<session_id>/delete")
def delete(session_id: str) -> ResponseReturnValue:
    session_actions.delete(web(), auth.current(), session_id)
    return redirect(url("chat", deleted=session_id), 303)


@bp.post("/chat/<session_id>/undelete")
def undelete(session_id: str) -> ResponseReturnValue:
    session_actions.undelete(web(), auth.current(), session_id)
    return redirect(url("chat", session_id), 303)


def _command(kind: Any, session_id: str, *fields: str) -> Any:
    """The command of a form; empty fields are absent ones. Raises InvalidCommand by its validation."""
    given = {name: request.form[name] for name in fields if request.form.get(name)}
    if kind is commands.Run:
        written = request.form.get("input", "") or request.form.get("choice", "")  # of a question that is over
        given["input"] = written.replace("\r\n", "\n")  # as browsers send the lines of a field
    return kind(session_id=session_id, **given)


def _is_script() -> bool:
    return request.headers.get("HX-Request") == "true"


def _back(session_id: str) -> ResponseReturnValue:
    """To the page again; a script needs no answer, since the socket tells what has changed."""
    return ("", 204) if _is_script() else redirect(url("chat", session_id), 303)


# ---- what the templates read


def _begin(text: str = "", problem: Problem | None = None) -> str:
    """The list of chats, and the field for the first message of a new one. What is to be chosen may stand in the
    address, and after a fault it is what was."""
    given, principal = request.values.get, auth.current()
    sources = sources_of(web(), principal)
    source = source_of(sources, given("source"))
    answers = "api_server" if source is None else source.value
    usual = catalogue.default_profile(db())
    settled = _settled(profile := given("profile") or (None if usual is None else usual.name))
    model, skill = given("model"), given("skill_folder", "")
    first = First(
        _("Message %(agent)s", agent=agent_of(answers, is_demo=settled.is_demo).name),
        text,
        source,
        tuple(Option(each.value, each.name, each == source) for each in sources if each.is_offered),
        view_page.pickers_of(
            settled,
            model=model if model in settled.models else None,
            profile=profile if profile in settled.profiles else None,
            skill=skill if skills.NAME.fullmatch(skill) else None,
            source=answers,
        ),
    )
    side = side_of(principal, source=answers)
    return render.render("pages/chat.html", side=side, first=first, problem=problem, deleted=_deleted())


def _chat(principal: Principal, view: Snapshot) -> Chat:
    return view_page.chat_of(view, _facts(principal, view, view.messages), _settled(view.session.profile))


def _settled(profile: str | None) -> Settled:
    """With what a turn in that profile may choose from."""
    usual = catalogue.default_language_model(db())
    return Settled(
        is_demo=view_page.settled_of(web()).is_demo,
        models=tuple(row.name for row in catalogue.language_models(db())),
        default_model=None if usual is None else usual.name,
        profiles=tuple(row.name for row in catalogue.profiles(db())),
        has_skills=skills.any_listed(home_of(db(), web().settings, profile), web().settings.data_dir),
    )


def _facts(principal: Principal, view: Snapshot, shown: Any) -> Facts:
    viewer = view_page.viewer_of(principal, view.session)
    return view_page.facts_for(web().factory, view.session, shown, viewer, view_page.settled_of(web()), more=view.queue)


def _older_chat(principal: Principal, view: Snapshot, before: str) -> Chat:
    page = messages.page(db(), view.session.id, before_id=before, limit=OLDER_LENGTH + 1)
    shown = page[-OLDER_LENGTH:]
    older_view = Snapshot(
        view.session, tuple(shown), view.active, view.queue, view.pauses, view.cursor, len(page) > OLDER_LENGTH
    )
    facts = _facts(principal, older_view, shown)
    waiting = frozenset(run.id for run in view.queue)
    chat = view_page.chat_of(older_view, facts, view_page.settled_of(web()))
    turns = tuple(view_turns.turns_of(shown, facts, waiting=waiting))
    return view_page.with_turns(chat, turns)


def _view_of_run(principal: Principal, session_id: str, run_id: str) -> Any:
    """(transcript, facts) of a run of that session, or None. Raises NotFound."""
    session = rights.require(db(), principal, "read", session_id)
    answer = messages.answer_of(db(), run_id)
    if answer is None or answer.session_id != session_id:
        return None
    run = runs.get(db(), run_id)
    viewer = Viewer(principal.user_id, session.owner_id, rights.may(principal, "send", session))
    return view_turns.transcript_of(answer), Facts(session_id, viewer, {run_id: run})


def _deleted() -> str | None:
    """The id of the chat just deleted, to offer the way back."""
    return request.args.get("deleted") or None

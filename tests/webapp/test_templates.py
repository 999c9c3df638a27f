"""The templates themselves: nothing inline, all translated, and inert whatever stands in any of their texts."""

import gettext
import json
import re
import subprocess
import sys
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from babel.messages.mofile import read_mo
from babel.messages.pofile import read_po

from shared import clock
from shared.database import transaction
from shared.models import ChatSession
from shared.run_state import RunState
from shared.store import messages
from tests.rig.web import Web
from tests.webapp.hostile import HOSTILE
from tests.webapp.page_rig import Story, text, tool, tool_done
from webapp import render
from webapp.markdown_html import BOX_TAGS, TEXT_TAGS
from webapp.render import Reader, reading_as

ROOT = Path(__file__).parent.parent.parent
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
SCRIPTS = sorted((ROOT / "webapp/static/js").glob("*.js"))
SHEETS = sorted((ROOT / "webapp/static/css").glob("*.css"))
VENDOR = ROOT / "webapp/static/vendor"
CATALOGUE = ROOT / "webapp/translations/zh_Hans/LC_MESSAGES"


# ---- the strict policy (S22, S24)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_no_template_has_anything_inline(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert not re.search(r"\sstyle=|<style|\son[a-z]+=|javascript:|hx-on|hx-vals=.js:|data:[a-z]+/", source)
    assert all(" src=" in tag for tag in re.findall(r"<script[^>]*>", source))
    assert "|safe" not in source
    assert not re.search(r'hx-trigger="[^"]*\[', source), "a trigger filter needs eval"
    assert not re.search(r"https?://(?!127\.0\.0\.1)", source), "an address elsewhere"


def test_htmx_may_not_evaluate_store_or_ask_elsewhere() -> None:
    page = (ROOT / "templates/base.html").read_text(encoding="utf-8")
    found = re.search(r"name=\"htmx-config\" content='([^']+)'", page)
    assert found is not None
    config = json.loads(found[1])
    assert config["allowEval"] is config["allowScriptTags"] is config["includeIndicatorStyles"] is False
    assert config["selfRequestsOnly"] is True
    assert config["historyCacheSize"] == 0


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_each_script_is_one_small_behaviour_of_ours(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 120
    assert "'use strict';" in source
    assert not re.search(r"\beval\(|new Function|innerHTML|outerHTML|insertAdjacentHTML|document\.write", source)
    assert "localStorage" not in source
    assert not re.search(r"https?://", source)


@pytest.mark.parametrize("path", SHEETS, ids=lambda path: path.stem)
def test_styles_ask_for_nothing_elsewhere(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert "url(" not in source
    assert "@import" not in source
    assert source.count("{") == source.count("}")


def test_vendored_files_are_those_named_in_versions() -> None:
    lines = VENDOR.joinpath("VERSIONS").read_text()
    named = dict(re.findall(r"^(\S+\.js)\s+\S+\s+[\d.]+\s+\S+\s+([0-9a-f]{64})$", lines, re.MULTILINE))
    assert set(named) == {path.name for path in VENDOR.glob("*.js")}
    for name, digest in named.items():
        done = subprocess.run(["sha256sum", VENDOR / name], capture_output=True, text=True, check=True)
        assert done.stdout.split()[0] == digest


def test_every_icon_that_is_used_is_drawn() -> None:
    drawn = set(re.findall(r'id="([ig]-[a-z-]+)"', render.render("components/sprite.html")))
    sources = "".join(path.read_text(encoding="utf-8") for path in [*TEMPLATES, *SCRIPTS])
    used = {f"i-{name}" for name in re.findall(r'icon\("([a-z-]+)"', sources)}
    assert used | set(re.findall(r"#([ig]-[a-z-]+)", sources)) - {"i-", "g-"} <= drawn


# ---- translations


def test_every_word_of_the_pages_has_a_chinese_one(tmp_path: Path) -> None:
    pot = tmp_path / "messages.pot"
    extract = ["extract", "-F", "webapp/translations/babel.cfg", "-k", "_", "-k", "counted:1,2", "-k", "ngettext:1,2"]
    command = [sys.executable, "-m", "babel.messages.frontend", "-q", *extract, "-o", str(pot), "."]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with pot.open("rb") as file:
        wanted = {message.id for message in read_po(file) if message.id}
    with (CATALOGUE / "messages.po").open("rb") as file:
        known = {message.id: message for message in read_po(file) if message.id}
    assert wanted - known.keys() == set()
    assert [message.id for message in known.values() if not message.string] == []
    for message in known.values():
        pair = [part[0] if isinstance(part, tuple) else part for part in (message.id, message.string)]
        fields = [sorted(re.findall(r"%\(\w+\)s|\{\w+\}|%%", str(part))) for part in pair]
        assert fields[0] == fields[1], message.id


def test_the_compiled_catalogue_is_that_of_the_source() -> None:
    with (CATALOGUE / "messages.po").open("rb") as po, (CATALOGUE / "messages.mo").open("rb") as mo:
        source, compiled = (
            [(_parts(m.id), _parts(m.string)) for m in file if m.id] for file in (read_po(po), read_mo(mo))
        )
        assert sorted(source) == sorted(compiled)
    assert gettext.translation("messages", CATALOGUE.parent.parent, ["zh_Hans"]).gettext("Live") == "已连接"


def _parts(words: object) -> list[str]:
    return [words] if isinstance(words, str) else list(words)  # type: ignore[call-overload]


def test_pages_say_their_language() -> None:
    with reading_as(Reader("zh_Hans", theme="dark")):
        html = render.render("pages/sign_in.html", login="", next="/", error=None)
    assert '<html lang="zh-CN" data-theme="dark">' in html
    assert "登录" in html


# ---- hostile texts in every place (S19, S25, #123)


@pytest.mark.parametrize("text_", HOSTILE)
def test_a_page_is_inert_whatever_stands_in_its_texts(web: Web, text_: str) -> None:
    story = hostile_story(web, text_)
    page = web.browser(web.admin).get(f"/chat/{story.session_id}").get_data(as_text=True)
    assert_inert(page)
    for path in ("/chat", f"/chat/list?q={text_[:40]}", f"/chat/{story.session_id}/frame"):
        assert_inert(web.browser(web.admin).get(path).get_data(as_text=True))


def hostile_story(web: Web, text_: str) -> Story:
    """A session with `text_` in every place that people, agents, tools or models can write to."""
    shown = text_.replace("\0", "\ufffd")
    story = Story(web.factory, title=shown, owner=web.admin)
    todo = {"id": "1", "text": shown, "status": "pending"}
    process = [
        text(0, 0, shown, "reasoning"),
        ("status.updated", {"text": shown}),
        tool("a", shown, shown, {shown: shown}),
        tool_done("a", shown, result=shown),
        tool("b", shown, arguments=shown),
        tool_done("b", shown, ok=False, error=shown),
        ("todo.updated", {"todos": [todo]}),
        text(1, 0, shown),
    ]
    story.turn(shown, *process, agent=shown)
    story.turn(shown, *process, state=RunState.FAILED, end={"message": shown, "detail_id": shown})
    story.turn(shown, *process, state=RunState.INTERRUPTED, end={"message": shown})
    ask = {"approval_id": f"a{story.session_id}", "kind": shown, "command": shown, "description": shown}
    asked = {**ask, "choices": ["once", "deny"], "deadline": (clock.now() + timedelta(hours=1)).isoformat()}
    clarify = {"clarify_id": f"c{story.session_id}", "question": shown, "choices": [shown]}
    progress = ("tool.progress", {"tool_id": "c", "text": shown})
    waits = [("approval.requested", asked), ("clarify.requested", clarify), tool("c", shown), progress]
    run = story.turn(shown, *process, *waits, state=RunState.RUNNING, user_name=shown)
    story.queued(shown, shown)
    with transaction(web.factory) as db:
        session = db.get_one(ChatSession, story.session_id)
        session.title = shown
        question = messages.question_of(db, run.id)
        assert question is not None
        question.author_name = shown
        question.blocks = [{"type": "image_url", "name": shown}]
    return story


def assert_inert(html: str) -> None:
    """No script but ours, no handler, no address that runs, and no htmx attribute where people's text stands."""
    parser = _Inert()
    parser.feed(html)
    parser.close()


class _Inert(HTMLParser):
    OWN = frozenset({"textarea", "template", "noscript", "title"})

    def __init__(self) -> None:
        super().__init__()
        self._prose: list[str] = []  # open tags inside of a box of people's text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        assert not any(name.startswith("on") or name == "style" for name in given), (tag, given)
        if tag == "script":
            assert given["src"].startswith("/static/"), given
        for name in ("href", "src", "action", "formaction", "xlink:href"):
            value = given.get(name, "").strip().lower()
            assert re.match(r"^(#|/(?!/)|https?://|mailto:|$)", value), (tag, name, value)
        assert tag not in ("iframe", "object", "embed", "base", "img", "video", "audio", "math"), tag
        if self._prose:
            assert tag in TEXT_TAGS | BOX_TAGS | {"button", "svg", "use", "span"}, tag
            assert not any(name.startswith(("hx-", "ws-", "data-into")) for name in given), given
        if (self._prose or "hx-disable" in given) and tag not in ("br", "hr", "use"):
            self._prose.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._prose and tag in self._prose:
            while self._prose and self._prose.pop() != tag:
                pass

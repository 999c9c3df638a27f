"""Templates and their reader: one Jinja environment for first load, replay and live frames alike.

A `Reader` is what a template may ask about the person: language, time zone, theme, address prefix. In a request it is
read from cookies and headers; on a socket `reading_as` sets it, since its frames are rendered outside of one.
"""

import gettext as gettext_module
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from flask import Flask, Request, g, has_request_context, request
from flask_wtf.csrf import generate_csrf
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from shared import clock

HERE = Path(__file__).resolve().parent
TEMPLATES = HERE.parent / "templates"
STATIC = HERE / "static"
LOCALES = ("en", "zh_Hans")
HTML_LANG = {"en": "en", "zh_Hans": "zh-CN"}
LANGUAGE_COOKIE, ZONE_COOKIE, THEME_COOKIE = "portal_lang", "portal_zone", "portal_theme"


@dataclass(frozen=True)
class Reader:
    """Who reads what is rendered. `live`: on a socket, where forms need no CSRF token of their own."""

    locale: str = "en"
    zone: str = "UTC"
    theme: str | None = None  # light | dark; None: as the system says
    root: str = ""  # path prefix behind a proxy, without the last slash
    live: bool = False

    @property
    def lang(self) -> str:
        return HTML_LANG[self.locale]

    @property
    def tz(self) -> tzinfo:
        return _zone(self.zone) or UTC


_current: ContextVar[Reader | None] = ContextVar("reader", default=None)


def reader() -> Reader:
    """The reader that `reading_as` set, else the one of the request, else an English reader in UTC."""
    if (current := _current.get()) is not None:
        return current
    if has_request_context():
        if "reader" not in g:
            g.reader = reader_of(request)
        return g.reader  # type: ignore[no-any-return]
    return Reader()


def reader_of(req: Request, *, live: bool = False) -> Reader:
    """The reader behind a request: cookies win over headers; what is not one of ours is ignored."""
    zone = req.cookies.get(ZONE_COOKIE, "").replace("%2F", "/")
    theme = req.cookies.get(THEME_COOKIE)
    return Reader(
        locale=_locale_of(req),
        zone=zone if zone and _zone(zone) is not None else "UTC",
        theme=theme if theme in ("light", "dark") else None,
        root=req.script_root,
        live=live,
    )


@contextmanager
def reading_as(who: Reader) -> Iterator[None]:
    """Render for `who` inside the block."""
    token = _current.set(who)
    try:
        yield
    finally:
        _current.reset(token)


def render(template: str, **values: Any) -> str:
    """One template, for the current reader. Works without an application or a request."""
    return environment().get_template(template).render(**values)


def install(app: Flask) -> None:
    """Make `flask.render_template` find these templates with the same filters, globals and translations."""
    app.jinja_loader = FileSystemLoader(TEMPLATES)
    _equip(app.jinja_env)
    app.jinja_env.undefined = StrictUndefined


@lru_cache(maxsize=1)
def environment() -> Environment:
    env = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, auto_reload=False)
    _equip(env)
    return env


def _equip(env: Environment) -> None:
    env.trim_blocks = env.lstrip_blocks = True
    env.add_extension("jinja2.ext.i18n")
    env.install_gettext_callables(_, ngettext, newstyle=True)  # type: ignore[attr-defined]
    env.globals.update(reader=reader, url=url, asset=asset, csrf_field=csrf_field, csrf_value=csrf_value)
    env.filters.update(stamp=stamp, day_of=day_label, day_id=day_id, duration=duration, running_clock=running_clock)
    env.filters["code_words"] = code_words


# ---- words


@lru_cache(maxsize=len(LOCALES))
def _catalogue(locale: str) -> gettext_module.NullTranslations:
    return gettext_module.translation("messages", HERE / "translations", languages=[locale], fallback=True)


def _(message: str, **values: Any) -> str:
    """The message in the reader's language, `%(name)s` filled in."""
    text = _catalogue(reader().locale).gettext(message)
    return text % values if values else text


def ngettext(one: str, many: str, n: int, **values: Any) -> str:
    text = _catalogue(reader().locale).ngettext(one, many, n)
    return text % {"num": n, **values} if values else text


def counted(one: str, many: str, n: int) -> str:
    """`ngettext` with `%(num)s` filled in: for Python; templates fill in by themselves."""
    return _catalogue(reader().locale).ngettext(one, many, n) % {"num": number(n)}


# ---- addresses and tokens


def url(*parts: str, **query: str | int | None) -> str:
    """A path of the portal below the reader's prefix, each part escaped: `url("chat", session_id)`."""
    path = reader().root + "/" + "/".join(quote(part, safe="") for part in parts)
    pairs = [f"{key}={quote(str(value), safe='')}" for key, value in query.items() if value is not None]
    return path + ("?" + "&".join(pairs) if pairs else "")


def asset(name: str) -> str:
    """The address of a static file; changes with its content, so that it may be cached for ever."""
    file = STATIC / name
    return f"{reader().root}/static/{name}?v={_digest(file, file.stat().st_mtime_ns)}"


@lru_cache(maxsize=256)
def _digest(file: Path, _mtime_ns: int) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:10]


def csrf_value() -> str:
    """The request's CSRF token; empty on a socket and outside of requests, where scripts send the page's own."""
    if reader().live or not has_request_context():
        return ""
    return str(generate_csrf())


def csrf_field() -> str:
    value = csrf_value()
    return Markup('<input type="hidden" name="csrf_token" value="{}">').format(value) if value else Markup("")


def code_words(text: str) -> str:
    """Words between back-ticks as code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(p) if n % 2 else p for n, p in enumerate(parts))


# ---- times and numbers


def stamp(moment: datetime | None, show: str = "time") -> str:
    """A `<time>` element in the reader's zone; a script puts it right when the browser's zone is another one.

    `show`: time (14:12), auto (time today, weekday in the last week, else date), full (date and time)."""
    if moment is None:
        return Markup("")
    local = moment.astimezone(reader().tz)
    return Markup('<time datetime="{}" data-show="{}" title="{:%Y-%m-%d %H:%M:%S}">{}</time>').format(
        clock.iso_ms(moment), show, local, _time_text(local, show)
    )


def _time_text(local: datetime, show: str) -> str:
    if show == "full":
        return f"{local:%Y-%m-%d %H:%M}"
    days = (clock.now().astimezone(local.tzinfo).date() - local.date()).days
    if show == "time" or days in (0, 1):
        return f"{local:%H:%M}"
    if 0 <= days < 7:
        return _weekdays()[local.weekday()]
    return f"{local:%m-%d}" if days < 300 else f"{local:%Y-%m}"


def day_label(moment: datetime) -> str:
    """Today, Yesterday, a weekday and date: the divider between the turns of two days."""
    local = moment.astimezone(reader().tz)
    days = (clock.now().astimezone(local.tzinfo).date() - local.date()).days
    if days == 0:
        return _("Today")
    if days == 1:
        return _("Yesterday")
    return f"{_weekdays()[local.weekday()]} {local:%Y-%m-%d}"


def day_id(moment: datetime) -> str:
    return f"{moment.astimezone(reader().tz):%Y-%m-%d}"


def day_group(moment: datetime) -> str:
    """The heading of the session list that a chat of `moment` stands under."""
    local = moment.astimezone(reader().tz)
    days = (clock.now().astimezone(local.tzinfo).date() - local.date()).days
    if days <= 0:
        return _("Today")
    if days == 1:
        return _("Yesterday")
    if days < 7:
        return _("Last 7 days")
    return _("Last 30 days") if days < 30 else _("Older")


def _weekdays() -> tuple[str, ...]:
    return (_("Mon"), _("Tue"), _("Wed"), _("Thu"), _("Fri"), _("Sat"), _("Sun"))


def duration(seconds: float | None) -> str:
    """0.4 s, 21.4 s, 1 min 42 s, 2 h 5 min; empty when not known."""
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)
    if seconds < 60:
        shown = f"{seconds:.0f}" if seconds >= 10 and seconds == int(seconds) else f"{seconds:.1f}"
        return _("%(n)s s", n=shown)
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return _("%(m)s min %(s)s s", m=minutes, s=rest) if rest else _("%(m)s min", m=minutes)
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return _("%(h)s h %(m)s min", h=hours, m=minutes) if minutes else _("%(h)s h", h=hours)
    return _("%(d)s d", d=hours // 24)


def running_clock(seconds: float) -> str:
    """1:26, or 2:05:09 from an hour on: the form that the clock script counts in."""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def size(n: int | None) -> str:
    """Bytes in the largest fitting unit: 16 KB, 5.2 MB."""
    value = float(n or 0)
    for unit in ("B", "KB", "MB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GB"


def tokens(n: int) -> str:
    """812, 12.4k, 1.2M; in Chinese in units of ten thousand."""
    if reader().locale == "zh_Hans" and n >= 10_000:
        return f"{n / 10_000:.3g} 万"
    if n < 1_000:
        return str(n)
    return f"{n / 1_000:.1f}k" if n < 1_000_000 else f"{n / 1_000_000:.1f}M"


def number(n: int) -> str:
    return f"{n:,}"


def _locale_of(req: Request) -> str:
    chosen = req.cookies.get(LANGUAGE_COOKIE)
    if chosen in LOCALES:
        return chosen
    best = req.accept_languages.best_match(("en", "zh-Hans", "zh-CN", "zh-SG", "zh"), default="en")
    return "zh_Hans" if best.startswith("zh") else "en"


@lru_cache(maxsize=600)
def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None

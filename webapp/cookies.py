"""The two cookies: the sign-in's (a random value, S6) and Flask's signed one, which holds the CSRF token.

Both HttpOnly, SameSite=Lax, Path=/, and `__Host-` with Secure wherever the browser speaks TLS (S7).
"""

from typing import Literal
from urllib.parse import urlsplit

from flask import Flask, Response, request
from flask.sessions import SecureCookieSessionInterface

from shared import errors
from shared.settings import Settings
from webapp import addresses
from webapp.context import web

SIGN_IN_LIFE_S = 7 * 86_400

Footing = Literal["secure", "plain", "refused"]


class InsecureAddress(errors.Forbidden):
    """Signing in over plain http beyond the own machine would show password and cookie to the network."""

    code = "insecure_address"


def footing(settings: Settings) -> Footing:
    """`secure` over TLS, `plain` on loopback or when PORTAL_ALLOW_HTTP says so, else no sign-in at all."""
    if addresses.is_https(settings):
        return "secure"
    return "plain" if addresses.is_loopback() or settings.allow_http else "refused"


def check_footing(settings: Settings) -> None:
    """Raises InsecureAddress where nobody should type a password."""
    if footing(settings) == "refused":
        raise InsecureAddress(
            "This page was opened over plain http from another machine: your password could be read on the way. "
            "Open it with https, or have the operator set PORTAL_ALLOW_HTTP=1 if the network is trusted."
        )


def sign_in_cookie() -> str | None:
    """The value that the browser sent, if it may be believed here."""
    settings = web().settings
    if footing(settings) == "refused":
        return None
    return request.cookies.get(_name(settings, "sign-in"))


def set_sign_in(response: Response, value: str) -> None:
    settings = web().settings
    response.set_cookie(
        _name(settings, "sign-in"),
        value,
        max_age=SIGN_IN_LIFE_S,
        path="/",
        secure=footing(settings) == "secure",
        httponly=True,
        samesite="Lax",
    )


def clear_sign_in(response: Response) -> None:
    settings = web().settings
    secure = footing(settings) == "secure"
    response.delete_cookie(_name(settings, "sign-in"), path="/", secure=secure, httponly=True, samesite="Lax")


class PortalCookie(SecureCookieSessionInterface):
    """Flask's signed cookie under the name and attributes that the address allows."""

    def get_cookie_name(self, app: Flask) -> str:
        return _name(web().settings, "csrf")

    def get_cookie_secure(self, app: Flask) -> bool:
        return footing(web().settings) == "secure"

    def get_cookie_path(self, app: Flask) -> str:
        return "/"

    def get_cookie_httponly(self, app: Flask) -> bool:
        return True

    def get_cookie_samesite(self, app: Flask) -> str:
        return "Lax"


def _name(settings: Settings, kind: str) -> str:
    """On plain http the port is in the name: cookies know no ports, and two portals may run on one machine."""
    if footing(settings) == "secure":
        return f"__Host-portal-{kind}"
    return f"portal-{urlsplit(request.host_url).port or 80}-{kind}"

"""Security headers on every answer (S22, S23)."""

from flask import Flask, Response, request

from webapp import addresses
from webapp.context import web

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "font-src 'self'",
        "manifest-src 'self'",
        "worker-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "object-src 'none'",
    )
)
FIXED = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}
HSTS = "max-age=31536000"
STATIC_CACHE = "public, max-age=31536000, immutable"  # the address changes with the content


def init(app: Flask) -> None:
    app.after_request(_add)


def _add(response: Response) -> Response:
    for name, value in FIXED.items():
        response.headers[name] = value
    if addresses.is_https(web().settings):
        response.headers["Strict-Transport-Security"] = HSTS
    response.headers["Cache-Control"] = _cache_control(response)
    response.headers.pop("Server", None)
    return response


def _cache_control(response: Response) -> str:
    """Private pages are stored nowhere. What carries an ETag of ours may be asked for again with it."""
    if request.endpoint == "static" and response.status_code in (200, 206, 304):
        return STATIC_CACHE if request.args.get("v") else "no-cache"
    if request.path.startswith("/api/") and "ETag" in response.headers:
        return "private, no-cache"
    return "no-store"

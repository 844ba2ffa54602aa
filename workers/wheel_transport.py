"""Files from a plain web server, with the proxies and certificates that pip and uv are told to use."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from typing import cast
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener, getproxies

from farm.errors import InfrastructureFailed
from farm.installer import redact
from farm.pip_settings import installer_environment

__all__ = ["exists", "open_url"]

#: Without a byte for so long a server is taken for gone; pip waits 15 s.
TIMEOUT_S = 30.0


@contextmanager
def open_url(url: str, *, from_byte: int = 0, method: str = "GET") -> Iterator[HTTPResponse]:
    """Give the answer to ``url``, from a byte on where the server can (status 206).

    User and password in the address are sent and never shown. Raises FileNotFoundError for what is not there,
    InfrastructureFailed for a server that cannot be asked.
    """
    where, headers = _without_credentials(url)
    if from_byte:
        headers["Range"] = f"bytes={from_byte}-"
    try:
        with _opener().open(Request(where, headers=headers, method=method), timeout=TIMEOUT_S) as answer:
            yield cast(HTTPResponse, answer)
    except HTTPError as error:
        if error.code in (404, 410):
            raise FileNotFoundError(redact(url)) from error
        raise InfrastructureFailed(f"'{redact(url)}' answers {error.code} {error.reason}") from error
    except (URLError, TimeoutError, ConnectionError, HTTPException) as error:
        raise InfrastructureFailed(f"'{redact(url)}' cannot be reached: {getattr(error, 'reason', error)}") from error


def exists(url: str) -> bool:
    """Return whether ``url`` is served. Raises InfrastructureFailed where nobody answers."""
    try:
        with open_url(url, method="HEAD"):
            return True
    except FileNotFoundError:
        return False


def _without_credentials(url: str) -> tuple[str, dict[str, str]]:
    parts = urlsplit(url)
    userinfo, _, host = parts.netloc.rpartition("@")
    if not userinfo:
        return url, {}
    user, _, password = userinfo.partition(":")
    token = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    bare = urlunsplit((parts.scheme, host, parts.path, parts.query, parts.fragment))
    return bare, {"Authorization": f"Basic {token}"}


def _opener() -> OpenerDirector:
    settings = installer_environment()
    context = ssl.create_default_context(cafile=settings.get("SSL_CERT_FILE") or None)
    return build_opener(ProxyHandler(_proxies(settings)), HTTPSHandler(context=context))


def _proxies(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the proxies of the environment, in either case of its names, and pip's own where it names none."""
    said = {scheme: settings.get(f"{scheme.upper()}_PROXY") for scheme in ("http", "https")}
    return {scheme: proxy for scheme, proxy in said.items() if proxy} | getproxies()

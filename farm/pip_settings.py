"""pip's own settings, read by pip and said in uv's words, so that what a user configured for pip holds here too."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache

__all__ = ["installer_environment", "pip_settings"]

#: Other names by which uv and its HTTP client know a variable.
ALIASES = {
    "UV_DEFAULT_INDEX": "UV_INDEX_URL",
    "UV_INDEX": "UV_EXTRA_INDEX_URL",
    "HTTPS_PROXY": "https_proxy",
    "HTTP_PROXY": "http_proxy",
}

#: Sections of pip's configuration that say where packages come from, weakest first.
SECTIONS = ("global", "install", "download", ":env:")


@lru_cache(maxsize=1)
def pip_settings() -> Mapping[str, str]:
    """Return pip's effective settings by option name ("index-url"), from its files and PIP_* variables."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False, timeout=60
    )
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listed.stdout.splitlines():
        key, _, value = line.partition("=")
        section, _, option = key.rpartition(".")
        if section in found:
            found[section][option.replace("_", "-")] = str(ast.literal_eval(value))
    return {option: value for section in SECTIONS for option, value in found[section].items()}


def installer_environment(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for uv: ours, with pip's settings wherever uv's own variable is not set.

    Several indexes are searched as pip does, the best version of all of them; uv's default stops at the first index
    that knows the name.
    """
    settings = pip_settings() if settings is None else settings
    words = {option: value.split() for option, value in settings.items()}
    wanted = {
        "UV_DEFAULT_INDEX": settings.get("index-url"),
        "UV_INDEX": " ".join(words.get("extra-index-url", ())),
        "UV_FIND_LINKS": ",".join(words.get("find-links", ())),
        "UV_CONSTRAINT": " ".join(words.get("constraint", ())),
        "UV_NO_INDEX": "1" if settings.get("no-index", "").lower() in {"1", "true", "yes", "on"} else None,
        "UV_INSECURE_HOST": " ".join(words.get("trusted-host", ())),
        "SSL_CERT_FILE": settings.get("cert"),
        "HTTPS_PROXY": settings.get("proxy"),
        "HTTP_PROXY": settings.get("proxy"),
    }
    environment = dict(os.environ)
    for name, value in wanted.items():
        if value and name not in environment and ALIASES.get(name, name) not in environment:
            environment[name] = value
            if name == "UV_INDEX":
                environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return environment

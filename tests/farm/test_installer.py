"""What uv complains of comes back as one cause in words, its own last words, and no password."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.installer import LAST_LINES, InstallerError, classify, lock, redact, redact_text, run_uv
from farm.pip_settings import installer_environment, pip_settings
from tests.wheels import installers_alone, make_companions, make_torch, make_wheel, small_disk
from workers.probe import probe_host

HOST = probe_host()


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    installers_alone(monkeypatch, tmp_path / "uv-cache")
    yield
    pip_settings.cache_clear()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as folder:
        yield folder


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("error: failed to write: No space left on device (os error 28)", "no space"),
        ("torch==2.13.0 has no wheels with a matching platform tag (e.g., `macosx_14_0`)", "platform"),
        ("the requested Python version (>=3.9) does not satisfy Python>=3.10", "platform"),
        ("Because there is no version of torch==99.0 and you require torch==99.0", "missing"),
        ("An index URL could not be queried due to a lack of credentials (401 Unauthorized)", "credentials"),
        ("error: Failed to fetch\n cause: HTTP status client error (404 Not Found) for url (…)", "absent"),
        ("error: Failed to fetch: `https://…`\n  cause: dns error", "network"),
        ("hint: Packages were unavailable because the network was disabled", "network"),
        ("error: Hash mismatch for `torch==2.13.0`", "hash"),
        ("error: failed to create directory: Permission denied (os error 13)", "permission"),
    ],
)
def test_each_complaint_has_one_cause(words: str, kind: str) -> None:
    assert classify(words)[0] == kind


def test_an_unknown_complaint_is_its_own_last_line() -> None:
    assert classify("warning: one\nerror: two\n\n") == ("unknown", "error: two")
    assert classify("") == ("unknown", "uv said nothing")


def test_a_failure_names_what_was_tried_and_keeps_only_the_last_words() -> None:
    with pytest.raises(InstallerError, match="trying it: ") as failed:
        run_uv(["no-such-command"], what="trying it")
    assert "no-such-command" in failed.value.last_words
    assert len(failed.value.last_words.splitlines()) <= LAST_LINES


def test_a_disk_that_is_full_is_said_as_that(full_disk: Path, tmp_path: Path) -> None:
    links = make_companions(tmp_path / "links")
    make_torch(links, "2.13.0", files={"torch/big.txt": "0123456789" * 400_000})
    run_uv(["venv", "--quiet", "--no-project", str(full_disk / "environment")])
    command = ["pip", "install", "--no-index", "--find-links", str(links), "torch"]
    with pytest.raises(InstallerError, match="installing: no space left on the disk; free some") as failed:
        run_uv([*command, "--python", str(full_disk / "environment/bin/python")], what="installing")
    assert failed.value.kind == "no space"
    assert "os error 28" in failed.value.last_words


@pytest.mark.parametrize("variable", ["UV_NO_INDEX", "PIP_NO_INDEX"])
def test_no_index_keeps_uv_from_every_index(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_FIND_LINKS", str(make_companions(tmp_path / "links")))
    pip_settings.cache_clear()
    (numpy,) = lock(["numpy"], platform=HOST.platform, python=HOST.python)
    assert numpy.version == "1.0"


def test_a_lock_is_the_closure_with_the_hash_of_every_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = make_companions(tmp_path / "links of mine")
    make_torch(links, "2.13.0", requires=("Typing_Extensions>=4",))
    make_wheel(links, "typing-extensions", "4.16")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(links))
    packages = lock(["torch==2.13.*", "numpy"], platform=HOST.platform, python=HOST.python, constraints=("numpy<2",))
    assert [package.name for package in packages] == ["numpy", "torch", "typing-extensions"]
    assert all(len(package.sha256) == 64 for package in packages)
    assert packages[1].wheel == "torch-2.13.0-py3-none-any.whl"
    assert packages[1].url == (links / packages[1].wheel).as_uri()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:s3cret@example.org:8443/whl/a.whl?token=s3cret#s3cret", "https://example.org:8443/whl/a.whl"),
        ("https://s3cret@example.org/a.whl", "https://example.org/a.whl"),
        ("file:///srv/wheels/a.whl", "file:///srv/wheels/a.whl"),
    ],
)
def test_a_url_that_is_kept_has_no_credentials(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize("secret", ["s3cret", "s3:cret", "s3@cret", "s3%40cret"])
def test_no_password_stays_in_a_text(secret: str) -> None:
    text = f"Failed to fetch https://me:{secret}@example.org/a and http://{secret}@b.example/c, write to a@b.example"
    assert redact_text(text) == "Failed to fetch https://example.org/a and http://b.example/c, write to a@b.example"


def test_no_password_is_in_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://me:s3cret@127.0.0.1:9/simple")
    with pytest.raises(InstallerError) as failed:
        lock(
            ["torch @ http://me:s3cret@127.0.0.1:9/torch-2.13.0-py3-none-any.whl"],
            platform=HOST.platform,
            python=HOST.python,
        )
    assert "s3cret" not in f"{failed.value} {failed.value.last_words}"
    assert "s3cret" in installer_environment()["UV_DEFAULT_INDEX"]

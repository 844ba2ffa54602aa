"""Where things are kept, and what `farm.toml` may say: a mistake names the file, the key and what is allowed."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from farm.errors import EXIT_USAGE, UsageError
from farm.settings import Home, load_settings


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, an empty home beside it, and no variables."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("FARM_URL", raising=False)
    monkeypatch.setenv("FARM_HOME", str(tmp_path / "home"))
    return folder


def test_the_home_is_what_farm_home_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Home.default().root == tmp_path / "home"
    monkeypatch.setenv("FARM_HOME", "~/of-mine")
    assert Home.default().root == Path.home() / "of-mine"


def test_without_farm_home_the_home_is_the_files_and_then_the_platforms(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FARM_HOME")
    assert Home.default().root == platformdirs.user_data_path("farm")
    (here / "farm.toml").write_text('home = "kept"\n')
    assert Home.default().root == here / "kept"
    (here / "farm.toml").write_text(f'home = "{tmp_path / "elsewhere"}"\n')
    assert Home.default().root == tmp_path / "elsewhere"
    monkeypatch.setenv("FARM_HOME", str(tmp_path / "home"))
    assert Home.default().root == tmp_path / "home"


def test_a_prepared_home_has_its_folders_and_keeps_its_keys_to_itself(tmp_path: Path) -> None:
    home = Home(tmp_path / "a" / "home").prepare()
    assert {path.name for path in home.root.iterdir()} >= {"runs", "outbox", "keys", "logs", "stage", "scratch"}
    assert home.keys.stat().st_mode & 0o777 == 0o700
    assert not list(home.root.glob(".writable-*"))
    home.prepare()


@pytest.mark.parametrize("inside", ["", "home"])
def test_a_home_that_cannot_be_written_is_named_with_the_way_out(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot be written: .*; set FARM_HOME to a folder that can") as refused:
        Home(tmp_path / "file" / inside).prepare()
    assert f"'{tmp_path / 'file' / inside}'" in str(refused.value)
    assert refused.value.exit_code == EXIT_USAGE


def test_without_a_file_only_the_environment_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().url is None
    monkeypatch.setenv("FARM_URL", "redis://coordinator")
    assert load_settings().url == "redis://coordinator"
    assert load_settings().source is None


def test_the_file_here_wins_over_the_file_in_the_home_and_farm_url_over_both(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/farm.toml").write_text('url = "redis://home"\nbaseline = "2.11"\n')
    assert (load_settings().url, load_settings().baseline) == ("redis://home", "2.11")
    (here / "farm.toml").write_text('url = "redis://here"\nmatrix = "mine.toml"\n')
    settings = load_settings()
    assert (settings.url, settings.baseline, settings.source) == ("redis://here", None, here / "farm.toml")
    assert settings.matrix == here / "mine.toml"
    monkeypatch.setenv("FARM_URL", "redis://variable")
    assert load_settings().url == "redis://variable"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('baselin = "2.12"', "unknown key 'baselin'; allowed are baseline, home, matrix, url"),
        ("baseline = 2.10", 'baseline = 2.10 is a number; a version is a text: baseline = "2.10"'),
        ("baseline = 2", "baseline must be a text, not int"),
        ("url = true", "url must be a text, not bool"),
        ("[matrix]", "matrix must be a text, not dict"),
        ("url = ", "cannot be read"),
        ('url = "a"\nurl = "b"', "cannot be read"),
    ],
)
def test_a_mistake_in_the_file_is_named(here: Path, text: str, words: str) -> None:
    (here / "farm.toml").write_text(text)
    with pytest.raises(UsageError) as refused:
        load_settings()
    assert words in str(refused.value)
    assert f"'{here / 'farm.toml'}'" in str(refused.value)


def test_a_file_that_is_no_text_is_refused(here: Path) -> None:
    (here / "farm.toml").write_bytes(b"url = '\xff'")
    with pytest.raises(UsageError, match="cannot be read"):
        load_settings()


def test_a_default_home_has_no_space_even_where_the_system_keeps_data_in_a_folder_with_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FARM_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "platformdirs.user_data_path", lambda name: Path("/Users/ada/Library/Application Support") / name
    )
    assert Home.default().root == Path.home() / ".farm"

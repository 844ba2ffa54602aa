"""What a user configured for pip holds for uv too, and uv's own settings win."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.installer import lock
from farm.pip_settings import installer_environment, pip_settings
from tests.wheels import installers_alone, make_torch, make_wheel, serve
from workers.probe import probe_host


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    installers_alone(monkeypatch, tmp_path / "uv-cache")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    yield
    pip_settings.cache_clear()


def test_every_setting_of_pip_that_says_where_packages_come_from_is_said_in_uvs_words() -> None:
    said = installer_environment(
        {
            "index-url": "https://one.example/simple",
            "extra-index-url": "https://two.example/simple\nhttps://three.example/simple",
            "find-links": "/wheels /more",
            "constraint": "/pins.txt",
            "trusted-host": "one.example",
            "cert": "/ca.pem",
            "proxy": "http://proxy.example:3128",
            "no-index": "true",
            "timeout": "15",
        }
    )
    expected = {
        "UV_DEFAULT_INDEX": "https://one.example/simple",
        "UV_INDEX": "https://two.example/simple https://three.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_CONSTRAINT": "/pins.txt",
        "UV_INSECURE_HOST": "one.example",
        "SSL_CERT_FILE": "/ca.pem",
        "HTTPS_PROXY": "http://proxy.example:3128",
        "HTTP_PROXY": "http://proxy.example:3128",
        "UV_NO_INDEX": "1",
    }
    assert {name: said[name] for name in expected} == expected


def test_without_settings_nothing_is_added() -> None:
    assert not {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_NO_INDEX"} & installer_environment({}).keys()
    assert "UV_NO_INDEX" not in installer_environment({"no-index": "false"})


@pytest.mark.parametrize(
    ("option", "own", "other"),
    [
        ("index-url", "UV_DEFAULT_INDEX", "UV_DEFAULT_INDEX"),
        ("index-url", "UV_INDEX_URL", "UV_DEFAULT_INDEX"),
        ("extra-index-url", "UV_INDEX", "UV_INDEX"),
        ("extra-index-url", "UV_EXTRA_INDEX_URL", "UV_INDEX"),
        ("find-links", "UV_FIND_LINKS", "UV_FIND_LINKS"),
        ("proxy", "https_proxy", "HTTPS_PROXY"),
    ],
)
def test_uvs_own_variable_wins_under_each_of_its_names(
    option: str, own: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(own, "https://own.example")
    said = installer_environment({option: "https://pip.example"})
    assert said[own] == "https://own.example"
    assert said.get(other, "https://own.example") == "https://own.example"


def test_pips_way_of_searching_several_indexes_comes_only_with_pips_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_INDEX", "https://own.example")
    assert "UV_INDEX_STRATEGY" not in installer_environment({"extra-index-url": "https://pip.example"})
    monkeypatch.delenv("UV_INDEX")
    monkeypatch.setenv("UV_INDEX_STRATEGY", "first-index")
    assert installer_environment({"extra-index-url": "https://pip.example"})["UV_INDEX_STRATEGY"] == "first-index"


def test_pips_file_is_read_and_its_variables_win_over_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = tmp_path / "pip.conf"
    configured.write_text(
        "[global]\nindex-url = https://file.example/simple\nfind-links =\n  /one\n  /two\n"
        "[install]\nextra-index-url = https://extra.example/simple\n"
        "[list]\nformat = columns\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configured))
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable.example/simple")
    pip_settings.cache_clear()
    settings = pip_settings()
    assert settings["index-url"] == "https://variable.example/simple"
    assert settings["find-links"].split() == ["/one", "/two"]
    assert settings["extra-index-url"] == "https://extra.example/simple"
    assert "format" not in settings


def test_the_best_version_of_all_of_pips_indexes_is_found_as_pip_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(tmp_path / "one") as one, serve(tmp_path / "two") as two:
        one.add(make_torch(tmp_path, "2.12.1"))
        two.add(make_torch(tmp_path, "2.13.0"))
        one.add(make_wheel(tmp_path, "numpy", "1.0"))
        monkeypatch.setenv("PIP_INDEX_URL", one.url)
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", two.url)
        pip_settings.cache_clear()
        host = probe_host()
        packages = lock(["torch", "numpy"], platform=host.platform, python=host.python)
    assert [(package.name, package.version) for package in packages] == [("numpy", "1.0"), ("torch", "2.13.0")]


def test_pips_constraint_holds_in_the_resolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("1.0", "2.0"):
        make_wheel(tmp_path / "links", "numpy", version)
    (tmp_path / "pins.txt").write_text("numpy<2\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "pins.txt"))
    pip_settings.cache_clear()
    host = probe_host()
    (numpy,) = lock(["numpy"], platform=host.platform, python=host.python)
    assert numpy.version == "1.0"

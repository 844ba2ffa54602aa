"""What "2.13" means: one exact release an arm, one build variant in both, and every other package equal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from farm.errors import EXIT_INFRASTRUCTURE, EXIT_USAGE, EnvironmentFailed, InfrastructureFailed, UsageError
from farm.model import Environment, Side
from farm.pip_settings import pip_settings
from farm.releases import Resolution, is_torch_family, parse_request, resolve
from tests.wheels import ELSEWHERE, Index, installers_alone, make_companions, make_torch, make_wheel, serve
from workers.probe import probe_host

HOST = probe_host()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uv-cache")


@pytest.fixture
def links(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of wheels, the only place where the installers look; numpy and msgpack are in it."""
    installers_alone(monkeypatch, cache)
    folder = make_companions(tmp_path / "links")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    yield folder
    pip_settings.cache_clear()


@pytest.fixture
def index(links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index on loopback, the only place where the installers look; numpy and msgpack are in it."""
    monkeypatch.delenv("UV_FIND_LINKS")
    monkeypatch.delenv("UV_NO_INDEX")
    with serve(tmp_path / "index") as index:
        for wheel in links.iterdir():
            index.add(wheel)
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
        yield index


def ask(candidate: str, baseline: str | None = None, *, backend: str = "cpu", default: str | None = None) -> Resolution:
    return resolve(
        candidate,
        baseline,
        platform=HOST.platform,
        python=HOST.python,
        backend=backend,  # type: ignore[arg-type]
        baseline_default=default,
    )


def versions(environment: Environment) -> dict[str, str]:
    return {package.name: package.version for package in environment.packages}


# -- what may be typed


@pytest.mark.parametrize(
    ("text", "kind", "requirement"),
    [
        ("2.13", "minor", "torch==2.13.*"),
        (" 2.13 ", "minor", "torch==2.13.*"),
        ("2.13.0", "exact", "torch==2.13.0"),
        ("2.13.0rc2", "exact", "torch==2.13.0rc2"),
        ("2.14.0.dev20261130", "exact", "torch==2.14.0.dev20261130"),
        ("nightly", "nightly", "torch>=0.dev0"),
        (
            "https://example.org/whl/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl",
            "wheel",
            "torch @ https://example.org/whl/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        ),
    ],
)
def test_every_form_that_is_documented_is_understood(text: str, kind: str, requirement: str) -> None:
    request = parse_request(text)
    assert (request.kind, request.requirement) == (kind, requirement)


def test_a_wheel_by_path_is_a_release_and_its_build_tag_is_no_part_of_the_version(tmp_path: Path) -> None:
    wheel = make_torch(tmp_path, "2.10.0").rename(tmp_path / "torch-2.10.0-3-py3-none-any.whl")
    request = parse_request(str(wheel))
    assert (request.kind, request.version) == ("wheel", Version("2.10.0"))
    assert request.requirement == f"torch @ {wheel.as_uri()}"


@pytest.mark.parametrize("text", ["2.1o", "2", "", "latest", "2.13rc1", "2,13", "torch==2.13", ">=2.13", "//["])
def test_what_is_not_understood_is_named_with_the_forms_that_are(text: str) -> None:
    with pytest.raises(UsageError, match="understood are") as refused:
        parse_request(text)
    assert f"'{text}'" in str(refused.value)
    assert "2.13.0rc2" in str(refused.value)
    assert refused.value.exit_code == EXIT_USAGE


def test_a_build_variant_is_not_asked_for_and_the_release_to_type_is_named() -> None:
    with pytest.raises(UsageError, match=r"'2\.13\.0\+cpu' names a build variant; name the release \('2\.13\.0'\)"):
        parse_request("2.13.0+cpu")


def test_a_wheel_that_is_not_there_or_not_torch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no wheel at 'torch-9\.whl'"):
        parse_request("torch-9.whl")
    numpy = make_wheel(tmp_path, "numpy", "1.0")
    with pytest.raises(UsageError, match="is a wheel of numpy"):
        parse_request(str(numpy))
    with pytest.raises(UsageError, match=r"does not end in \.whl"):
        parse_request("https://example.org/whl/")
    (tmp_path / "torch.whl").touch()
    with pytest.raises(UsageError, match="is not a wheel's name"):
        parse_request(str(tmp_path / "torch.whl"))


def test_a_url_with_a_password_is_refused_without_repeating_the_password() -> None:
    with pytest.raises(UsageError, match="holds credentials") as refused:
        parse_request("https://me:s3cret@example.org/torch-2.13.0-py3-none-any.whl")
    assert "s3cret" not in str(refused.value)
    assert "example.org" in str(refused.value)


@pytest.mark.parametrize(
    "name", ["torch", "triton", "pytorch-triton-rocm", "nvidia-cublas", "cuda-toolkit", "rocm-sdk"]
)
def test_what_moves_with_torch_is_its_family(name: str) -> None:
    assert is_torch_family(name)


@pytest.mark.parametrize("name", ["numpy", "setuptools", "torchmetrics", "sympy", "cudatext"])
def test_what_merely_sounds_like_torch_is_not_its_family(name: str) -> None:
    assert not is_torch_family(name)


# -- which release


def test_a_minor_is_its_newest_patch_and_the_default_baseline_the_newest_patch_of_the_minor_before(links: Path) -> None:
    for version in ("2.11.0", "2.12.0", "2.12.1", "2.13.0rc1", "2.13.0", "2.13.1", "2.14.0rc1"):
        make_torch(links, version)
    resolution = ask("2.13")
    assert {side: e.release.version for side, e in resolution.environments.items()} == {
        Side.BASELINE: "2.12.1",
        Side.CANDIDATE: "2.13.1",
    }
    assert resolution.pins == {Side.BASELINE: "2.12.1", Side.CANDIDATE: "2.13.1"}
    assert not resolution.aa
    assert resolution.refused == ()


def test_versions_are_ordered_as_versions_and_never_as_text(links: Path) -> None:
    for version in ("2.9.1", "2.10.0", "2.13.0"):
        make_torch(links, version)
    assert ask("2.13").environments[Side.BASELINE].release.version == "2.10.0"


def test_a_release_candidate_is_compared_with_the_last_stable_release(links: Path) -> None:
    for version in ("2.12.1", "2.13.0rc1", "2.13.0rc2"):
        make_torch(links, version)
    resolution = ask("2.13.0rc2")
    assert resolution.environments[Side.CANDIDATE].release.version == "2.13.0rc2"
    assert resolution.environments[Side.BASELINE].release.version == "2.12.1"


def test_a_nightly_is_the_newest_development_release_with_its_date(links: Path) -> None:
    for version in ("2.13.0", "2.14.0.dev20261129", "2.14.0.dev20261130+cpu"):
        make_torch(links, version)
    resolution = ask("nightly")
    assert resolution.environments[Side.CANDIDATE].release.version == "2.14.0.dev20261130"
    assert resolution.environments[Side.BASELINE].release.version == "2.13.0"
    assert resolution.pins[Side.CANDIDATE] == "2.14.0.dev20261130"


def test_a_nightly_that_no_index_serves_is_never_an_old_release(links: Path) -> None:
    make_torch(links, "2.13.0")
    with pytest.raises(UsageError, match=r"serves no nightly, its newest is 2\.13\.0"):
        ask("nightly")


def test_the_configured_baseline_is_taken_unless_one_is_named(links: Path) -> None:
    for version in ("2.11.0", "2.12.1", "2.13.0"):
        make_torch(links, version)
    assert ask("2.13", default="2.11").environments[Side.BASELINE].release.version == "2.11.0"
    assert ask("2.13", "2.12", default="2.11").environments[Side.BASELINE].release.version == "2.12.1"


@pytest.mark.parametrize("text", ["99.0", "99.0.0"])
def test_a_version_that_does_not_exist_names_the_newest_that_does(links: Path, text: str) -> None:
    make_torch(links, "2.12.1")
    make_torch(links, "2.13.0")
    with pytest.raises(UsageError, match=r"serves no such torch; the newest that it serves is 2\.13\.0") as refused:
        ask(text)
    assert f"--candidate '{text}'" in str(refused.value)
    assert refused.value.exit_code == EXIT_USAGE


def test_a_baseline_that_does_not_exist_is_named_as_the_baseline(links: Path) -> None:
    make_torch(links, "2.13.0")
    with pytest.raises(UsageError, match=r"--baseline '1\.0\.0'"):
        ask("2.13", "1.0.0")
    with pytest.raises(UsageError, match=r"--baseline \(by default\) 'torch<2\.13'"):
        ask("2.13")


def test_without_any_torch_the_index_settings_are_to_be_checked(links: Path) -> None:
    with pytest.raises(UsageError, match="check the index settings of pip and uv"):
        ask("2.13", "2.12")


def test_a_missing_companion_is_not_called_a_missing_torch(links: Path) -> None:
    make_torch(links, "2.12.1")
    make_torch(links, "2.13.0")
    next(links.glob("numpy-*")).unlink()
    with pytest.raises(EnvironmentFailed, match="what torch is installed with") as failed:
        ask("2.13")
    assert "numpy was not found" in failed.value.last_words


def test_a_yanked_release_is_refused_with_the_reason_and_left_out_of_its_minor(index: Index, tmp_path: Path) -> None:
    for version in ("2.12.0", "2.12.1", "2.13.0"):
        index.add(make_torch(tmp_path, version))
    index.yank(tmp_path / "torch-2.12.1-py3-none-any.whl", "wrong answers")
    with pytest.raises(UsageError, match=r"2\.12\.1.* is yanked .*wrong answers.*newest that it serves is 2\.13\.0"):
        ask("2.13", "2.12.1")
    assert ask("2.13").environments[Side.BASELINE].release.version == "2.12.0"


# -- one wheel on both sides


def test_one_wheel_on_both_sides_is_said_to_be_an_a_a_run(links: Path) -> None:
    make_torch(links, "2.13.0")
    resolution = ask("2.13", "2.13.0")
    assert resolution.aa
    assert "A/A run: both arms are the same wheel, torch-2.13.0-py3-none-any.whl" in resolution.notes[-1]
    one, other = resolution.environments.values()
    assert one.key == other.key


def test_one_version_in_two_builds_is_no_a_a_run(links: Path, tmp_path: Path) -> None:
    make_torch(links, "2.13.0")
    other = make_torch(tmp_path / "own", "2.13.0", files={"torch/patched.py": ""})
    resolution = ask(str(other), "2.13.0")
    assert not resolution.aa
    assert resolution.pins[Side.CANDIDATE] == str(other)
    release = resolution.environments[Side.CANDIDATE].release
    assert release.sha256 == hashlib.sha256(other.read_bytes()).hexdigest()
    assert release.origin == "a local folder"


# -- one build variant on both sides


def test_a_cpu_cell_takes_the_cpu_builds_where_both_releases_have_one(links: Path) -> None:
    for version in ("2.12.1", "2.12.1+cpu", "2.13.0", "2.13.0+cpu"):
        requires = () if "+" in version else ("cuda-toolkit==13.0.3",)
        make_torch(links, version, requires=requires)
    make_wheel(links, "cuda-toolkit", "13.0.3")
    resolution = ask("2.13")
    assert [e.release.identity for e in resolution.environments.values()] == ["2.12.1+cpu", "2.13.0+cpu"]
    assert "build variant cpu: the first that both arms have (cu130 passed over)" in resolution.notes[0]
    assert resolution.broken_control is None


def test_a_cpu_build_of_one_release_alone_is_passed_over(links: Path) -> None:
    make_torch(links, "2.12.1", requires=("cuda-toolkit==13.0.2",))
    make_torch(links, "2.13.0", requires=("cuda-toolkit==13.0.3",))
    make_torch(links, "2.13.0+cpu")
    for version in ("13.0.2", "13.0.3"):
        make_wheel(links, "cuda-toolkit", version)
    resolution = ask("2.13")
    assert [e.release.identity for e in resolution.environments.values()] == ["2.12.1+cu130", "2.13.0+cu130"]
    assert resolution.environments[Side.CANDIDATE].release.wheel == "torch-2.13.0-py3-none-any.whl"
    assert resolution.environments[Side.CANDIDATE].release.requirement == "torch===2.13.0"
    assert "cpu passed over" in resolution.notes[0]


def test_a_cuda_cell_takes_the_default_build_although_a_cpu_build_sorts_higher(links: Path) -> None:
    for version, toolkit in (("2.12.1", "13.0.2"), ("2.13.0", "13.0.3")):
        make_torch(links, version, requires=(f"cuda-toolkit=={toolkit}",))
        make_torch(links, f"{version}+cpu")
        make_wheel(links, "cuda-toolkit", toolkit)
    resolution = ask("2.13", backend="cuda")
    assert {e.release.variant for e in resolution.environments.values()} == {"cu130"}


def test_without_a_common_build_variant_the_control_is_broken_and_both_are_said(links: Path) -> None:
    make_torch(links, "2.12.1", requires=("nvidia-cuda-runtime-cu12==12.8.1",))
    make_torch(links, "2.13.0", requires=("cuda-toolkit==13.0.3",))
    make_wheel(links, "nvidia-cuda-runtime-cu12", "12.8.1")
    make_wheel(links, "cuda-toolkit", "13.0.3")
    resolution = ask("2.13")
    assert resolution.broken_control == "build variant differs"
    assert "baseline has cu128, candidate has cu130" in resolution.notes[0]
    assert set(resolution.environments) == set(Side)


# -- everything else equal


def test_a_shared_dependency_is_resolved_to_one_version_for_both_arms(links: Path) -> None:
    make_torch(links, "2.12.1", requires=("setuptools<82", "triton==3.7.0"))
    make_torch(links, "2.13.0", requires=("setuptools>=77", "triton==3.7.1"))
    for name, version in (("setuptools", "81.0"), ("setuptools", "84.2"), ("triton", "3.7.0"), ("triton", "3.7.1")):
        make_wheel(links, name, version)
    before, after = ask("2.13").environments.values()
    assert versions(before)["setuptools"] == versions(after)["setuptools"] == "81.0"
    assert (versions(before)["triton"], versions(after)["triton"]) == ("3.7.0", "3.7.1")


def test_a_dependency_that_only_the_candidate_holds_back_is_held_back_in_the_baseline_too(links: Path) -> None:
    make_torch(links, "2.12.1", requires=("sympy",))
    make_torch(links, "2.13.0", requires=("sympy<1.14",))
    for version in ("1.13", "1.14"):
        make_wheel(links, "sympy", version)
    assert {versions(e)["sympy"] for e in ask("2.13").environments.values()} == {"1.13"}


def test_a_dependency_of_one_release_alone_is_installed_beside_the_other_too(links: Path) -> None:
    make_torch(links, "2.12.1", requires=("networkx", "triton"))
    make_torch(links, "2.13.0", requires=("optree>=1",))
    for name in ("networkx", "triton", "optree"):
        make_wheel(links, name, "1.0")
    before, after = ask("2.13").environments.values()
    assert versions(before).keys() == versions(after).keys() | {"triton"}
    assert {"networkx", "optree"} <= versions(after).keys()


def test_a_release_candidate_of_torch_brings_no_release_candidate_of_anything_else(links: Path) -> None:
    make_torch(links, "2.12.1")
    make_torch(links, "2.13.0rc2")
    make_wheel(links, "numpy", "2.0rc1")
    assert {versions(e)["numpy"] for e in ask("2.13.0rc2").environments.values()} == {"1.0"}


def test_dependencies_that_cannot_be_equal_stay_apart(links: Path) -> None:
    make_torch(links, "2.12.1", requires=("sympy==1.13",))
    make_torch(links, "2.13.0", requires=("sympy==1.14",))
    for version in ("1.13", "1.14"):
        make_wheel(links, "sympy", version)
    assert [versions(e)["sympy"] for e in ask("2.13").environments.values()] == ["1.13", "1.14"]


# -- what this platform or this network cannot have


def test_a_release_without_a_wheel_for_this_platform_is_refused_with_the_installers_last_words(links: Path) -> None:
    make_torch(links, "2.12.1")
    make_torch(links, "2.13.0", tag=ELSEWHERE)
    resolution = ask("2.13.0")
    assert set(resolution.environments) == {Side.BASELINE}
    (refused,) = resolution.refused
    assert (refused.side, refused.platform) == (Side.CANDIDATE, HOST.platform)
    assert "no wheel for this platform" in refused.reason
    assert "win32" in refused.last_words


def test_a_minor_without_any_wheel_for_this_platform_is_said_at_once(links: Path) -> None:
    make_torch(links, "2.12.1")
    make_torch(links, "2.13.0", tag=ELSEWHERE)
    with pytest.raises(UsageError, match=f"no wheel for {HOST.platform}"):
        ask("2.13")


def test_the_wheel_of_the_asked_platform_is_locked_among_many(index: Index, tmp_path: Path) -> None:
    tag = f"cp{HOST.python.replace('.', '')}"
    platforms = {
        "x86_64-unknown-linux-gnu": f"{tag}-{tag}-manylinux_2_28_x86_64",
        "aarch64-unknown-linux-gnu": f"{tag}-{tag}-manylinux_2_28_aarch64",
        "aarch64-apple-darwin": f"{tag}-{tag}-macosx_14_0_arm64",
    }
    for version in ("2.12.1", "2.13.0"):
        for each in (*platforms.values(), f"cp39-cp39-{ELSEWHERE.rpartition('-')[2]}"):
            index.add(make_torch(tmp_path, version, tag=each))
    for platform, expected in platforms.items():
        resolution = resolve("2.13", None, platform=platform, python=HOST.python, backend="cpu")
        assert {e.release.wheel for e in resolution.environments.values()} == {
            f"torch-2.12.1-{expected}.whl",
            f"torch-2.13.0-{expected}.whl",
        }


def test_a_network_that_is_down_is_the_infrastructures_failure(links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    with pytest.raises(InfrastructureFailed, match=r"--candidate '2\.13': the index cannot be reached") as failed:
        ask("2.13")
    assert "127.0.0.1:9" in str(failed.value)
    assert failed.value.exit_code == EXIT_INFRASTRUCTURE


def test_an_installer_that_is_told_to_stay_offline_is_no_proof_that_a_release_does_not_exist(
    links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.delenv("UV_FIND_LINKS")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://index.invalid/simple")
    monkeypatch.setenv("UV_OFFLINE", "1")
    with pytest.raises(InfrastructureFailed, match="cannot be reached"):
        ask("2.13")


def test_an_index_that_refuses_the_password_is_not_said_to_lack_the_release(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(make_torch(tmp_path, "2.13.0"))
    index.credentials = "me:right"
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url.replace("://", "://me:wr0ng@"))
    with pytest.raises(InfrastructureFailed, match="the index refuses the credentials") as failed:
        ask("2.13")
    assert "wr0ng" not in str(failed.value)


def test_no_password_is_in_what_was_resolved(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2.12.1", "2.13.0"):
        index.add(make_torch(tmp_path, version))
    index.credentials = "me:s3cret"
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.with_credentials)
    resolution = ask("2.13")
    for environment in resolution.environments.values():
        assert "s3cret" not in environment.model_dump_json()
        assert environment.release.origin == "127.0.0.1"
    assert "s3cret" not in repr(resolution)


def test_a_wheel_by_url_is_taken_as_it_is_and_one_that_is_not_there_is_said(index: Index, tmp_path: Path) -> None:
    index.add(make_torch(tmp_path, "2.12.1"))
    address = index.add(make_torch(tmp_path, "2.13.0"))
    resolution = ask(address)
    release = resolution.environments[Side.CANDIDATE].release
    assert (release.version, release.origin, release.requirement) == ("2.13.0", "127.0.0.1", f"torch @ {address}")
    gone = address.replace("2.13.0", "2.13.9")
    with pytest.raises(UsageError, match="there is no wheel at") as refused:
        ask(gone, "2.12.1")
    assert gone in str(refused.value)

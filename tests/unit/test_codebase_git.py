"""A work tree is shipped as it is, and its index, files and .git stay as they were."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from lakeshore.codebase import git, shipping
from lakeshore.codebase.git import CodeUnavailable, Repository, clean_url
from lakeshore.codebase.unpack import unpack, verify
from lakeshore.errors import TransportError

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gitconfig").write_text(
        "[user]\nname = n\nemail = n@example.com\n[init]\ndefaultBranch = main\n"
        '[protocol "file"]\nallow = always\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def run(folder: Path, *args: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *args], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    run(folder, "init", "-q")
    (folder / "mod.py").write_text("x = 1\n")
    (folder / ".gitignore").write_text("ignored/\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    run(folder, "add", "-A")
    run(folder, "commit", "-qm", "one")
    return folder


def ship(folder: Path, into: Path | None = None) -> tuple[dict, frozenset[str], list[str]]:
    repository = Repository.find(folder)
    assert repository is not None
    with shipping.shipped(repository) as shipment:
        verify(shipment.archive, shipment.stamp["digest"])
        if into is not None:
            into.mkdir()
            assert unpack(shipment.archive, into) == len(shipment.paths)
        return shipment.stamp, shipment.paths, shipment.notes


def everything(folder: Path) -> dict[str, tuple[int, int, str]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_dir():
            stats = path.lstat()
            data = os.readlink(path) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path)] = (stats.st_mtime_ns, stats.st_ino, str(data))
    return found


def test_a_clean_tree_is_stamped_with_its_commit(repo: Path, tmp_path: Path) -> None:
    stamp, paths, notes = ship(repo, tmp_path / "out")
    head = run(repo, "rev-parse", "HEAD").strip()
    assert (stamp["commit"], stamp["base"], stamp["dirty"], stamp["branch"]) == (head, head, False, "main")
    assert stamp["tree"] == run(repo, "rev-parse", "HEAD^{tree}").strip()
    assert stamp["archiveKey"] == stamp["digest"].removeprefix("sha256:") + ".tar.gz"
    assert paths == {"mod.py", ".gitignore", "run.sh"}
    assert notes == []
    assert (tmp_path / "out/mod.py").read_text() == "x = 1\n"
    assert (tmp_path / "out/run.sh").stat().st_mode & stat.S_IXUSR
    again, _, _ = ship(repo)
    assert again == stamp


def test_a_dirty_tree_ships_as_it_is_and_nothing_in_the_repository_changes(
    repo: Path, tmp_path: Path
) -> None:
    (repo / "mod.py").write_text("x = 2\n")
    (repo / "new.py").write_text("y = 1\n")
    (repo / "ignored").mkdir()
    (repo / "ignored/secret").write_text("s")
    (repo / "run.sh").unlink()
    (repo / "staged.py").write_text("z = 1\n")
    run(repo, "add", "staged.py")
    for name in ("post-index-change", "pre-commit", "post-checkout"):
        hook = repo / ".git/hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n")
        hook.chmod(0o755)
    before = everything(repo)
    stamp, paths, _ = ship(repo, tmp_path / "out")
    assert everything(repo) == before
    assert not (tmp_path / "hook-ran").exists()
    assert paths == {"mod.py", ".gitignore", "new.py", "staged.py"}
    assert (tmp_path / "out/mod.py").read_text() == "x = 2\n"
    assert stamp["dirty"] is True
    assert stamp["commit"] == stamp["tree"] != run(repo, "rev-parse", "HEAD^{tree}").strip()
    assert stamp["base"] == run(repo, "rev-parse", "HEAD").strip()


def test_the_stamp_of_a_dirty_tree_is_that_of_the_commit_it_becomes(repo: Path) -> None:
    (repo / "mod.py").write_text("x = 2\n")
    dirty, _, _ = ship(repo)
    run(repo, "commit", "-qam", "two")
    clean, _, _ = ship(repo)
    assert (clean["tree"], clean["digest"]) == (dirty["tree"], dirty["digest"])
    assert clean["dirty"] is False


def test_what_was_edited_in_the_moment_of_its_commit_ships_as_it_is_now(repo: Path, tmp_path: Path) -> None:
    run(repo, "config", "core.trustctime", "false")
    moment = 1_700_000_000_000_000_000

    def written(text: str) -> None:
        (repo / "mod.py").write_text(text)
        os.utime(repo / "mod.py", ns=(moment, moment))

    written("x = 3\n")
    run(repo, "commit", "-qam", "two")
    os.utime(repo / ".git/index", ns=(moment, moment))
    clean, state = ship(repo)[0], Repository(repo).state()
    written("x = 4\n")  # git's index knows size and time, both as before: only the index's own time tells
    assert Repository(repo).state() != state
    stamp, _, _ = ship(repo, tmp_path / "out")
    assert (tmp_path / "out/mod.py").read_text() == "x = 4\n"
    assert (stamp["dirty"], clean["dirty"]) == (True, False)
    assert run(repo, "status", "--porcelain") == " M mod.py\n"


@pytest.mark.parametrize("flag", ["assume-unchanged", "skip-worktree"])
def test_what_git_was_told_not_to_look_at_ships_as_it_is(repo: Path, tmp_path: Path, flag: str) -> None:
    run(repo, "update-index", f"--{flag}", "mod.py")
    repository = Repository(repo)
    state = repository.state()
    (repo / "mod.py").write_text("x = 22\n")
    assert repository.state() != state
    before = everything(repo)
    assert ship(repo, tmp_path / "out")[0]["dirty"] is True
    assert everything(repo) == before
    assert (tmp_path / "out/mod.py").read_text() == "x = 22\n"


def test_what_a_sparse_checkout_left_out_ships_as_head_has_it(repo: Path, tmp_path: Path) -> None:
    (repo / "sub").mkdir()
    (repo / "sub/far.py").write_text("z = 1\n")
    run(repo, "add", "-A")
    run(repo, "commit", "-qm", "two")
    run(repo, "sparse-checkout", "set", "--no-cone", "/*", "!/sub/")
    assert not (repo / "sub/far.py").exists()
    assert ship(repo, tmp_path / "out")[0]["dirty"] is False
    assert (tmp_path / "out/sub/far.py").read_text() == "z = 1\n"


def test_a_lock_of_the_user_is_no_hindrance(repo: Path) -> None:
    (repo / "mod.py").write_text("x = 2\n")
    (repo / ".git/index.lock").touch()
    assert ship(repo)[0]["dirty"] is True
    assert (repo / ".git/index.lock").exists()


def test_lakeshoreignore_leaves_out_what_is_tracked_and_what_is_not(repo: Path) -> None:
    (repo / "data").mkdir()
    (repo / "data/big.bin").write_bytes(b"0" * 100)
    (repo / ".lakeshoreignore").write_text("data/\n*.sh\n")
    run(repo, "add", "-A")
    run(repo, "commit", "-qm", "two")
    stamp, paths, _ = ship(repo)
    assert paths == {"mod.py", ".gitignore", ".lakeshoreignore"}
    assert stamp["dirty"] is False
    (repo / "data/more.bin").write_bytes(b"1")
    assert ship(repo)[0] == stamp


def test_a_tree_over_the_limit_is_refused_naming_the_largest(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "TREE_BYTES", 50_000)
    (repo / "weights.bin").write_bytes(os.urandom(60_000))
    with pytest.raises(
        TransportError, match=r"60,\d+ bytes and the limit is 50,000.*'weights.bin'.*lakeshoreig"
    ):
        ship(repo)
    run(repo, "add", "-A")
    run(repo, "commit", "-qm", "big")
    with pytest.raises(TransportError, match=r"'weights.bin' \(60,000 bytes\)"):
        ship(repo)
    (repo / ".lakeshoreignore").write_text("weights.bin\n")
    assert "weights.bin" not in ship(repo)[1]
    monkeypatch.setattr(git, "TREE_FILES", 2)
    with pytest.raises(TransportError, match="files and the limit is 2"):
        ship(repo)


def test_what_a_worker_would_take_for_a_bomb_is_refused_here(repo: Path) -> None:
    (repo / "zeros.bin").write_bytes(bytes(40 << 20))
    with pytest.raises(TransportError, match=r"200 times.*'zeros.bin'"):
        ship(repo)


def test_links_submodules_nested_repositories_and_odd_names_stay_with_a_note(
    repo: Path, tmp_path: Path
) -> None:
    sub = tmp_path / "sub"
    shutil.copytree(repo, sub)
    run(repo, "submodule", "add", "-q", str(sub), "lib")
    shutil.copytree(sub, repo / "nested")
    (repo / "link.py").symlink_to("/etc/passwd")
    with open(os.fsencode(repo) + b"/caf\xe9.py", "w") as file:
        file.write("x")
    (repo / "aux.py").write_text("x")
    (repo / "MOD.py").write_text("x")
    stamp, paths, notes = ship(repo, tmp_path / "out")
    assert paths == {"MOD.py", ".gitignore", ".gitmodules", "run.sh"}  # of two names that are one, the first
    assert [each["path"] for each in stamp["submodules"]] == ["lib"]
    said = "\n".join(notes)
    for word in (
        "'nested/'",
        "'lib': a submodule",
        "'link.py': a symbolic link",
        "no UTF-8",
        "'aux.py'",
        "'mod.py'",
    ):
        assert word in said


def test_lfs_pointers_are_told(repo: Path) -> None:
    (repo / "model.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    assert any("LFS" in note and "'model.bin'" in note for note in ship(repo)[2])


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    run(tmp_path, "init", "-q", "new")
    (tmp_path / "new/mod.py").write_text("x = 1\n")
    stamp, paths, _ = ship(tmp_path / "new")
    assert paths == {"mod.py"}
    assert (stamp["dirty"], stamp["base"], stamp["commit"]) == (True, None, stamp["tree"])


def test_a_detached_head_a_linked_work_tree_and_a_shallow_clone(repo: Path, tmp_path: Path) -> None:
    first, _, _ = ship(repo)
    run(repo, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    (tmp_path / "linked/mod.py").write_text("x = 3\n")
    linked, _, _ = ship(tmp_path / "linked")
    assert (linked["branch"], linked["dirty"]) == (None, True)
    assert ship(repo)[0] == first
    run(tmp_path, "clone", "-q", "--depth", "1", f"file://{repo}", "shallow")
    shallow, _, _ = ship(tmp_path / "shallow")
    assert (shallow["commit"], shallow["digest"]) == (first["commit"], first["digest"])


def test_a_subfolder_ships_the_whole_and_a_nested_repository_itself(repo: Path) -> None:
    (repo / "pkg").mkdir()
    (repo / "pkg/a.py").write_text("")
    assert ship(repo / "pkg")[1] == {"mod.py", ".gitignore", "run.sh", "pkg/a.py"}
    run(repo, "init", "-q", "inner")
    (repo / "inner/b.py").write_text("")
    assert ship(repo / "inner")[1] == {"b.py"}


def test_git_variables_of_the_environment_lead_nowhere(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp, _, _ = ship(repo)
    run(tmp_path, "init", "-q", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert ship(repo)[0] == stamp


def test_outside_git_and_without_git_there_is_nothing_to_ship(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Repository.find(tmp_path) is None
    assert Repository.find(tmp_path / "absent") is None
    assert Repository.find(repo / ".git") is None
    run(tmp_path, "init", "-q", "--bare", "bare")
    assert Repository.find(tmp_path / "bare") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Repository.find(repo) is None


def test_a_repository_of_another_user_names_the_way(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setattr(git, "_KEPT", (*git._KEPT, "GIT_TEST"))
    with pytest.raises(CodeUnavailable, match=r"git config --global --add safe.directory"):
        Repository.find(repo)


def test_a_repository_that_lost_content_says_so(repo: Path) -> None:
    shutil.rmtree(repo / ".git/objects")
    (repo / ".git/objects").mkdir()
    with pytest.raises(CodeUnavailable):
        ship(repo)


def test_the_state_changes_with_every_change(repo: Path) -> None:
    repository = Repository.find(repo)
    assert repository is not None
    seen = [repository.state()]
    assert repository.state() == seen[0]

    def changed() -> None:
        now = repository.state()
        assert now not in seen
        seen.append(now)

    (repo / "mod.py").write_text("x = 22\n")
    changed()
    (repo / "mod.py").write_text("x = 333\n")
    changed()
    (repo / "deep/er").mkdir(parents=True)
    (repo / "deep/er/conf.json").write_text("{}")
    changed()
    run(repo, "add", "-A")
    changed()
    run(repo, "commit", "-qm", "two")
    changed()
    (repo / "mod.py").unlink()
    changed()


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://user:s3cret@example.com/a/b.git", "https://example.com/a/b.git"),
        ("https://s3cret@example.com:8443/a.git", "https://example.com:8443/a.git"),
        ("https://example.com/a.git?access_token=s3cret#s3cret", "https://example.com/a.git"),
        ("https://oauth2:s3cret@[::1]/a.git", "https://[::1]/a.git"),
        ("https://a@b:s3cret@example.com/a", "https://example.com/a"),
        ("ssh://git:s3cret@example.com/a.git", "ssh://git@example.com/a.git"),
        ("git@example.com:a/b.git", "git@example.com:a/b.git"),
        ("git:s3cret@example.com:a/b.git", "git@example.com:a/b.git"),
        ("/srv/git/a.git", "/srv/git/a.git"),
        ("https://[s3cret", ""),
        ("  https://example.com/a.git\n", "https://example.com/a.git"),
    ],
)
def test_a_remote_is_told_without_its_secrets(url: str, clean: str, repo: Path) -> None:
    assert clean_url(url) == clean
    if not url.startswith("  "):
        run(repo, "remote", "add", "origin", url)
        stamp, _, _ = ship(repo)
        assert stamp["remote"] == (clean or "local")
        assert "s3cret" not in repr(stamp)


def test_the_roots_are_the_modules_own_and_those_of_the_path(tmp_path: Path) -> None:
    top = tmp_path / "repo"
    (top / "src/pkg/sub").mkdir(parents=True)
    (top / ".venv/lib/site-packages").mkdir(parents=True)
    file = top / "src/pkg/sub/mod.py"
    search = [str(top), str(tmp_path), str(top / ".venv/lib/site-packages")]
    assert shipping.roots(top, file, "pkg.sub.mod", search, package=False) == ["src", "."]
    assert shipping.roots(top, file.with_name("__init__.py"), "pkg.sub", [], package=True) == ["src"]
    assert shipping.roots(top, file, "other.mod", [], package=False) is None
    assert shipping.roots(top, file, "pkg.sub.name", [], package=False) is None
    assert shipping.roots(top / "src/pkg", file, "pkg.sub.mod", [], package=False) is None


def test_packing_reads_only_what_git_has(repo: Path) -> None:
    repository = Repository.find(repo)
    assert repository is not None
    with shipping.shipped(repository) as shipment:
        (repo / "mod.py").write_text("later\n")
        out = io.BytesIO(shipment.archive.read())
    verify(out, shipment.stamp["digest"])


def test_a_sparse_checkout_ships_what_is_not_checked_out_too(repo: Path) -> None:
    (repo / "sub").mkdir()
    (repo / "sub/n.py").write_text("y = 2\n")
    run(repo, "add", "-A")
    run(repo, "commit", "-qm", "two")
    run(repo, "sparse-checkout", "set", "--no-cone", "mod.py")
    assert not (repo / "sub").exists()
    stamp, paths, notes = ship(repo)
    assert "sub/n.py" in paths
    assert (stamp["dirty"], notes) == (False, [])


def test_a_partial_clone_says_how_to_be_whole(repo: Path, tmp_path: Path) -> None:
    (repo / "sub").mkdir()
    (repo / "sub/n.py").write_text("y = 2\n")
    run(repo, "add", "-A")
    run(repo, "commit", "-qm", "two")
    run(repo, "config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "clone"
    run(tmp_path, "clone", "-q", "--sparse", "--filter=blob:none", f"file://{repo}", str(clone))
    with pytest.raises(CodeUnavailable, match="partial clone.*--refetch --no-filter"):
        ship(clone)
    run(clone, "fetch", "-q", "--refetch", "--no-filter")
    assert "sub/n.py" in ship(clone)[1]


def test_a_merge_that_is_under_way_ships_as_it_stands(repo: Path, tmp_path: Path) -> None:
    run(repo, "checkout", "-qb", "other")
    (repo / "mod.py").write_text("x = 2\n")
    run(repo, "commit", "-qam", "two")
    run(repo, "checkout", "-q", "main")
    (repo / "mod.py").write_text("x = 3\n")
    run(repo, "commit", "-qam", "three")
    assert subprocess.run(["git", "-C", str(repo), "merge", "other"], capture_output=True).returncode
    (repo / "new.py").write_text("")
    run(repo, "add", "-N", "new.py")
    stamp, paths, _ = ship(repo, tmp_path / "out")
    assert "new.py" in paths
    assert stamp["dirty"]
    assert "<<<<<<<" in (tmp_path / "out/mod.py").read_text()
    assert run(repo, "status", "--porcelain") == "UU mod.py\n A new.py\n"


def test_line_ends_ship_as_git_keeps_them(repo: Path, tmp_path: Path) -> None:
    (repo / ".gitattributes").write_text("*.py text eol=crlf\n")
    (repo / "mod.py").write_bytes(b"x = 1\r\ny = 2\r\n")
    ship(repo, tmp_path / "out")
    assert (tmp_path / "out/mod.py").read_bytes() == b"x = 1\ny = 2\n"
    assert (repo / "mod.py").read_bytes() == b"x = 1\r\ny = 2\r\n"


@pytest.mark.parametrize("place", [".git", ".git/objects", "bare", "gone"])
def test_where_there_is_no_work_tree_nothing_ships(repo: Path, place: str) -> None:
    run(repo, "clone", "-q", "--bare", str(repo), str(repo / "bare"))
    (repo / "gone").mkdir()
    (repo / "gone/.git").write_text("gitdir: /nowhere\n")
    assert Repository.find(repo / place) is None


def test_a_name_in_another_unicode_form_ships_alone_as_it_is(repo: Path) -> None:
    (repo / "cafe\u0301.txt").write_text("")
    assert "cafe\u0301.txt" in ship(repo)[1]
    (repo / "caf\u00e9.txt").write_text("")
    _, paths, notes = ship(repo)
    assert len({"cafe\u0301.txt", "caf\u00e9.txt"} & paths) == 1
    assert "Unicode forms" in notes[0]

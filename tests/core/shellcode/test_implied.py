"""Files that programs read without being told (P3)."""

from __future__ import annotations

import shutil

import pytest

from holdfast.core.shellcode.facts import Command, Surroundings, analyse
from holdfast.core.shellcode.implied import FILES_MAX, implied
from holdfast.core.shellcode.programs import programs
from holdfast.core.shellcode.words import Word
from holdfast.host.policy.shfmt import Parser


def command(line: str) -> Command:
    name, *words = line.split()
    return Command(
        name, tuple(Word(word, word) if word != "?" else Word(None, "?") for word in words)
    )


def of(line: str, cwd: str | None = "/home/u/p", home: str | None = "/home/u") -> tuple[str, ...]:
    return implied(command(line), cwd, home)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("make", "/home/u/p/Makefile"),
        ("gmake -j4 all", "/home/u/p/GNUmakefile"),
        ("make -C sub", "/home/u/p/sub/Makefile"),
        ("make -Csub", "/home/u/p/sub/Makefile"),
        ("make --directory=/x all", "/x/Makefile"),
        ("make -f other.mk", "/home/u/p/other.mk"),
        ("git commit -m x", "/home/u/p/.git/hooks/pre-commit"),
        ("git commit", "/home/u/.git/hooks/commit-msg"),
        ("git -C sub push", "/home/u/p/sub/.git/hooks/pre-push"),
        ("git status", "/home/u/p/.git/config"),
        ("git log", "/home/u/.gitconfig"),
        ("git checkout main", "/home/u/p/.git/hooks/post-checkout"),
        ("git ?", "/home/u/p/.git/hooks/pre-commit"),
        ("git rebase main", "/home/u/p/.git/hooks/pre-rebase"),
        ("git am x.patch", "/home/u/p/.git/hooks/applypatch-msg"),
        ("git add .", "/home/u/p/.gitattributes"),
        ("git submodule update", "/home/u/p/.gitmodules"),
        ("npm test", "/home/u/p/package.json"),
        ("npm run build", "/home/u/package.json"),
        ("yarn", "/home/u/p/.yarnrc.yml"),
        ("pytest -q tests", "/home/u/p/conftest.py"),
        ("python3 -m pytest", "/home/u/p/conftest.py"),
        ("python -m tool.sub x", "/home/u/p/tool/sub.py"),
        ("python3.11 script.py a", "/home/u/p/script.py"),
        ("pip install .", "/home/u/p/setup.py"),
        ("pip install -r req.txt", "/home/u/p/req.txt"),
        ("cargo build", "/home/u/p/build.rs"),
        ("docker build .", "/home/u/p/Dockerfile"),
        ("docker build -f D .", "/home/u/p/D"),
        ("docker compose up", "/home/u/p/compose.yaml"),
        ("just", "/home/u/p/justfile"),
        ("ssh there", "/home/u/.ssh/config"),
        ("ssh -F mine there", "/home/u/p/mine"),
        ("vim x", "/home/u/.vimrc"),
        ("bash script.sh x", "/home/u/p/script.sh"),
        ("bash", "/home/u/.bashrc"),
        ("zsh script", "/home/u/.zshenv"),
        (". ./env", "/home/u/p/env"),
        ("source env", "/home/u/p/env"),
        ("direnv allow", "/home/u/p/.envrc"),
        ("crontab tab", "/home/u/p/tab"),
        ("at -f job now", "/home/u/p/job"),
        ("tmux new", "/home/u/.tmux.conf"),
        ("terraform apply", "/home/u/p/main.tf"),
        ("terraform apply", "/home/u/p"),
        ("ansible-playbook site.yml", "/home/u/p/site.yml"),
        ("cmake -P x.cmake", "/home/u/p/x.cmake"),
        ("mvn package", "/home/u/p/pom.xml"),
        ("rake", "/home/u/p/Rakefile"),
    ],
)
def test_p3_files_that_a_program_reads_implicitly_are_named(line: str, expected: str) -> None:
    assert expected in of(line)


@pytest.mark.parametrize(
    ("line", "not_read"),
    [
        ("make -f other.mk", "/home/u/p/Makefile"),
        ("make -C sub", "/home/u/p/Makefile"),
        ("git status", "/home/u/p/.git/hooks/pre-commit"),
        ("bash script.sh", "/home/u/.bashrc"),
        ("docker build -f D .", "/home/u/p/Dockerfile"),
        ("docker ps", "/home/u/p/Dockerfile"),
        ("python3 -c pass", "/home/u/p/pass"),
        ("ssh -F mine there", "/home/u/p/there"),
        ("crontab -", "/home/u/p/-"),
    ],
)
def test_files_that_a_program_does_not_read_are_not_named(line: str, not_read: str) -> None:
    assert not_read not in of(line)


def test_p3_an_unknown_word_hides_no_file() -> None:
    assert "/home/u/p/Makefile" in of("make -f ?"), (
        "the file that replaces them is not known: they may be it"
    )
    assert of("make", None) == () and of("git log", None) == tuple(
        f"/home/u/{name}" for name in (".gitconfig", ".config/git/config", ".config/git/attributes")
    )
    assert of("make -C ?") == () and of("make -f /abs/x", None) == ("/abs/x",)
    assert of("unheard-of x") == () and of("git log", "/home/u/p", None)


def test_the_search_upwards_ends_at_the_root_and_is_bounded() -> None:
    assert of("npm", "/", None) == ("/package.json", "/.npmrc")
    deep = "/d" * 500
    assert len(of("git commit", deep)) <= FILES_MAX and f"{deep}/.git/hooks/pre-commit" in of(
        "git commit", deep
    )


def test_every_row_has_a_reason_and_a_name() -> None:
    for name, row in programs().reads.items():
        assert row.why, name
        assert row.here or row.up or row.home or row.named or row.besides or row.script, name


@pytest.mark.skipif(shutil.which("shfmt") is None, reason="needs shfmt")
def test_p3_through_wrappers_and_quotes() -> None:
    (found,) = analyse(
        "sudo env A=b 'ma'ke -C sub", Parser(), Surroundings("/p", "/home/u")
    ).commands
    assert implied(found, "/p") == tuple(
        f"/p/sub/{name}" for name in ("GNUmakefile", "makefile", "Makefile", "BSDmakefile")
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("make -j -f evil.mk", "/home/u/p/evil.mk"),
        ("make -l -f evil.mk", "/home/u/p/evil.mk"),
        ("sed -i -f evil.sed file", "/home/u/p/evil.sed"),
        ("ruby -C sub run.rb", "/home/u/p/sub/run.rb"),
        ("bash +o posix evil.sh", "/home/u/p/evil.sh"),
        ("git --git-dir=/evil status", "/evil/config"),
        ("git --git-dir /evil commit", "/evil/hooks/pre-commit"),
        ("git --git-dir evil commit", "/home/u/p/evil/hooks/pre-commit"),
        ("docker --context x build .", "/home/u/p/Dockerfile"),
        ("docker build -t x sub", "/home/u/p/sub/Dockerfile"),
        ("podman build ../other", "/home/u/other/Containerfile"),
        ("cmake ../source", "/home/u/source/CMakeLists.txt"),
        ("meson setup build ../source", "/home/u/source/meson.build"),
        ("pip install ./package", "/home/u/p/package/setup.py"),
        ("pytest other/tests/test_x.py", "/home/u/p/other/tests/conftest.py"),
        ("pytest ../other", "/home/u/other/conftest.py"),
        ("npm install ../package", "/home/u/package/package.json"),
        ("helm install name ./chart", "/home/u/p/chart/Chart.yaml"),
    ],
)
def test_p3_no_option_and_no_directory_that_is_named_hides_a_file(line: str, expected: str) -> None:
    assert expected in of(line)

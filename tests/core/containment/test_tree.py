"""The whole tree: its order, the refusals, and the line that describes it."""

from __future__ import annotations

import pytest

from holdfast.core.containment import git_identity, variables, words
from holdfast.core.containment.entries import Entry, Kind
from holdfast.core.containment.terms import Share
from holdfast.core.containment.tree import Parts, Tree, assemble, check_share, masked, visible
from holdfast.core.containment.workspace import Protected, WorkTree
from holdfast.model.errors import Refused
from holdfast.wire import spawning
from tests.support.containment.file_table import FileTable

HOME = "/home/u"
APP = f"{HOME}/src/app"
STATE = f"{HOME}/.local/state/holdfast"
PROTECTED = Protected(HOME, STATE, f"{HOME}/.config/holdfast", (f"{HOME}/venv",))
OWN = f"{STATE}/contained/s"
FILES = FileTable(
    {
        "/usr/bin/x": "x",
        "/bin": "-> usr/bin",
        "/etc/passwd": "x",
        f"{APP}/.git/HEAD": "x",
        f"{APP}/.git/hooks": None,
        f"{HOME}/.nvm/versions/node/v22/bin/node": "x",
        f"{HOME}/src/lib/x": "x",
        f"{HOME}/agent.sock": "!socket",
        f"{HOME}/pipe": "!fifo",
        f"{HOME}/venv/x": "x",
        "/dev/sda": "!device",
    }
)
PATH = (f"{HOME}/.nvm/versions/node/v22/bin", "/usr/bin", "/bin", "/gone")
PARTS = Parts(
    PROTECTED,
    False,
    PATH,
    OWN,
    OWN,
    WorkTree(APP, f"{APP}/.git"),
    (Share(f"{HOME}/src"),),
    WorkTree(APP, f"{APP}/.git"),
)


def built(parts: Parts = PARTS) -> Tree:
    return assemble(FILES, parts)


def at(tree: Tree, target: str) -> int:
    return max(n for n, entry in enumerate(tree.entries) if entry.target == target)


def test_the_numbers_of_the_kinds_are_those_of_the_wire() -> None:
    for kind in Kind:
        assert getattr(spawning, f"MOUNT_{kind.name}") == kind


def test_deeper_places_come_later() -> None:
    tree = built()
    order = ["/usr", HOME, f"{HOME}/.nvm", f"{HOME}/src", APP, f"{APP}/.git", f"{APP}/.git/hooks"]
    found = [at(tree, place) for place in order]
    assert found == sorted(found)
    kinds = [tree.entries[n].kind for n in found]
    W, R = Kind.WRITE, Kind.READ
    assert kinds == [R, W, R, R, W, W, Kind.FIXED]


def test_t4_own_directories_come_from_the_state_and_nothing_else_of_it() -> None:
    tree = built()
    own = {e.target: e.source for e in tree.entries if e.source.startswith(STATE)}
    assert own == {
        HOME: f"{OWN}/home",
        "/tmp": f"{OWN}/tmp",
        "/var/tmp": f"{OWN}/vartmp",
        "/run": f"{OWN}/run",
    }
    closed = (STATE, f"{HOME}/.config", f"{HOME}/.local", "/home", "/")
    assert not any(e.source in closed for e in tree.entries)


def test_spared_hooks_stay_writable_and_masks_come_after_what_they_cover() -> None:
    hooks = (f"{APP}/.git/hooks",)
    tree = built(PARTS._replace(spared=hooks, read="/r", written="/w"))
    assert f"{APP}/.git/hooks" not in {e.target for e in tree.entries}
    assert masked(tree, [f"{APP}/s"]) == (*tree.entries, Entry(Kind.EMPTY, f"{APP}/s"))
    assert tree.entries[-2:] == (
        Entry(Kind.READ, "/.holdfast/session", "/r"),
        Entry(Kind.WRITE, "/.holdfast/session/own", "/w"),
    )


@pytest.mark.parametrize(
    ("path", "writable"),
    [
        ("/", False),
        ("/home", False),
        (HOME, False),
        (f"{HOME}/.local", False),
        (f"{HOME}/.config", False),
        (STATE, False),
        (f"{STATE}/run", False),
        (f"{HOME}/agent.sock", False),
        (f"{HOME}/pipe", False),
        ("/dev/sda", False),
        ("/gone", False),
        ("/usr", True),
        ("/etc", True),
        (f"{HOME}/venv", True),
    ],
)
def test_t4_shares_that_are_refused(path: str, writable: bool) -> None:
    files = FileTable({**FILES.content, f"{STATE}/run/x": "x", f"{HOME}/.config/holdfast/c": "x"})
    with pytest.raises(Refused) as refused:
        check_share(Share(path, writable), files, PROTECTED)
    assert refused.value.recover


@pytest.mark.parametrize(
    ("path", "writable"), [(f"{HOME}/src", True), (f"{HOME}/venv", False), ("/usr", False)]
)
def test_shares_that_are_allowed(path: str, writable: bool) -> None:
    check_share(Share(path, writable), FILES, PROTECTED)


def test_too_many_entries_are_refused() -> None:
    with pytest.raises(Refused):
        masked(built(), [f"{APP}/{n}" for n in range(600)])


def test_installers_use_the_own_home_and_its_programs_come_last() -> None:
    found = variables.installers(HOME, nvm=False)
    assert all(place.startswith(f"{HOME}/.local/session") for place in found.values())
    assert found["UV_TOOL_BIN_DIR"] == found["PIPX_BIN_DIR"] == f"{HOME}/.local/session/bin"
    assert found.keys() - variables.installers(HOME, nvm=True).keys() == {"NPM_CONFIG_PREFIX"}


def test_the_path_inside_has_the_entries_that_exist_there() -> None:
    tree = built()
    given = {
        "PATH": ":".join((*PATH, f"{HOME}/bin", "")),
        "HOME": "/evil",
        "SSH_AUTH_SOCK": "/tmp/agent",
        "DOCKER_HOST": "unix:///run/docker.sock",
        "VSCODE_IPC_HOOK_CLI": "/run/x",
        "XDG_CACHE_HOME": "/data/cache",
        "XDG_DATA_HOME": f"{HOME}/.share",
        "LANG": "C",
    }
    found = variables.inside(
        given, HOME, 1000, lambda path: visible(tree, path, bool(FILES.kind(path)))
    )
    assert found == {
        "PATH": f"{HOME}/.nvm/versions/node/v22/bin:/usr/bin:/bin:{HOME}/.local/session/bin",
        "HOME": HOME,
        "XDG_RUNTIME_DIR": "/run/user/1000",
        "XDG_DATA_HOME": f"{HOME}/.share",
        "LANG": "C",
    }


def test_one_line_says_what_a_session_sees_and_writes() -> None:
    tree = built(PARTS._replace(share=()))
    assert words.described(HOME, (*tree.tools, *tree.read), tree.written, (), "host") == (
        "sees the system, ~/.nvm and its own home; writes ~/src/app and its own home; "
        "network: the machine's"
    )
    many = [f"{HOME}/{n}" for n in range(9)]
    line = words.described(HOME, many, (), ("docker",), "none")
    assert line == (
        "sees the system, ~/0, ~/1, ~/2, 6 more places and its own home; writes its own home; "
        "network: none; open doors: docker"
    )


def test_only_name_and_address_of_git_are_carried_over() -> None:
    one = '[core]\n\teditor = evil\n[user]\n name = "A \\"B\\" C" # real\n email=a@b.c ; mine\n'
    two = '[User] EMAIL = second@b.c\n[user "x"]\nname = other\n[alias]\nst = !sh\n'
    found = git_identity.read((one, two))
    assert found == {"name": 'A "B" C', "email": "second@b.c"}
    written = git_identity.write(found)
    assert git_identity.read((written,)) == found
    assert "evil" not in written and git_identity.write({}) == ""

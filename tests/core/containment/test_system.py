"""The system part of a contained session's tree: read-only, and for root only public files."""

from __future__ import annotations

import pytest

from holdfast.core.containment.entries import Entry, Kind
from holdfast.core.containment.system import NIX_DAEMON, linked_files, system
from tests.support.containment.file_table import FileTable

MACHINE = {
    "/usr/bin/env": "x",
    "/bin": "-> usr/bin",
    "/lib": None,
    "/opt/tool/bin/x": "x",
    "/opt/secret/key": "x",
    "/etc/passwd": "x",
    "/etc/shadow": "x",
    "/etc/sudoers": "x",
    "/etc/ssh/ssh_host_ed25519_key": "x",
    "/etc/ssh/ssh_config": "x",
    "/etc/ssl/certs/ca.pem": "x",
    "/etc/ssl/private/key.pem": "x",
    "/etc/profile.d/a.sh": "x",
    "/etc/profile.d/token.sh": "x",
    "/etc/localtime": "-> /usr/share/zoneinfo/UTC",
    "/usr/share/zoneinfo/UTC": "x",
    "/etc/resolv.conf": "-> ../run/systemd/resolve/stub-resolv.conf",
    "/run/systemd/resolve/stub-resolv.conf": "nameserver 127.0.0.53",
    "/var/lib/dpkg/status": "x",
    "/sys/devices/system/cpu": None,
    "/sys/kernel/debug": None,
    "/home/u/x": "x",
    "/root/x": "x",
}
CLOSED = ("/etc/shadow", "/etc/profile.d/token.sh", "/opt/secret")


def targets(entries: list[Entry], kind: Kind) -> set[str]:
    return {entry.target for entry in entries if entry.kind is kind}


def test_t4_the_system_is_read_only_and_nothing_else_is_there() -> None:
    found = system(FileTable(MACHINE), root=False)
    assert {e.kind for e in found} <= {Kind.READ, Kind.LINK, Kind.EMPTY}
    assert targets(found, Kind.READ) == {
        *("/usr", "/lib", "/opt", "/etc", "/var/lib/dpkg", "/sys/devices/system/cpu")
    }
    assert Entry(Kind.LINK, "/bin", "usr/bin") in found
    assert Entry(Kind.LINK, "/var/run", "/run") in found


def test_t4_root_shows_files_of_etc_by_list_and_only_public_ones() -> None:
    found = system(FileTable(MACHINE, CLOSED), root=True)
    etc = {t for t in targets(found, Kind.READ) if t.startswith("/etc")}
    # Not /etc/profile.d, which has token.sh: a cover would go when the machine replaces that file.
    assert etc == {*("/etc/passwd", "/etc/ssh/ssh_config", "/etc/ssl/certs", "/etc/profile.d/a.sh")}
    assert not targets(found, Kind.EMPTY)
    assert Entry(Kind.LINK, "/etc/localtime", "/usr/share/zoneinfo/UTC") in found
    opt = {t for t in targets(found, Kind.READ) if t.startswith("/opt")}
    assert opt == {"/opt/tool"}


def test_a_public_name_of_the_list_that_is_closed_stays_away() -> None:
    found = system(FileTable(MACHINE, ("/etc/passwd",)), root=True)
    assert "/etc/passwd" not in {entry.target for entry in found}


def test_what_etc_points_to_in_run_is_there() -> None:
    files = FileTable(MACHINE)
    for root in (False, True):
        shown = system(files, root)
        resolver = "/run/systemd/resolve/stub-resolv.conf"
        assert linked_files(files, shown) == [Entry(Kind.READ, resolver, resolver)]


def test_t4_the_nix_daemon_is_out_of_reach() -> None:
    files = FileTable(MACHINE | {"/nix/store": None, f"{NIX_DAEMON}/socket": "!socket"})
    found = system(files, root=False)
    assert found.index(Entry(Kind.EMPTY, NIX_DAEMON)) > found.index(
        Entry(Kind.READ, "/nix", "/nix")
    )


@pytest.mark.parametrize("root", [False, True])
def test_t4_snapd_is_out_of_reach(root: bool) -> None:
    """Files of snaps are shown, read-only. The sockets of snapd lie in /run, which is not shown."""
    snaps = {"/snap/bin/tool": "-> /usr/bin/snap", "/var/lib/snapd/snap/x": "x"}
    found = system(FileTable(MACHINE | snaps | {"/run/snapd.socket": "!socket"}), root)
    assert {"/snap", "/var/lib/snapd/snap"} <= targets(found, Kind.READ)
    assert not any(e.target == "/run" or e.target.startswith("/run/snapd") for e in found)
    assert "/snap" not in targets(system(FileTable(MACHINE), root), Kind.READ)


def test_root_shows_what_browsers_and_manuals_read_in_etc() -> None:
    # Debian's start script of Chromium fails without /etc/chromium.d.
    files = {"/etc/chromium.d/default-flags": "x", "/etc/groff/man.local": "x"}
    found = system(FileTable(MACHINE | files, CLOSED), root=True)
    assert {"/etc/chromium.d", "/etc/groff"} <= targets(found, Kind.READ)


def test_t4_root_shows_no_token_of_a_browser_and_no_display_manager() -> None:
    files = {
        "/etc/opt/chrome/policies/enrollment/CloudManagementEnrollmentToken": "secret",
        "/etc/chromium/policies/enrollment/CloudManagementEnrollmentToken": "secret",
        "/etc/chromium/policies/managed/one.json": "{}",
        "/etc/X11/xdm/authdir/key": "secret",
        "/etc/X11/app-defaults/XTerm": "x",
        "/etc/mercurial/hgrc": "secret",
        "/etc/gemrc": "secret",
    }
    shown = targets(system(FileTable(MACHINE | files, CLOSED), root=True), Kind.READ)
    assert {"/etc/chromium/policies/managed", "/etc/X11/app-defaults"} <= shown
    secret = [path for path, text in files.items() if text == "secret"]
    assert not [p for p in secret if any(p == top or p.startswith(f"{top}/") for top in shown)]

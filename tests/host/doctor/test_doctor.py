"""The doctor as root and as an ordinary user, with broken checks, and its leftovers."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from holdfast.host.doctor import gates, home, isolation, machine, report
from holdfast.host.doctor.check import Check, Derived, Outcome, Surroundings
from holdfast.host.doctor.libc import forked
from holdfast.host.doctor.report import Finding, format_findings, run_doctor, to_json
from holdfast.host.runtime import criu
from holdfast.model.errors import Impossible
from tests.support.ordinary_user import ordinary_user

KEYS = ["id", "title", "ok", "detail", "fix", "needed_for"]
TOTAL_LIMIT_S = 30.0  # a second and less on an idle machine
OURS = f"holdfast-doctor-{os.getpid()}-"  # another run on this machine has its own
IDS = {
    "python",
    "kernel",
    "pty",
    "pty-limit",
    "memfd",
    "pidfd",
    "subreaper",
    "open-files",
    "inotify",
    "sqlite",
    "emulator",
    "shells",
    "service",
    "optional",
    "home",
    "socket-path",
    "filesystem",
    "disk",
    "operator-names",
    "user-namespaces",
    "root-namespaces",
    "file-tree",
    "own-network",
    "cgroup-freeze",
    "limits",
    "halt",
    "criu",
    "checkpoint",
    "exec-gate-seccomp",
    "exec-gate-fanotify",
    "file-events",
    "process-events",
    "bpf",
    "waits-visible",
    "tracing-closed",
    "tiocsti-closed",
    "shell-grammar",
}


def private(path: Path) -> Path:
    path.chmod(0o700)
    return path


def check_here(findings: list[dict[str, object]]) -> dict[str, dict[str, object]]:
    assert {finding["id"] for finding in findings} == IDS
    for finding in findings:
        assert list(finding) == KEYS
        assert finding["detail"], finding
        assert finding["needed_for"], finding
        assert "the check failed" not in str(finding["detail"]), finding
        if finding["ok"] is False:
            assert finding["fix"], finding
    by_id = {str(finding["id"]): finding for finding in findings}
    for must in (
        "python",
        "kernel",
        "pty",
        "memfd",
        "pidfd",
        "subreaper",
        "home",
        "socket-path",
        "shells",
    ):
        assert by_id[must]["ok"] is True, by_id[must]
    return by_id


# --- here -----------------------------------------------------------------------------------------


@pytest.mark.skipif(os.getuid() != 0, reason="the kernel may report events to root only")
def test_more_forks_than_the_check_can_read_are_reported_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def storm(work: Callable[[], None]) -> int:
        subprocess.run(["sh", "-c", "for i in $(seq 400); do (:); done"], check=True)
        return forked(work)

    monkeypatch.setattr(gates, "forked", storm)
    found = gates._process_events(Surroundings(None, 0, ""))
    assert found.ok and "faster than this check reads" in found.detail


def test_every_question_has_an_answer_with_its_reason(short_path: Path) -> None:
    began = time.monotonic()
    findings = run_doctor(private(short_path))
    took = time.monotonic() - began
    check_here(json.loads(json.dumps(to_json(findings))))
    assert took < TOTAL_LIMIT_S, f"took {took:.2f} s"


def test_every_question_has_an_answer_for_an_ordinary_user() -> None:
    with ordinary_user() as user:
        python = user.python("holdfast", "apsw")
        done = user.run(
            [
                python,
                "-c",
                "import json, time\nfrom pathlib import Path\n"
                "from holdfast.host.doctor.report import run_doctor, to_json\n"
                "began = time.monotonic(); found = run_doctor(Path.home())\n"
                "print(json.dumps([time.monotonic() - began, to_json(found)]))",
            ]
        )
        assert done is not None
        assert done.returncode == 0, done.stderr
        took, findings = json.loads(done.stdout)
        by_id = check_here(findings)
        assert took < TOTAL_LIMIT_S
        assert by_id["root-namespaces"]["ok"] is None
        assert by_id["exec-gate-fanotify"]["ok"] is False
        assert list(user.home.iterdir()) == []


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    def state() -> tuple[object, ...]:
        groups = [
            f"{at}/{name}"
            for at, names, _ in os.walk("/sys/fs/cgroup")
            for name in names
            if name.startswith(OURS)
        ]
        temporary = [name for name in os.listdir("/tmp") if name.startswith(OURS)]
        children = Path("/proc/thread-self/children").read_text()
        namespaces = [
            os.readlink(f"/proc/self/ns/{name}") for name in ("pid_for_children", "mnt", "user")
        ]
        return (
            groups,
            temporary,
            children,
            sorted(os.listdir("/proc/self/fd")),
            list(tmp_path.iterdir()),
            os.getuid(),
            namespaces,
        )

    before = state()
    status = Path("/proc/self/status").read_text()
    run_doctor(private(tmp_path))
    assert state() == before
    for line in ("Seccomp", "NoNewPrivs"):
        wanted = [found for found in status.splitlines() if found.startswith(line + ":")]
        assert [
            found
            for found in Path("/proc/self/status").read_text().splitlines()
            if found.startswith(line + ":")
        ] == wanted


# --- checks that break ----------------------------------------------------------------------------


def raises(_: Surroundings) -> Outcome:
    raise RuntimeError("a broken check")


def hangs(_: Surroundings) -> Outcome:
    while True:
        signal.pause()


def dies(_: Surroundings) -> Outcome:
    os.kill(os.getpid(), signal.SIGKILL)
    return Outcome(True, "not reached")


def prints(_: Surroundings) -> Outcome:
    os.write(1, b"noise")
    return Outcome(True, "x" * 50_000)


def one(run: Check | Derived) -> Finding:
    (found,) = run_doctor(None, [run])
    return found


def test_a_check_that_raises_is_unknown_with_its_reason() -> None:
    found = one(Check("x", "X", "tests", raises))
    assert (found.ok, found.detail) == (None, "the check failed: RuntimeError: a broken check")


def test_a_check_that_hangs_is_unknown_and_is_ended() -> None:
    before = set(Path("/proc/thread-self/children").read_text().split())
    began = time.monotonic()
    found = one(Check("x", "X", "tests", hangs, limit_s=0.2))
    assert (found.ok, found.detail) == (None, "no answer within 0.2 s")
    assert time.monotonic() - began < TOTAL_LIMIT_S
    assert set(Path("/proc/thread-self/children").read_text().split()) <= before


def test_a_check_that_dies_is_unknown() -> None:
    found = one(Check("x", "X", "tests", dies))
    assert (found.ok, found.detail) == (None, f"the check died (status {-signal.SIGKILL})")


def test_checks_that_hang_do_so_together() -> None:
    before = set(Path("/proc/thread-self/children").read_text().split())
    began = time.monotonic()
    found = run_doctor(None, [Check(f"x{n}", "X", "tests", hangs, limit_s=3.0) for n in range(40)])
    assert [finding.ok for finding in found] == [None] * 40
    assert time.monotonic() - began < 40 * 3.0 / 2, "one after the other"
    assert set(Path("/proc/thread-self/children").read_text().split()) <= before


def test_an_answer_that_came_in_time_counts_though_others_hang() -> None:
    found = run_doctor(
        None,
        [
            Check("hangs", "X", "tests", hangs, limit_s=3.0),
            Check("answers", "X", "tests", prints, limit_s=1.0),
        ],
    )
    assert [finding.ok for finding in found] == [None, True]


def test_a_broken_check_does_not_spoil_the_others() -> None:
    found = run_doctor(None, [Check("a", "A", "tests", raises), Check("b", "B", "tests", prints)])
    assert [finding.ok for finding in found] == [None, True]
    assert len(found[1].detail) == 50_000


def test_cleanup_runs_here_also_after_a_kill(tmp_path: Path) -> None:
    def leaves_a_file(surroundings: Surroundings) -> Outcome:
        (tmp_path / surroundings.tag).touch()
        return hangs(surroundings)

    one(
        Check(
            "x",
            "X",
            "tests",
            leaves_a_file,
            lambda found: (tmp_path / found.tag).unlink(),
            limit_s=0.2,
        )
    )
    assert list(tmp_path.iterdir()) == []


def test_a_frozen_group_is_removed_after_a_kill() -> None:
    mount = isolation._cgroup2_mount()
    if os.getuid() != 0 or mount is None:
        pytest.skip("needs root and cgroup v2 to make a control group")

    reader, writer = os.pipe()

    def escape() -> None:
        os.setsid()
        os.write(writer, b"out")
        signal.pause()

    def freezes_and_hangs(surroundings: Surroundings) -> Outcome:
        group = mount / surroundings.tag
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()))
        forked(escape)
        # From here on the process is outside of the process group that is killed
        os.read(reader, 3)
        (group / "cgroup.freeze").write_text("1")
        return hangs(surroundings)

    one(Check("x", "X", "tests", freezes_and_hangs, isolation._remove_groups, 0.2))
    os.close(reader)
    os.close(writer)
    assert list(mount.glob(f"{OURS}*")) == []


def test_a_finding_derived_from_an_unchecked_one_is_unknown() -> None:
    found = one(Derived("x", "X", "tests", lambda outcomes: outcomes["missing"]))
    assert (found.ok, found.detail) == (None, "it follows from 'missing', which was not checked")


# --- reports ---------------------------------------------------------------------------------

FINDINGS = [
    Finding("a", "First", True, "fine", "", "all"),
    Finding("b", "Second one", False, "is missing", "get it", "some"),
    Finding("c", "Third", None, "could not look", "", "others"),
]


def test_format_groups_by_plain_words() -> None:
    assert format_findings(FINDINGS, color=False) == (
        "works\n"
        "  + First       fine\n"
        "\n"
        "does not work here\n"
        "  - Second one  is missing\n"
        "                needed for: some\n"
        "                fix: get it\n"
        "\n"
        "unknown\n"
        "  ? Third       could not look\n"
        "                needed for: others\n"
    )
    assert format_findings([], color=False) == "\n"


def test_colour_only_when_asked() -> None:
    assert "\x1b" not in format_findings(FINDINGS, color=False)
    assert "\x1b[31m-\x1b[0m Second one" in format_findings(FINDINGS, color=True)


def test_json_has_stable_keys() -> None:
    assert [list(entry) for entry in to_json(FINDINGS)] == [KEYS] * 3
    assert to_json(FINDINGS)[1]["ok"] is False


def test_ids_are_unique() -> None:
    assert len({check.id for check in report.CHECKS}) == len(report.CHECKS)


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"kernel/apparmor_restrict_unprivileged_userns": "1"}, "AppArmor forbids it"),
        ({"kernel/apparmor_restrict_unprivileged_userns": "0"}, "in a container"),
        ({}, "in a container"),
        ({"kernel/unprivileged_userns_clone": "0"}, "sysctl -w kernel.unprivileged_userns_clone=1"),
        ({"user/max_user_namespaces": "0"}, "sysctl -w user.max_user_namespaces=15000"),
        (
            {
                "user/max_user_namespaces": "127235",
                "kernel/unprivileged_userns_clone": "1",
                "kernel/apparmor_restrict_unprivileged_userns": "1",
            },
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ],
)
def test_t4_the_advice_about_user_namespaces_follows_the_kernels_settings(
    tmp_path: Path, settings: dict[str, str], advice: str
) -> None:
    """The files as the kernel writes them, in its layout: Ubuntu has the AppArmor setting."""
    for name, value in settings.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    assert advice in isolation._allow_user_namespaces(str(tmp_path))


def test_halt_says_how_deep_it_goes() -> None:
    yes, no = Outcome(True, "", ""), Outcome(False, "", "a fix")
    frozen = isolation._halt({"cgroup-freeze": yes, "user-namespaces": no, "root-namespaces": no})
    contained = isolation._halt(
        {"cgroup-freeze": no, "user-namespaces": yes, "root-namespaces": no}
    )
    walked = isolation._halt({"cgroup-freeze": no, "user-namespaces": no, "root-namespaces": no})
    assert (frozen.ok, contained.ok, walked.ok) == (True, False, False)
    assert "every session" in frozen.detail
    assert "contained sessions only" in contained.detail
    assert "best effort only" in walked.detail


# --- the home -------------------------------------------------------------------------------------


def about(path: Path | None) -> dict[str, Finding]:
    return {finding.id: finding for finding in run_doctor(path, home.CHECKS)}


def test_without_a_home_there_are_no_findings_about_a_home() -> None:
    assert {finding.ok for finding in about(None).values()} == {None}


def test_a_home_open_to_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    found = about(tmp_path)["home"]
    assert (found.ok, found.fix) == (False, f"chmod 0700 {tmp_path}")
    tmp_path.chmod(0o700)
    assert about(tmp_path)["home"].ok is True


def test_a_missing_home_is_judged_by_its_parent() -> None:
    with tempfile.TemporaryDirectory(
        prefix="hf"
    ) as place:  # a short path, wherever the tests' own directories are
        found = about(Path(place) / "a" / "b")
        assert {id: finding.detail for id, finding in found.items() if finding.ok is not True} == {}
        assert os.listdir(place) == []


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    assert about(tmp_path / "home")["home"].ok is False


def test_a_home_owned_by_another_account_is_a_failure(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to give a directory away")
    os.chown(private(tmp_path), 65_534, 65_534)
    found = about(tmp_path)["home"]
    assert found.ok is False
    assert "65534" in found.detail


def test_a_long_home_has_no_room_for_sockets(tmp_path: Path) -> None:
    for length in (30, 150):
        place = tmp_path / ("h" * length)
        place.mkdir(mode=0o700)
        claimed = about(place)["socket-path"].ok
        with socket.socket(socket.AF_UNIX) as trial:  # the claim against the kernel's own answer
            longest = place / ("s" * home.SOCKET_TAIL_BYTES)
            if claimed:
                trial.bind(str(longest))
            else:
                with pytest.raises(OSError, match="too long"):
                    trial.bind(str(longest))
        assert claimed is (length == 30 and len(str(longest)) <= home.SOCKET_PATH_BYTES_MAX)


MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:26 / /home rw - nfs4 server:/home rw
31 27 0:27 / /mnt/with\\040space rw shared:5 - cifs //server/x rw
32 30 0:28 / /home/me/local rw - ext4 /dev/vdb rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/home/me", "nfs4"),
        ("/homes", "ext4"),
        ("/home/me/local/x", "ext4"),
        ("/mnt/with space/y", "cifs"),
    ],
)
def test_the_filesystem_is_that_of_the_innermost_mount(path: str, kind: str) -> None:
    assert home.filesystem_of(Path(path), MOUNTS) == kind


# --- versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "fixed"),
    [
        ((3, 6, 23), True),
        ((3, 7, 0), False),
        ((3, 40, 1), False),
        ((3, 44, 5), False),
        ((3, 44, 6), True),
        ((3, 45, 0), False),
        ((3, 50, 4), False),
        ((3, 50, 7), True),
        ((3, 51, 0), False),
        ((3, 51, 2), False),
        ((3, 51, 3), True),
        ((3, 54, 1), True),
    ],
)
def test_the_wal_reset_bug_by_version(version: tuple[int, ...], fixed: bool) -> None:
    assert machine.wal_reset_fixed(version) is fixed


def test_versions_are_found_in_the_output_of_programs() -> None:
    assert machine.version_of("GNU bash, version 5.2.15(1)-release (x86_64)") == (5, 2, 15)
    assert machine.version_of("6.18.44-fc-v445") == (6, 18, 44)
    assert machine.version_of("nothing") == ()
    assert machine.version_of(sqlite3.sqlite_version) > (3,)


def fetched(top: Path, version: str, says: str) -> Path:
    """A directory as scripts/criu makes it, with a loader that answers for CRIU."""
    loader = top / "root" / "lib" / "loader"
    loader.parent.mkdir(parents=True)
    loader.write_text(
        f'#!/bin/sh\ncase "$*" in *--version) echo "Version: {version}";; *) echo "{says}";; esac\n'
    )
    loader.chmod(0o755)
    program = top / "root" / "usr" / "sbin" / "criu"
    program.parent.mkdir(parents=True)
    program.touch()
    (top / "loader").write_text("lib/loader\n")
    return top


@pytest.mark.parametrize(
    ("version", "says", "ok"),
    [
        ("4.1.1", "Looks good.", False),
        ("4.2.1", "Looks good.", True),
        ("4.10", "Looks good.", True),
        ("4.2.1", "Error: no", False),
    ],
)
def test_criu_by_version_and_its_own_check(
    version: str, says: str, ok: bool, tmp_path: Path
) -> None:
    (check,) = [check for check in isolation.CHECKS if check.id == "criu"]
    (found,) = run_doctor(None, [check], criu=str(fetched(tmp_path, version, says)))
    assert found.ok is ok
    assert version in found.detail


def test_a_program_that_is_no_criu_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "criu"
    script.write_text("#!/bin/sh\necho Version: 9.9\n")
    script.chmod(0o755)
    for named, why in ((script, "not a 64-bit ELF program"), (Path("/bin/true"), "version")):
        with pytest.raises(Impossible, match=why):
            criu.find(str(named))


def test_criu_is_asked_for_its_version_once_until_it_is_replaced(tmp_path: Path) -> None:
    named = str(fetched(tmp_path / "one", "4.2.1", ""))
    with mock.patch.object(criu, "_asked", wraps=criu._asked) as asked:
        assert [criu.find(named).version for _ in range(2)] == ["4.2.1", "4.2.1"]
        assert asked.call_count == 1
        fetched(tmp_path / "two", "4.10", "").rename(tmp_path / "new")
        (tmp_path / "new/root/lib/loader").rename(f"{named}/root/lib/loader")
        assert criu.find(named).version == "4.10"


def test_criu_of_the_system_gets_the_libraries_of_the_system() -> None:
    """The parts that a program needs to run where its paths cannot be named."""
    found = criu._of_program("/bin/sh", criu._stamp("/bin/sh"))
    said = subprocess.run(found.argv("-c", "echo runs"), capture_output=True, text=True)
    assert said.stdout == "runs\n" and found.libraries


def test_a_caller_with_many_open_files_is_examined_as_well(short_path: Path) -> None:
    """A host of many sessions has descriptors far above 1023, which select() refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip(f"no more than {hard} open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    many = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(1100)]
    try:
        check_here(json.loads(json.dumps(to_json(run_doctor(private(short_path))))))
    finally:
        for fd in many:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_missing_shfmt_is_reported_with_its_consequence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gates._shell_grammar(Surroundings(None, 0, "")).ok is True
    monkeypatch.setattr("holdfast.host.policy.shfmt.find_shfmt", lambda: None)
    found = gates._shell_grammar(Surroundings(None, 0, ""))
    assert (
        found.ok is False
        and "shfmt is missing" in found.detail
        and "agent" in found.detail
        and "shfmt-py" in found.fix
    )

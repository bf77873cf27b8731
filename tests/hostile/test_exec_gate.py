"""Ways around the exec gate (P4), each tried for real: the table in docs/reference/exec-gate.md."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.exec_gate.gated_session import LAYOUTS, NO_TAC, obey
from tests.support.exec_gate.silent_filesystem import (
    READ,
    SilentFilesystem,
    needs_fuse,
    waits_for_fuse,
)
from tests.support.installation import DEADLINE_S, Installation, eventually, installation

POLICY = (
    NO_TAC
    + """[[rule]]
name = "no programs from memory"
verdict = "refuse"
because = "nobody has seen such a file"
when = { act = ["exec"], command = ["/memfd:secret*"] }
"""
)
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
EXECVEAT = 322 if os.uname().machine == "x86_64" else 281
INTEL = pytest.mark.skipif(os.uname().machine != "x86_64", reason="machine code of x86_64")
COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module", params=LAYOUTS)
def lab(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    with installation(tmp_path_factory.mktemp("home"), "[turn]\nidle_s = 600\n") as made:
        obey(made, POLICY)
        made.new("lab", request.param, "--cwd", str(made.user), "--", "bash")
        assert made.get("lab")["gate"] == "exec"
        (made.user / "word").write_text("reachable\n")
        yield made


def tries(hf: Installation, code: str, rc: int | None = None) -> str:
    """The output of Python code that runs in the session."""
    file = hf.user / "try.py"
    file.write_text(
        "import ctypes, mmap, os, signal, struct, subprocess, sys, threading\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n" + code
    )
    done = hf.cli("run", "lab", "--", f"{PYTHON} {file}")
    assert rc is None or done.rc == rc, done
    return done.out


def events_named(hf: Installation, name: str) -> list[dict[str, Any]]:
    return [
        e
        for e in hf.ok("events", "lab", "--limit", "100000", "--json").records
        if e["event"] == name
    ]


def refused(hf: Installation, code: str) -> None:
    before = len(events_named(hf, "exec.refused"))
    out = tries(hf, code)
    assert "reachable" not in out, out
    eventually(
        lambda: len(events_named(hf, "exec.refused")) > before,
        f"the report of the refusal; the output was {out}",
    )


def test_p4_a_daemon_that_left_its_session(lab: Installation) -> None:
    refused(
        lab,
        f"""
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.dup2(w, 1)
        try:
            os.execv("/usr/bin/tac", ["tac", "{lab.user}/word"])
        except OSError as e:
            os.write(w, str(e).encode())
    os._exit(0)
os.close(w)
print(os.read(r, 100))
""",
    )


@pytest.mark.parametrize(("name", "argv0"), [("x", "tac"), ("secret", "x")])
def test_p4_a_program_from_memory(lab: Installation, name: str, argv0: str) -> None:
    """A rule can name argv[0] as well as the name of the memfd."""
    refused(
        lab,
        f"""
fd = os.memfd_create("{name}", 0)
os.write(fd, open("/usr/bin/tac", "rb").read())
try:
    os.execve(fd, ["{argv0}", "{lab.user}/word"], {{}})
except OSError as e:
    print(e)
""",
    )


def test_p4_by_the_dynamic_linker(lab: Installation) -> None:
    linker = next(
        (str(p) for p in (*Path("/lib64").glob("ld-linux*"), *Path("/lib").glob("ld-linux*"))), None
    )
    if linker is None:
        pytest.skip("no dynamic linker where it is looked for")
    refused(
        lab,
        f"""
try:
    os.execv("{linker}", ["{linker}", "--inhibit-cache", "/usr/bin/tac", "{lab.user}/word"])
except OSError as e:
    print(e)
""",
    )


def test_p4_by_a_link(lab: Installation) -> None:
    refused(
        lab,
        f"""
os.path.lexists("{lab.user}/innocent") or os.symlink("/usr/bin/tac", "{lab.user}/innocent")
try:
    os.execv("{lab.user}/innocent", ["innocent", "{lab.user}/word"])
except OSError as e:
    print(e)
""",
    )


def test_p4_by_a_link_that_has_the_name(lab: Installation) -> None:
    """Programs like busybox act by the name of the link: the gate refuses it before it runs."""
    before = len(events_named(lab, "exec.mismatch"))
    refused(
        lab,
        f"""
os.path.lexists("{lab.user}/tac") or os.symlink("/usr/bin/cat", "{lab.user}/tac")
try:
    os.execv("{lab.user}/tac", ["./tac", "{lab.user}/word"])
except OSError as e:
    print(e)
""",
    )
    assert len(events_named(lab, "exec.mismatch")) == before


@pytest.mark.parametrize(
    "line", ["#!/usr/bin/tac", "#! /usr/bin/tac -b", "#!{user}/innocent.tac", "#!{user}/first"]
)
def test_p4_by_the_first_line_of_a_script(lab: Installation, line: str) -> None:
    """The kernel runs the interpreter in place of the script, without another exec."""
    refused(
        lab,
        f"""
os.path.lexists("{lab.user}/innocent.tac") or os.symlink("/usr/bin/tac", "{lab.user}/innocent.tac")
for name, text in ("first", "#!/usr/bin/tac"), ("second", "{line.format(user=lab.user)}"):
    with open("{lab.user}/" + name, "w") as file:
        file.write(text + chr(10) + "reachable" + chr(10))
    os.chmod("{lab.user}/" + name, 0o755)
try:
    os.execv("{lab.user}/second", ["second"])
except OSError as e:
    print(e)
""",
    )


def test_p4_a_script_of_the_system(lab: Installation) -> None:
    """The exec goes on before the gate reads the first line; the interpreter is judged later."""
    script = Path("/usr/local/bin/holdfast-test-script")
    try:
        script.write_text(f"#!/usr/bin/tac {lab.user}/wait\n")
        script.chmod(0o755)
    except OSError:
        pytest.skip("needs a directory of the system")
    try:
        assert (
            "code 137"
            in lab.cli("run", "lab", "--", f"mkfifo {lab.user}/wait; {script}; echo code $?").out
        )
        assert [e["program"] for e in events_named(lab, "exec.mismatch") if e["killed"]] == [
            "/usr/bin/tac"
        ]
    finally:
        script.unlink()


@pytest.mark.parametrize("how", ["dots", "descriptor", "directory", "again", "gone"])
def test_p4_by_a_path_that_seems_to_lead_nowhere(lab: Installation, how: str) -> None:
    refused(
        lab,
        f"""
how, at = "{how}", "{lab.user}/where-{how}"
os.makedirs(at, exist_ok=True)
fd, usr = os.open("/usr/bin/tac", os.O_PATH), os.open("/usr/bin", os.O_PATH)
words = (ctypes.c_char_p * 3)(b"x", b"{lab.user}/word", None)
for name, to in (("link", "/usr/lib"), ("later", "/usr/bin/tac")):
    if how == "again" and name == "later":
        try:
            os.execv(at + "/later", ["x", "{lab.user}/word"])
        except OSError as e:
            print(e)
    os.path.lexists(at + "/" + name) or os.symlink(to, at + "/" + name)
if how in ("descriptor", "directory"):
    libc.unshare(0x10000000) if os.getuid() else None
    try:
        os.chroot(at)
    except OSError as e:
        print(e)
try:
    if how == "dots":
        os.execv(at + "/link/../bin/tac", ["x", "{lab.user}/word"])
    elif how == "again":
        os.execv(at + "/later", ["x", "{lab.user}/word"])
    elif how == "descriptor":
        print(libc.syscall({EXECVEAT}, fd, b"", words, None, 0x1000), ctypes.get_errno())
    elif how == "directory":
        print(libc.syscall({EXECVEAT}, usr, b"tac", words, None, 0), ctypes.get_errno())
    else:
        copy = at + "/tac"
        with open(copy, "wb") as file:
            file.write(open("/usr/bin/tac", "rb").read())
        os.chmod(copy, 0o755)
        fd = os.open(copy, os.O_RDONLY)
        os.unlink(copy)
        os.execve(fd, ["tac", "{lab.user}/word"], {{}})
except OSError as e:
    print(e)
""",
    )


def test_p4_an_argument_that_is_no_text(lab: Installation) -> None:
    refused(
        lab,
        f"""
try:
    os.execv(b"/usr/bin/tac", [b"tac", b"{lab.user}/word", bytes([255])])
except OSError as e:
    print(e)
""",
    )


def test_p4_a_copy_under_another_name_is_another_program(lab: Installation) -> None:
    """Documented, not prevented: a rule about a name covers no copy. Rules about paths do."""
    assert "reachable" in tries(
        lab,
        f"""
import shutil
shutil.copy("/usr/bin/tac", "{lab.user}/copied")
os.execv("{lab.user}/copied", ["copied", "{lab.user}/word"])
""",
        0,
    )


def test_p4_code_that_runs_without_an_exec_is_not_judged(lab: Installation) -> None:
    """Documented, not prevented: a sourced script, or `python -c`, runs in a judged program.

    The programs that this code starts are judged.
    """
    (lab.user / "sourced").write_text("while read -r line; do echo $line; done < word\n")
    assert "reachable" in lab.ok("run", "lab", "--", f"cd {lab.user}; . ./sourced").out


@INTEL
def test_p4_a_tracer_changes_the_words_of_a_stopped_exec(lab: Installation) -> None:
    """The tracer stops the task before the gate reads it, so the gate judges the changed path."""
    refused(
        lab,
        f"""
class Regs(ctypes.Structure):
    names = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp"
    _fields_ = [(n, ctypes.c_ulonglong) for n in (names + " ss fs gs ds es fsb gsb").split()]
libc.ptrace.argtypes = [ctypes.c_long] * 4
child = os.fork()
if child == 0:
    libc.ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        os.execv("/usr/bin/cat", ["cat", "{lab.user}/word"])
    except OSError as e:
        print(e, flush=True)
    os._exit(0)
os.waitpid(child, 0)
libc.ptrace(0x4200, child, 0, 1)
regs = Regs()
changed = False
while True:
    libc.ptrace(24, child, 0, 0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) or os.WIFSIGNALED(status):
        break
    libc.ptrace(12, child, 0, ctypes.addressof(regs))
    if not changed and regs.orig_rax == 59:
        with open(f"/proc/{{child}}/mem", "r+b", 0) as memory:
            memory.seek(regs.rdi); memory.write(b"/usr/bin/tac\\0")
        changed = True
print("changed", changed)
""",
    )


@INTEL
def test_p4_by_the_old_way_into_the_kernel(lab: Installation) -> None:
    """int 0x80: other system call numbers, and an argument list with 32-bit pointers."""
    before = len(events_named(lab, "exec.refused"))
    out = tries(
        lab,
        f"""
libc.mmap.restype = ctypes.c_void_p
number = ctypes.c_int
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long]
page = libc.mmap(0, 4096, 7, 0x22 | 0x40, -1, 0)
words = [b"/usr/bin/tac", b"tac", b"{lab.user}/word"]
at, places = page + 512, []
for word in words:
    ctypes.memmove(at, word + b"\\0", len(word) + 1)
    places.append(at)
    at += len(word) + 1
ctypes.memmove(page + 256, struct.pack("<3I", places[1], places[2], 0), 12)
code = b"\\x53\\xb8" + struct.pack("<I", 11) + b"\\xbb" + struct.pack("<I", places[0])
code += b"\\xb9" + struct.pack("<I", page + 256) + b"\\x31\\xd2\\xcd\\x80\\x5b\\xc3"
ctypes.memmove(page, code, len(code))
print("came back", ctypes.CFUNCTYPE(ctypes.c_int)(page)())
""",
    )
    assert "reachable" not in out
    if "came back" in out:  # else this kernel has no 32-bit calls
        assert "-13" in out
        eventually(
            lambda: len(events_named(lab, "exec.refused")) > before, "the report of the refusal"
        )


@INTEL
def test_p4_by_the_personality_with_short_pointers(lab: Installation) -> None:
    out = tries(
        lab,
        f"""
words = (ctypes.c_char_p * 3)(b"tac", b"{lab.user}/word", None)
for number in (520, 545, 59, 322):
    libc.syscall(0x40000000 | number, b"/usr/bin/tac", words, None)
    print(os.strerror(ctypes.get_errno()))
""",
    )
    assert "reachable" not in out


def test_p4_a_filter_below_does_not_help(lab: Installation) -> None:
    """A filter that allows every call, or hands execs to a tracer, does not overrule the gate."""
    for action in (0x7FFF0000, 0x7FF00000):
        refused(
            lab,
            f"""
class P(ctypes.Structure): _fields_ = (("l", ctypes.c_ushort), ("f", ctypes.c_char_p))
libc.prctl(38, 1, 0, 0, 0)
seccomp = {{"x86_64": 317, "aarch64": 277}}[os.uname().machine]
allow = P(1, struct.pack("HBBI", 6, 0, 0, {action}))
assert libc.syscall(seccomp, 1, 0, ctypes.byref(allow)) == 0
try:
    os.execv("/usr/bin/tac", ["tac", "{lab.user}/word"])
except OSError as e:
    print(e)
""",
        )


@COMPILER
@pytest.mark.parametrize("how", ["preload", "static"])
def test_p4_compiled_in(lab: Installation, how: str) -> None:
    source = lab.user / "evil.c"
    body = f'char *a[] = {{"tac", "{lab.user}/word", 0}}; execv("/usr/bin/tac", a); perror("tac");'
    if how == "preload":
        source.write_text(
            "#include <stdio.h>\n#include <unistd.h>\n"
            f"__attribute__((constructor)) static void go(void) {{ {body} }}\n"
        )
        made = subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", lab.user / "evil.so", source], capture_output=True
        )
        preload = f'{{"LD_PRELOAD": "{lab.user}/evil.so"}}'
        call = f'os.execve("/usr/bin/cat", ["cat", "/dev/null"], {preload})'
    else:
        source.write_text(
            f"#include <stdio.h>\n#include <unistd.h>\nint main(void) {{ {body} return 1; }}\n"
        )
        made = subprocess.run(
            ["cc", "-static", "-o", lab.user / "evil", source], capture_output=True
        )
        call = f'os.execv("{lab.user}/evil", ["evil"])'
    if made.returncode:
        pytest.skip(f"it cannot be compiled here: {made.stderr!r}")
    refused(lab, call)


RACE = """
CHILDREN = 120
r, w = os.pipe()
killed = ran = stopped = 0
%s
for n in range(CHILDREN):
    child = libc.fork()
    if child == 0:
        os.dup2(r, 0)
        %s
        os._exit(77)
    pids.append(child)
os.close(w); os.close(r)
stop()
for child in pids:
    _, status = os.waitpid(child, 0)
    killed += os.WIFSIGNALED(status)
    stopped += os.WIFEXITED(status) and os.WEXITSTATUS(status) == 77
    ran += status == 0
print(f"killed={killed} refused={stopped} ran={ran}")
"""


def race(lab: Installation, setup: str, call: str) -> dict[str, int]:
    before = len(events_named(lab, "exec.mismatch"))
    out = tries(lab, RACE % (setup, call))
    print(out)
    found = {k: int(v) for k, _, v in (word.partition("=") for word in out.split() if "=" in word)}
    assert found["killed"] + found["refused"] + found["ran"] == 120, out
    if found["killed"]:
        eventually(
            lambda: [e for e in events_named(lab, "exec.mismatch")[before:] if e.get("killed")],
            "the report of the mismatch",
        )
    return found


def test_p4_a_path_that_is_changed_after_the_gate_read_it(lab: Installation) -> None:
    """Another process keeps changing the path. A program that slips through is killed."""
    race(
        lab,
        """
pids = []
page = mmap.mmap(-1, 4096)
page[:13] = b"/usr/bin/cat\\0"
flipper = os.fork()
if flipper == 0:
    while True:
        page[9:12] = b"tac"; page[9:12] = b"cat"
def stop():
    os.kill(flipper, 9); os.waitpid(flipper, 0)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
words = (ctypes.c_char_p * 2)(b"x", None)
""",
        "libc.execv(ctypes.c_void_p(address), words)",
    )


def test_p4_a_file_that_is_replaced_after_the_gate_looked(lab: Installation) -> None:
    race(
        lab,
        f"""
pids = []
link, one, two = ("{lab.user}/" + n for n in ("link", "one", "two"))
flipper = os.fork()
if flipper == 0:
    while True:
        for target, fresh in (("/usr/bin/cat", one), ("/usr/bin/tac", two)):
            try:
                os.symlink(target, fresh)
                os.rename(fresh, link)
            except OSError:
                pass
while not os.path.lexists(link):
    pass
def stop():
    os.kill(flipper, 9); os.waitpid(flipper, 0)
""",
        "libc.execv(link.encode(), (ctypes.c_char_p * 2)(b'x', None))",
    )


def test_p4_a_file_that_appears_after_the_gate_looked(lab: Installation) -> None:
    """A file that is missing when the gate looks does not run, even if it appears later."""
    out = tries(
        lab,
        f"""
place, link, gone = "{lab.user}/comes", "{lab.user}/comes/innocent", "{lab.user}/comes/gone"
os.makedirs(place, exist_ok=True)
os.symlink("/usr/bin/tac", gone)
stop = threading.Event()
def flip():
    while not stop.is_set():
        os.rename(gone, link)
        os.rename(link, gone)
flipper = threading.Thread(target=flip)
flipper.start()
answers = set()
for _ in range(400):
    try:
        done = subprocess.run([link, "{lab.user}/word"], capture_output=True)
        answers.add(done.stdout or done.returncode)
    except OSError as e:
        answers.add(type(e).__name__)
stop.set()
flipper.join()
print("ANSWERS", *sorted(map(str, answers)))
""",
        rc=0,
    )
    answers = out.partition("ANSWERS")[2].split()
    assert answers and {*answers} <= {"FileNotFoundError", "PermissionError"}, out


@pytest.mark.alone
def test_p4_thousands_at_once(lab: Installation) -> None:
    out = lab.ok(
        "run", "lab", "--", "seq 3000 | xargs -P 100 -n 1 /bin/echo | sort -n | uniq | wc -l"
    ).out
    assert out.split()[-1] == "3000"
    before = len(events_named(lab, "exec.refused"))
    (lab.user / "many.sh").write_text(
        "n=0; for i in $(seq 1500); do tac word 2>/dev/null && n=$((n+1)); done; "
        "echo let through: $n\n"
    )
    out = lab.ok("run", "lab", "--", f"cd {lab.user} && bash many.sh").out
    assert "let through: 0" in out
    aggregated = eventually(
        lambda: [e for e in events_named(lab, "exec.refused")[before:] if "count" in e], "the sum"
    )
    assert len(events_named(lab, "exec.refused")) - before < 1000 and aggregated[0]["count"] > 1


def test_p4_as_many_arguments_as_a_directory_has_files(lab: Installation) -> None:
    """A thread reads all of them."""
    assert tries(lab, 'os.execv("/usr/bin/rm", ["rm", "-f"] + ["x"] * 70000)', rc=0) == ""


def test_p4_more_arguments_than_are_read(lab: Installation) -> None:
    """The file is known: a rule about its name refuses the exec."""
    refused(
        lab,
        """
try:
    os.execv("/usr/bin/tac", ["tac"] + ["x"] * 140000)
except OSError as e:
    print(e)
""",
    )


def test_p4_an_invalid_argument_list(lab: Installation) -> None:
    out = tries(
        lab,
        """
libc.execv(b"/usr/bin/cat", ctypes.c_void_p(8))
print(os.strerror(ctypes.get_errno()))
libc.execv(ctypes.c_void_p(8), ctypes.c_void_p(8))
print(os.strerror(ctypes.get_errno()))
""",
    )
    assert out.splitlines()[0] in ("Bad address", "Permission denied") and out.splitlines()[1] in (
        "Bad address",
        "Permission denied",
    )


@pytest.mark.parametrize(
    "way",
    [
        "/proc/self/root/usr/bin/tac",
        "/proc/self/cwd/tac",
        "/proc/self/task/{tid}/root/usr/bin/tac",
        "{at}/magic",
        "{at}/root/usr/bin/tac",
        "/dev/fd/../root/usr/bin/tac",
        "{tidied}",
    ],
)
def test_p4_by_a_link_that_only_the_kernel_can_follow(lab: Installation, way: str) -> None:
    """Magic links, and `..` behind a link in a path that normalises to a system program."""
    refused(
        lab,
        f"""
at = "{lab.user}/magics"
deep = at + "/d" * (at.count("/") + 1)
os.makedirs(deep, exist_ok=True)
os.makedirs(at + "/usr/bin", exist_ok=True)
os.chdir("/usr/bin")
links = dict(magic="/proc/self/root/usr/bin/tac", root="/proc/self/root", above=deep)
for name, to in links.items() | {{("usr/bin/cat", "/usr/bin/tac")}}:
    os.path.lexists(at + "/" + name) or os.symlink(to, at + "/" + name)
tidied = at + "/above" + "/.." * deep[len(at):].count("/") + "/usr/bin/cat"
assert os.path.normpath(tidied) == "/usr/bin/cat"
assert os.path.realpath(tidied) == os.path.realpath("/usr/bin/tac")
try:
    path = "{way}".format(tid=threading.get_native_id(), at=at, tidied=tidied)
    os.execv(path, ["x", "{lab.user}/word"])
except OSError as e:
    print(e)
""",
    )


def test_p4_by_a_descriptor_that_differs_between_thread_and_process(lab: Installation) -> None:
    """`/proc/self` is the process, though a thread may have its own descriptor table."""
    refused(
        lab,
        f"""
os.dup2(os.open("/usr/bin/tac", os.O_PATH), 50)
def run():
    assert libc.unshare(0x400) == 0
    os.dup2(os.open("/usr/bin/cat", os.O_PATH), 50)
    try:
        os.execv("/proc/self/fd/50", ["x", "{lab.user}/word"])
    except OSError as e:
        print(e)
thread = threading.Thread(target=run)
thread.start()
thread.join()
""",
    )


def test_p4_a_file_that_exists_for_the_task_runs(lab: Installation) -> None:
    """By any path, even one that leads nowhere for the host: the gate never answers "not found"."""
    out = tries(
        lab,
        f"EXECVEAT = {EXECVEAT}; ROOT = {os.getuid() == 0}"
        + """
import shutil, tempfile
at = tempfile.mkdtemp(dir="/tmp")
os.makedirs(at + "/real/" + "n" * 200)
os.chdir(at)
shutil.copy("/usr/bin/true", at + "/real/it")
shutil.copy("/usr/bin/true", os.fsencode(at) + b"/real/" + bytes([255, 10]))
os.symlink(at + "/real", "by")
os.symlink("/proc/self/cwd/real", "own")
os.symlink(at + "/mounted/d", "inside")
def runs(path, before=lambda: None, dirfd=None, flags=0):
    child = os.fork()
    if child == 0:
        try:
            before()
            if dirfd is None:
                os.execv(path, ["x"])
            words = (ctypes.c_char_p * 2)(b"x", None)
            libc.syscall(EXECVEAT, dirfd, os.fsencode(path), words, None, flags)
            os._exit(ctypes.get_errno())
        except OSError as e:
            os._exit(e.errno)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def other():
    os.chmod(at, 0o755); os.setgroups([])
    os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
def gone():
    os.mkdir(at + "/gone"); os.chdir(at + "/gone"); os.rmdir(at + "/gone")
def mounted():
    os.makedirs(at + "/mounted", exist_ok=True)
    # where this is permitted
    if libc.unshare(0x20000) == 0 and libc.mount(b"none", b"/", None, 0x44000, None) == 0:
        libc.mount(b"none", (at + "/mounted").encode(), b"tmpfs", 0, None)
    os.makedirs(at + "/mounted/d", exist_ok=True)
    shutil.copy(at + "/real/it", at + "/mounted/d/it")
real = os.open(at + "/real", os.O_PATH)
it = os.open(at + "/real/it", os.O_PATH)
found = dict(
    relative=runs("real/it"),
    dotted=runs("./real/../real/./it"),
    link=runs("by/it"),
    links=runs("by/../by/it"),
    absolute=runs(at + "/by/it"),
    own=runs("own/it"),
    slashes=runs("//" + at + "///real//it"),
    long=runs("real/" + ("n" * 200 + "/../") * 18 + "it"),
    bytes=runs(os.fsencode(at) + b"/by/" + bytes([255, 10])),
    below=runs("it", dirfd=real),
    at=runs("", dirfd=it, flags=0x1000),
    upward=runs("../by/it", dirfd=real),
    descriptor=runs(f"/proc/self/fd/{it}"),
    short=runs(f"/dev/fd/{it}"),
    process=runs(f"/proc/{os.getpid()}/cwd/by/it"),
    gone=runs("/usr/bin/true", gone),
    cwd=runs("it", lambda: os.chdir("by")),
    mounted=runs(at + "/mounted/d/it", mounted),
    by_mounted=runs("inside/it", mounted),
    in_mounted=runs("d/it", lambda: (mounted(), os.chdir(at + "/mounted"))),
)
if ROOT:  # an ordinary user's session has no other user
    found |= dict(other=runs(at + "/by/it", other), other_relative=runs("by/it", other))
print("FOUND", {name: code for name, code in found.items() if code})
shutil.rmtree(at)
""",
        rc=0,
    )
    assert "FOUND {}" in out, out


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to change the user")
def test_p4_a_missing_file_is_not_revealed_without_search_permission(lab: Installation) -> None:
    assert "ANSWERS [13, 13, 2, 2]" in tries(
        lab,
        """
import tempfile
at = tempfile.mkdtemp(dir="/tmp")
os.chmod(at, 0o755)
os.mkdir(at + "/shut", 0o700)
open(at + "/shut/there", "w").close()
answers = []
for path in ("shut/there", "shut/nothing", "nothing", "none/nothing"):
    for _ in range(2):
        child = os.fork()
        if child == 0:
            os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
            try:
                os.execv(at + "/" + path, ["x"])
            except OSError as e:
                os._exit(e.errno)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    answers.append(code)
print("ANSWERS", answers)
import shutil
shutil.rmtree(at)
""",
    )


# argv: a file. A child executes the path that stands in that file, from a mapping. It can only exit
# afterwards: the gate's reader holds the lock of its memory.
MAPPED_PATH = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
page = libc.mmap(None, 4096, 1, 2, os.open(sys.argv[1], os.O_RDONLY), 0)
child = libc.fork()
if child == 0:
    libc.execv(ctypes.c_void_p(page), (ctypes.c_char_p * 2)(b"x", None))
    os._exit(ctypes.get_errno())
print("CODE", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@needs_fuse
def test_p4_a_path_in_memory_that_cannot_be_read_blocks_no_other_client(
    lab: Installation, tmp_path: Path
) -> None:
    """The page belongs to a file system that does not answer. The reader waits, never the loop."""
    if lab.get("lab")["layout"] != "plain":
        pytest.skip("a contained session does not see the mount")
    (lab.user / "try.py").write_text(MAPPED_PATH)
    files = SilentFilesystem(tmp_path / "silent")
    try:
        files.silence(READ)
        going = lab.start("run", "lab", "--", f"{PYTHON} {lab.user}/try.py {files.at}/file")
        eventually(lambda: waits_for_fuse(lab.host_pid), "a thread of the gate to read the path")
        assert lab.get("lab")["gate"] == "exec", "the host answers"
        out, _ = going.communicate(timeout=DEADLINE_S)
    finally:
        files.close()
    assert b"CODE 13" in out

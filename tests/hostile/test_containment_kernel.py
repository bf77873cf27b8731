"""Attacks on the kernel, devices, terminals and servers from a contained session (T4).

Calls that would change the whole machine are made with arguments that change nothing; the kernel
checks the right before the arguments. test_containment_as_user.py repeats this file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.host.runtime import connectors
from tests.support.containment.lab import (
    CALLS,
    OTHER_USER,
    ROOT,
    SECRET,
    Lab,
    containment_lab,
    halted_and_resumed,
    running,
    runs_32_bit,
    session,
    status_of,
)
from tests.support.installation import eventually

INTEL = pytest.mark.skipif(os.uname().machine != "x86_64", reason="call numbers of x86_64")
NESTED = "libc.unshare(0x10000000 | 0x20000)"
KEY_ADD, KEY_CTL, SESSION_KEYRING, USER_KEYRING = 248, 250, -3, -4


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """The host starts in a session keyring with a key, as in a login session."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(KEY_CTL, 1, None)  # a new session keyring for this process and its children
    libc.syscall(KEY_ADD, b"user", b"hf:login", SECRET.encode(), len(SECRET), SESSION_KEYRING)
    with containment_lab() as made:
        yield made


# ---------------------------------------------------------------- capabilities, each in effect

# Each returns -1 with EPERM, or raises it, unless the code has the capability.
PRIVILEGED = {
    "clock_settime": "libc.clock_settime(0, struct.pack('qq', *divmod(time.time_ns(), 10**9)))",
    "settimeofday": "libc.settimeofday(struct.pack('qq', int(time.time()), 0), None)",
    "adjtimex": "libc.adjtimex(struct.pack('I', 0x8000) + bytes(400))",
    "raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).fileno()",
    "packet socket": "socket.socket(17, socket.SOCK_RAW, 0).fileno()",
    "sethostname": "libc.sethostname(os.uname().nodename.encode(), len(os.uname().nodename))",
    "setdomainname": "libc.setdomainname(b'(none)', 6)",
    "reboot": "libc.syscall(169, 0xfee1dead, 672274793, 0, None)",
    "kexec_load": "libc.syscall(246, 0, 0, None, 0)",
    "kexec_file_load": "libc.syscall(320, -1, -1, 0, None, 0)",
    "init_module": "libc.syscall(175, b'', 0, b'')",
    "finit_module": "libc.syscall(313, 0, b'', 0)",
    "delete_module": "libc.syscall(176, b'hf-none', 0x800)",
    "swapon": "libc.swapon(b'/none', 0)",
    "swapoff": "libc.swapoff(b'/none')",
    "acct": "libc.acct(b'/none')",
    "quotactl": "libc.syscall(179, 0x800002 << 8, b'/dev/vda', 0, None)",
    "iopl": "libc.syscall(172, 3)",
    "ioperm": "libc.syscall(173, 0x80, 1, 1)",
    "syslog clear": "libc.klogctl(8, None, 4)",
    "syslog read": "libc.klogctl(3, ctypes.create_string_buffer(64), 64)",
    "bpf": "libc.syscall(321, 5, bytes(128), 128)",
    "perf": "libc.syscall(298, struct.pack('II', 1, 64) + bytes(104), -1, 0, -1, 0)",
    "userfaultfd": "libc.syscall(323, 0)",
    "fanotify": "libc.fanotify_init(0, 0)",
    "open_by_handle_at": "libc.open_by_handle_at(os.open('/usr', 0), handle, 0)",
    "lookup_dcookie": "libc.syscall(212, 1, ctypes.create_string_buffer(64), 64)",
    "pivot_root": "libc.syscall(155, b'/tmp', b'/tmp')",
    "mount tmpfs": "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)",
    "mount bind": "libc.mount(b'/', b'/tmp', None, 0x1000, None)",
    "remount": "libc.mount(None, b'/usr', None, 0x1020, None)",
    "umount": "libc.umount2(b'/proc', 2)",
    "fsopen": "libc.syscall(430, b'tmpfs', 0)",
    "open_tree": "libc.syscall(428, -100, b'/usr', 0x80001)",
    "mount_setattr": "libc.syscall(442, -100, b'/usr', 0, struct.pack('QQQQ', 0, 1, 0, 0), 32)",
    "mknod disk": "os.mknod('/tmp/disk', 0o60600, os.makedev(254, 0))",
    "mknod memory": "os.mknod('/tmp/mem', 0o20600, os.makedev(1, 1))",
    "mknod kmsg": "os.mknod('/tmp/kmsg', 0o20600, os.makedev(1, 11))",
    "priority": "os.setpriority(os.PRIO_PROCESS, 0, -5)",
    "real-time": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
    "deadline": "libc.syscall(314, 0, struct.pack('IIQiIQQQ', 48, 6, 0, 0, 0, *[10**6] * 3), 0)",
    "io priority": "libc.syscall(251, 1, 0, 1 << 13)",
    "mlock": "libc.mlock(bytes(1 << 24), 1 << 24) if resource_is_low() else -2",
    "oom": "put('/proc/self/oom_score_adj', '-900')",
    "vhangup": "libc.vhangup()",
    "netlink link": "link_down()",
    "trusted attribute": "os.setxattr('/tmp', 'trusted.x', b'x')",
    "audit": "audit()",
}
HELPERS = """
handle = struct.pack('IiII', 8, 1, 2, 0)
def resource_is_low():
    import resource
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
    return True
def link_down():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    name = struct.pack('16sh14x', b'lo', 0)
    flags = struct.unpack('16sh14x', fcntl.ioctl(s, 0x8913, name))[1]
    fcntl.ioctl(s, 0x8914, struct.pack('16sh14x', b'lo', flags))
def audit():
    s = socket.socket(16, socket.SOCK_RAW, 9)
    s.sendto(struct.pack('IHHII', 16 + 40, 1001, 5, 1, 0) + bytes(40), (0, 0))
    answer = s.recv(100)
    code = struct.unpack('i', answer[16:20])[0]
    if code:
        raise OSError(-code, os.strerror(-code))
"""


@INTEL
@pytest.mark.parametrize("call", PRIVILEGED)
def test_t4_no_privileged_call_succeeds(lab: Lab, call: str, answers: dict[str, str]) -> None:
    assert re.match("PermissionError|OSError|FileNotFound|ConnectionRef", answers[call]), answers[
        call
    ]


@pytest.fixture(scope="module")
def answers(lab: Lab) -> dict[str, str]:
    """All calls in one process, each in a child of its own."""
    code = HELPERS + "sys.stdout.flush()\n"
    for name, call in PRIVILEGED.items():
        code += (
            "if not os.fork():\n"
            "    os.setsid()\n"
            f"    print('CALL {name}:', tries(lambda: check({call})), flush=True)\n"
            "    os._exit(0)\n"
            "os.wait()\n"
        )
    found = re.findall(r"^CALL ([^:]+): (.*)$", lab.py(code).replace("\r", ""), re.M)
    return dict(found)


def test_t4_no_capability_counts_outside(lab: Lab) -> None:
    """The sets of every process inside hold for a user namespace below the machine's own."""
    outside = os.readlink("/proc/self/ns/user")
    for pid in lab.members("lab"):
        with contextlib.suppress(PermissionError):
            assert os.readlink(f"/proc/{pid}/ns/user") != outside
    shell = lab.shell_of("lab")
    kept = int(status_of(shell, "CapBnd"), 16)
    for number in (2, 9, 12, 13, 16, 17, 19, 21, 22, 24, 25, 27, 29, 30, 31, 32, 33, 34, 35, 37):
        assert not kept >> number & 1, number
    for number in (38, 39, 40):
        assert not kept >> number & 1, number


@INTEL
def test_t4_no_keyring_is_reachable(lab: Lab) -> None:
    """A login's keys, which fork passes on, and the keyrings of the account by their numbers."""
    libc = ctypes.CDLL(None, use_errno=True)
    key = libc.syscall(KEY_ADD, b"user", b"hf:account", SECRET.encode(), len(SECRET), USER_KEYRING)
    assert key > 0
    numbers = [libc.syscall(KEY_CTL, 0, ring, 0) for ring in (USER_KEYRING, SESSION_KEYRING)]
    evil = f"hf:{lab.base.name}"
    try:
        out = lab.py(
            "text = ctypes.create_string_buffer(100)\n"
            "libc.syscall(250, 1, None)\n"
            f"for ring in (*{numbers}, -3, -4, -5, -2, -1):\n"
            "    print('LINK', libc.syscall(250, 8, ring, -3))\n"
            "    for name in (b'hf:login', b'hf:account'):\n"
            "        key = libc.syscall(250, 10, ring, b'user', name, 0)\n"
            "        print('KEY', key, libc.syscall(250, 11, key, text, 100), text.value)\n"
            f"    print('KEY', libc.syscall(248, b'user', b'{evil}', b'evil', 4, ring))\n"
            f"print('KEY', libc.syscall(250, 11, {key}, text, 100), text.value)"
        )
        assert SECRET not in out and not re.search(r"(KEY|LINK) (?!-1)", out)
    finally:
        libc.syscall(KEY_CTL, 9, key, USER_KEYRING)
    for ring in (-3, -4, -5):
        assert libc.syscall(KEY_CTL, 10, ring, b"user", evil.encode(), 0) == -1


@pytest.mark.parametrize("place", ["/dev/null", "/dev/tty", "/proc/meminfo", "/proc/fs"])
def test_t4_nodes_of_the_machine_keep_their_mode_and_owner(lab: Lab, place: str) -> None:
    """Root inside owns them, and the kernel keeps one mode for the whole machine."""
    before = os.stat(place)
    out = lab.py(
        f"print('DONE', tries(os.chmod, '{place}', {stat.S_IMODE(before.st_mode)}),"
        f" tries(os.chown, '{place}', {before.st_uid}, {before.st_gid}))\n"
        "put('/dev/null', 'x')"
    )
    assert "DONE OSError" in out or "DONE PermissionError" in out, out
    assert "None" not in out


def test_t4_a_session_leaves_the_account_terminals_and_watches(lab: Lab) -> None:
    """The kernel counts both for the whole account or machine."""
    out = lab.py(
        "import resource\n"
        "most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))\n"
        "terminals, watches = [], []\n"
        "try:\n"
        "    while len(terminals) < 1000: terminals.append(os.open('/dev/ptmx', os.O_RDWR))\n"
        "except OSError: pass\n"
        "while (watch := libc.inotify_init()) >= 0: watches.append(watch)\n"
        "print('TAKEN', len(terminals), len(watches))"
    )
    taken = re.search(r"TAKEN (\d+) (\d+)", out)
    assert taken is not None, out
    most = int(Path("/proc/sys/user/max_inotify_instances").read_text())
    assert 100 < int(taken[1]) <= 256 and 0 < int(taken[2]) <= most // 4


@INTEL
def test_t4_no_ring_of_calls_past_the_filter(lab: Lab) -> None:
    """io_uring makes calls that no seccomp filter sees."""
    out = lab.py("print('RING', tries(lambda: check(libc.syscall(425, 4, bytes(120)))))")
    assert "RING PermissionError" in out or "not implemented" in out


@INTEL
@pytest.mark.parametrize("way", ["plain", "x32", "32-bit"])
def test_t4_a_session_takes_no_asynchronous_requests_of_the_machine(lab: Lab, way: str) -> None:
    """io_setup: the kernel has one count for all programs of the machine."""
    if way == "32-bit" and not runs_32_bit():
        pytest.skip("the kernel has no 32-bit calls")
    out = lab.py(
        f"{CALLS}place = ctypes.create_string_buffer(8)\n"
        f"print('SET', *called('{way}', 206, 245, 8192, ctypes.addressof(place)))"
    )
    assert "SET -1 38" in out, out


@pytest.mark.skipif(not ROOT, reason="another user may not lock files of root")
def test_t4_root_locks_no_file_of_the_package_manager(lab: Lab) -> None:
    """A lock would stop the package manager of the machine, also on a file shown read-only."""
    out = lab.py(
        "for top, _, names in os.walk('/var/lib/dpkg'):\n"
        "    for name in names:\n"
        "        if name.lower().startswith('lock'):\n"
        "            path = f'{top}/{name}'\n"
        "            print('FOUND', path, os.stat(path).st_ino)\n"
        "print('LOOKED')"
    )
    assert "LOOKED" in out
    for path, inode in re.findall(r"FOUND (\S+) (\d+)", out):
        assert os.stat(path).st_ino != int(inode), path


# F_SETLEASE and F_SETDELEG, a lease for reading. i386 has two calls.
LEASE = """
for path in ({places}):
    fd = os.open(path, os.O_RDONLY)
    for number, old in ((72, 55), (72, 221)):
        for command in (1024, 1024 | 1 << 32, 1040):
            print('LEASE', *called('{way}', number, old, fd, command, 0))
            print('HELD', fcntl.fcntl(fd, fcntl.F_GETLEASE))
"""


@INTEL
@pytest.mark.parametrize("way", ["plain", "x32", "32-bit"])
def test_t4_no_lease_on_a_file_delays_programs_outside(lab: Lab, way: str) -> None:
    """The kernel lets every other open for writing wait 45 seconds for the holder of a lease."""
    if way == "32-bit" and not runs_32_bit():
        pytest.skip("the kernel has no 32-bit calls")
    lab.plant(lab.project / "leased", "x")
    places = ", ".join(repr(p) for p in (str(lab.project / "leased"), "/etc/passwd", "/usr"))
    out = lab.py(CALLS + LEASE.format(places=places, way=way))
    answers = re.findall(r"LEASE (\S+ \d+)", out)
    assert len(answers) == 18 and set(answers) <= {"-1 1", "-1 38"}, out
    assert set(re.findall(r"HELD (\d+)", out)) == {"2"}, out


def test_t4_a_chroot_leads_nowhere(lab: Lab) -> None:
    """A program that keeps a directory above its new root can climb out, but not past the tree."""
    outside = lab.user / ".ssh/id_ed25519"
    out = lab.py(
        "held = os.open('/', os.O_RDONLY)\nos.makedirs('/tmp/jail', exist_ok=True)\n"
        "print(tries(os.chroot, '/tmp/jail'), tries(os.fchdir, held))\n"
        "for _ in range(20):\n    os.chdir('..')\n"
        "print(tries(os.chroot, '.'))\n"
        f"print(tries(lambda: open('{outside}').read()))"
    )
    assert SECRET not in out


# ---------------------------------------------------------------- a user namespace made inside


WAYS_IN = {
    "remount /usr": "mount -o remount,rw,bind /usr; echo evil >/usr/{name}",
    "remount /": "mount -o remount,rw,bind /; echo evil >/{name}",
    "umount": "umount -l /usr; umount -l {home}; echo evil >{home}/{name}",
    "bind": "mount --bind {home} /mnt; echo evil >/mnt/{name}; echo evil >{home}/.bashrc",
    "tmpfs over": "mount -t tmpfs none /usr; echo evil >/usr/{name}",
    "overlay over": "mkdir /tmp/u /tmp/w; mount -t overlay none "
    "-o lowerdir=/usr,upperdir=/tmp/u,workdir=/tmp/w /usr; echo evil >/usr/{name}",
    "move": "mount --move {project} /mnt; echo evil >{project}/../{name}",
    "proc": "mount -t proc none /proc; echo evil >/proc/1/root{home}/{name}",
    "pivot": "mkdir -p /tmp/n; mount -t tmpfs n /tmp/n; mkdir /tmp/n/old; "
    "pivot_root /tmp/n /tmp/n/old; echo evil >/old{home}/{name}",
    "chroot": "chroot /proc/1/root sh -c 'echo evil >{home}/{name}'",
    "enter": "nsenter -t 1 -m -p sh -c 'echo evil >{home}/{name}'",
}


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize("flags", ["-Urm", "-Urmpf", "-Umr --map-auto"])
def test_t4_a_nested_namespace_changes_no_file_outside(lab: Lab, way: str, flags: str) -> None:
    name = f"{lab.base.name}.evil"
    script = WAYS_IN[way].format(name=name, home=lab.user, project=lab.project)
    file = lab.plant(lab.project / "nested.sh", script)
    with lab.untouched():
        lab.sh(
            f'attack=$(cat {file}); unshare {flags} sh -c "$attack"\n'
            f'cd /; {OTHER_USER}unshare {flags} sh -c "echo nested; $attack"\n'
            "rmdir /tmp/w/work; rm -rf /tmp/w /tmp/u"  # the disk's watch could not read it
        )
    for place in ("/", "/usr", "/home"):
        assert not (Path(place) / name).exists()


KERNEL_FILES = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hotplug",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/panic",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
    "/proc/mtrr",
    "/sys/kernel/uevent_helper",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/power/state",
    "/sys/module/printk/parameters/time",
    "/sys/kernel/security/lockdown",
    "/dev/kmsg",
)


@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
def test_t4_no_file_that_gives_orders_to_the_kernel_opens(lab: Lab, nested: bool) -> None:
    """Opened only, not written: an open file would already be enough."""
    mounts = (
        f"{NESTED}\n"
        "for kind, at in ((b'proc', b'/proc'), (b'sysfs', b'/sys'), (b'sysfs', b'/tmp')):\n"
        "    libc.mount(b'none', at, kind, 0, None)\n"
        if nested
        else ""
    )
    out = lab.py(
        f"{mounts}for path in {KERNEL_FILES}:\n"
        "    print('OPEN', path, tries(os.open, path, os.O_WRONLY))"
    )
    opened = re.findall(r"^OPEN (\S+) \d+\s*$", out, re.M)
    assert not opened


def test_t4_no_secret_file_of_the_kernel_can_be_read(lab: Lab) -> None:
    """On a root host uid 0 inside would read what the kernel keeps from all other users."""
    closed = [
        entry.path
        for entry in os.scandir("/proc")
        if entry.is_file(follow_symlinks=False) and not entry.stat().st_mode & 0o004
    ]
    places = [*closed, "/proc/keys", "/proc/key-users"]
    out = lab.py(
        f"for path in {places}:\n"
        "    print('READ', path, tries(lambda: len(os.read(os.open(path, os.O_RDONLY), 64))))"
    )
    assert out.count("READ") == len(places) and not re.search(r"^READ \S+ \d", out, re.M), out


GROUPS = """
libc.unshare(0x10000000 | 0x20000 | 0x02000000)
os.makedirs('/tmp/groups', exist_ok=True)
print('MOUNTED', libc.mount(b'none', b'/tmp/groups', b'cgroup2', 0, None))
for kind in (b'freezer', b'memory', b'pids', b'devices'):
    libc.mount(b'none', b'/tmp/groups', b'cgroup', 0, kind)
for top in ('/tmp/groups', '/sys/fs/cgroup', '/sys/fs/cgroup/unified'):
    tries(os.mkdir, top + '/evil')
    for name in ('evil/cgroup.procs', 'cgroup.procs', '../cgroup.procs', 'tasks', 'evil/tasks'):
        for pid in sorted(filter(str.isdigit, os.listdir('/proc')), key=int)[1:]:
            print('MOVED', name, tries(put, f'{top}/{name}', pid))
    for name in ('memory.max', 'pids.max', 'cpu.max', 'memory.high', 'cgroup.subtree_control'):
        print('WROTE', name, tries(put, f'{top}/{name}', 'max'))
"""


def test_t4_no_process_leaves_its_control_group(lab: Lab) -> None:
    """Also through a cgroup namespace of one's own, which may mount the file system.

    Groups below the session's own are harmless: a freeze and a limit hold for them too.
    """
    with session(lab) as name:
        before = {pid: group_of(pid) for pid in lab.members(name)}
        out = lab.py(GROUPS, name)
        assert not re.search(r"^(WROTE|MOVED) \S+ \d", out, re.M), out
        assert "MOUNTED -1" in out
        for pid, group in before.items():
            assert group_of(pid) == group or group_of(pid).startswith(f"{group}/")
        halted_and_resumed(lab, name)


def group_of(pid: int) -> str:
    text = Path(f"/proc/{pid}/cgroup").read_text()
    return next(line for line in text.splitlines() if line.startswith("0::"))


# ---------------------------------------------------------------- terminals and devices

# By another size of the number, by the 32-bit gate, and by x32's numbers of the same call.
IOCTLS = """
import mmap
pages = []
def machine_code(code):
    pages.append(page := mmap.mmap(-1, 4096, prot=7))
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_long,
                            ctypes.c_long)(address)
low = libc.mmap
low.restype, low.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
                                              ctypes.c_int, ctypes.c_int, ctypes.c_long]
below_4g = low(None, 4096, 3, 0x62, -1, 0)
# push rbx; mov eax, edi; mov ebx, esi; mov ecx, edx; mov edx, r?; int 0x80; pop rbx; ret
by_32 = machine_code(b'\\x53\\x48\\x89\\xc8\\x89\\xf3\\x48\\x89\\xc7\\x89\\xd1\\x89\\xfa\\xb8\\x36'
                     b'\\x00\\x00\\x00\\xcd\\x80\\x5b\\xc3')
def control(way, number, byte):
    ctypes.memset(below_4g, byte, 1)
    if way == 'plain':
        return libc.syscall(ctypes.c_long(16), ctypes.c_long(0), ctypes.c_long(number),
                            ctypes.c_long(below_4g))
    if way == 'x32':
        return libc.syscall(ctypes.c_long(0x40000000 | 514), ctypes.c_long(0),
                            ctypes.c_long(number), ctypes.c_long(below_4g))
    return by_32(54, 0, number, below_4g)
"""


@INTEL
@pytest.mark.parametrize("way", ["plain", "x32", "32-bit"])
@pytest.mark.parametrize("number", ["0x5412", "0x5412 | 1 << 32", "0x5412 | 0xffff << 40"])
def test_t4_no_byte_is_put_into_the_terminals_input(lab: Lab, way: str, number: str) -> None:
    """TIOCSTI: the bytes would be typed at the next prompt, with the human's rights."""
    if way == "32-bit" and not runs_32_bit():
        pytest.skip("the kernel has no 32-bit calls")
    injected = lab.project / "injected"
    injected.unlink(missing_ok=True)
    lab.py(
        IOCTLS + f"for byte in b' touch {injected}\\n':\n    control('{way}', {number}, byte)",
        stdin="/dev/tty",
    )
    lab.wait("lab", "idle")
    assert lab.output("echo after").endswith("after\n")
    assert not injected.exists()


@INTEL
@pytest.mark.parametrize("way", ["plain", "x32"])
def test_t4_no_console_call_on_the_terminal(lab: Lab, way: str) -> None:
    """TIOCLINUX: pastes the selection of a console, which is the same as typing it."""
    out = lab.py(
        IOCTLS
        + f"print('CALLED', control('{way}', 0x541c, 3), ctypes.get_errno())\n"
        + f"print('CALLED', control('{way}', 0x541c | 1 << 32, 3), ctypes.get_errno())",
        stdin="/dev/tty",
    )
    errors = set(re.findall(r"CALLED -1 (\d+)", out))
    assert len(re.findall("CALLED -1", out)) == 2 and errors <= {"1", "13", "38"}, out


def test_t4_no_other_terminal_can_be_written(lab: Lab) -> None:
    master, slave = os.openpty()
    os.set_blocking(master, False)
    number = os.path.basename(os.ttyname(slave))
    try:
        lab.sh(
            f"echo evil >/dev/pts/{number}; echo evil >/proc/1/root/dev/pts/{number}; "
            f"unshare -Urm sh -c 'mount -t devpts none /mnt; mount -t devpts none /dev/pts; "
            f"echo evil >/mnt/{number}; echo evil >/dev/pts/{number}'"
        )
        with pytest.raises(BlockingIOError):
            os.read(master, 100)
    finally:
        os.close(master)
        os.close(slave)


def test_t4_only_harmless_devices_open(lab: Lab) -> None:
    out = lab.py(
        "import stat\n"
        "for top, _, names in os.walk('/dev'):\n"
        "    for name in names:\n"
        "        info = tries(os.lstat, f'{top}/{name}')\n"
        "        if hasattr(info, 'st_mode') and stat.S_IFMT(info.st_mode) in (0o20000, 0o60000):\n"
        "            print('DEVICE', f'{top}/{name}')\n"
        "for name in ('mem', 'kmem', 'port', 'kmsg', 'fuse', 'kvm', 'vda', 'sda', 'loop0',\n"
        "             'loop-control', 'vfio/vfio', 'net/tun', 'uinput', 'input/event0', 'tty0',\n"
        "             'tty1', 'console', 'vcs', 'rtc0', 'watchdog', 'cpu_dma_latency', 'hpet'):\n"
        "    print('OPEN', name, tries(os.open, f'/dev/{name}', os.O_RDONLY | os.O_NONBLOCK))"
    )
    assert not re.findall(r"^OPEN \S+ \d+\s*$", out, re.M)
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts/ptmx", "console"}
    devices = {name.removeprefix("/dev/") for name in re.findall(r"DEVICE (\S+)", out)}
    assert {d for d in devices if not d.startswith("pts/")} <= harmless
    assert "null" in devices


# ---------------------------------------------------------------- servers outside


@contextlib.contextmanager
def server(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        try:
            yield listener
        finally:
            if not path.startswith("\0"):
                os.unlink(path)


def called(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


CONNECT = """
for path in {paths}:
    s = socket.socket(socket.AF_UNIX)
    print('CONNECT', tries(s.connect, path))
"""


ORDERS = (
    """
fd = tries(os.open, '{pipe}', os.O_WRONLY | os.O_NONBLOCK)
print('WROTE', tries(os.write, fd, b'evil') if isinstance(fd, int) else fd)
"""
    + CONNECT
)


@pytest.mark.parametrize("top", ["/tmp", "/run", "/dev/shm", "/var/tmp", "HOME", "/run/user"])
def test_t4_a_socket_that_appears_later_is_out_of_reach(lab: Lab, top: str) -> None:
    place = lab.user if top == "HOME" else Path(top)
    if not os.access(place, os.W_OK):
        pytest.skip(f"this user makes no socket in {top}")
    path = f"{place}/hf-{lab.base.name}.sock"
    names = [path, f"/proc/self/root{path}", f"/proc/1/root{path}", f"{lab.project}/link.sock"]
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{lab.project}/link.sock")
    os.symlink(path, f"{lab.project}/link.sock")
    with server(path) as listener:
        lab.py(CONNECT.format(paths=names))
        assert not called(listener)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_t4_a_tmux_server_that_starts_later_takes_no_order(lab: Lab) -> None:
    """A real one, at its default place in /tmp; and one at a place in the home."""
    mark = lab.base / "from-tmux"
    name, other = lab.base.name, lab.user / "tmux.sock"
    environment = {**lab.env, "TMUX_TMPDIR": "/tmp"}
    for where in (["-L", name], ["-S", str(other)]):
        tmux = ["tmux", "-f", "/dev/null", *where]
        subprocess.run([*tmux, "new-session", "-d", "sleep 600"], env=environment, check=True)
        try:
            lab.sh(
                f"TMUX_TMPDIR=/tmp timeout 10 tmux {' '.join(where)} run-shell 'touch {mark}'\n"
                f"timeout 10 tmux -S /tmp/tmux-$(id -u)/{name} run-shell 'touch {mark}'\n"
                f"timeout 10 tmux -S /proc/1/root/tmp/tmux-{os.getuid()}/{name} "
                f"run-shell 'touch {mark}'"
            )
            assert not mark.exists()
        finally:
            subprocess.run([*tmux, "kill-server"], env=environment, check=False)


def test_t4_a_pipe_in_a_tool_directory_takes_no_order(lab: Lab) -> None:
    """A read-only mount does not keep code from writing to a pipe or a socket in it."""
    pipe, path = lab.bin / "orders", f"{lab.bin}/orders.sock"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with server(path) as listener, session(lab) as name:
            out = lab.py(ORDERS.format(pipe=pipe, paths=[path]), name)
            assert os.read(reader, 100) == b"", out
            assert not called(listener), out
    finally:
        os.close(reader)
        pipe.unlink()


@pytest.mark.parametrize("mode", ["", ":rw"])
def test_t4_a_pipe_in_a_share_takes_no_order(lab: Lab, mode: str) -> None:
    share = Path(tempfile.mkdtemp(dir=lab.user))
    pipe, path = share / "orders", f"{share}/orders.sock"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with server(path) as listener, session(lab, "--share", f"{share}{mode}") as name:
            out = lab.py(ORDERS.format(pipe=pipe, paths=[path]), name)
            assert os.read(reader, 100) == b"", out
            assert not called(listener), out
    finally:
        os.close(reader)
        shutil.rmtree(share)


@pytest.mark.parametrize("net", ["own", "none"])
def test_t4_an_abstract_socket_is_out_of_reach_in_another_network(lab: Lab, net: str) -> None:
    if net == "own" and not connectors.usable():
        pytest.skip("this account cannot connect a network; tests/hostile/network has one that can")
    name = f"\0hf-{lab.base.name}"
    with (
        server(name) as listener,
        socket.create_server(("127.0.0.1", 0)) as port,
        session(lab, "--net", net) as inside,
    ):
        port.setblocking(False)
        lab.py(CONNECT.format(paths=[name]), inside)
        lab.py(f"print(tries(socket.create_connection, {port.getsockname()}, 3))", inside)
        assert not called(listener)
        assert not select.select([port], [], [], 0)[0]


def test_t4_no_socket_of_a_family_that_a_network_namespace_does_not_bound(lab: Lab) -> None:
    """vsock leads to the hypervisor and to servers of the machine, from every namespace."""
    out = lab.py(
        "for family in range(64):\n"
        "    for kind in (1, 2, 3, 5):\n"
        "        found = tries(socket.socket, family, kind)\n"
        "        if not isinstance(found, str):\n"
        "            print('OPENS', family)\n"
        "            found.close()\n"
        "        elif 'family not supported' not in found:\n"
        "            print('KNOWN', family)\n"
    )
    opened = set(map(int, re.findall(r"OPENS (\d+)", out)))
    known = set(map(int, re.findall(r"KNOWN (\d+)", out)))
    assert {1, 2, 16} <= opened and opened | known <= {1, 2, 10, 16}, (opened, known)


@INTEL
def test_t4_nor_by_the_old_call_for_sockets(lab: Lab) -> None:
    """socketcall of 32-bit programs hides the family in memory."""
    if not runs_32_bit():
        pytest.skip("the kernel has no 32-bit calls")
    out = lab.py(
        IOCTLS
        + "ctypes.memmove(below_4g, struct.pack('3I', 40, 1, 0), 12)\n"
        + "def old(*words):  # push rbx; mov eax, ebx, ecx and edx; int 0x80; pop rbx; ret\n"
        + "    moves = b''.join(bytes([m]) + struct.pack('I', w) for m, w in"
        " zip(b'\\xb8\\xbb\\xb9\\xba', words))\n"
        + "    found = machine_code(b'\\x53' + moves + b'\\xcd\\x80\\x5b\\xc3')(0, 0, 0, 0)\n"
        + "    return ctypes.c_int(found).value\n"
        + "print('CALLED', old(102, 1, below_4g, 0), old(359, 40, 1, 0))"
    )
    assert "CALLED -97 -97" in out, out


def test_t4_shared_memory_and_queues_are_the_sessions_own(lab: Lab) -> None:
    name = f"hf-{lab.base.name}"
    lab.py(
        f"open('/dev/shm/{name}', 'w').write('evil')\n"
        "print('SEGMENT', libc.shmget(0x68660001, 4096, 0o1666))\n"
        f"print(libc.mq_open(b'/{name}', 0o102, 0o666, None))"
    )
    libc = ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(0x68660001, 4096, 0)
    if segment != -1:
        libc.shmctl(segment, 0, None)
    there = Path(f"/dev/shm/{name}").exists()
    Path(f"/dev/shm/{name}").unlink(missing_ok=True)
    assert segment == -1 and not there


def test_t4_the_session_ends_clean(lab: Lab) -> None:
    """After all attacks of this file: the common session still runs, and no process is loose."""
    assert lab.output("echo here") == "here\n"
    eventually(lambda: not running(f"{lab.project}/try.py"), "the end of the last attack")

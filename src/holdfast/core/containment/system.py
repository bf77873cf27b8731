"""The parts of the machine's system that every contained session sees, all read-only.

For an ordinary user `/etc` is shown whole: the files that this user may not read stay closed,
because the session has no other uid. A root host could read them, so for root ETC lists the entries
that are shown, as far as every user may read the files.
"""

from __future__ import annotations

from holdfast.core.containment.entries import Entry, Files, Kind, shares, within

LINKED_TOPS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
TOPS = ("/usr", "/nix", "/snap")
OPTIONAL = "/opt"
# The nix daemon builds and runs programs for clients, outside of the session.
NIX_DAEMON = "/nix/var/nix/daemon-socket"
VAR = (
    "/var/lib/dpkg",
    "/var/lib/rpm",
    "/var/lib/pacman/local",
    "/var/lib/alternatives",
    "/var/lib/apt/lists",
    "/var/cache/fontconfig",
    "/var/cache/man",
    "/var/cache/ldconfig",
    "/var/lib/texmf",
    "/var/lib/snapd/snap",
)
# Locks of package managers: a program that may read the file can hold the lock.
LOCKS = (
    *("/var/lib/dpkg/lock", "/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/triggers/Lock"),
    *("/var/lib/apt/lists/lock", "/var/lib/rpm/.rpm.lock"),
)
VAR_LINKS = (("/var/run", "/run"), ("/var/lock", "/run/lock"))
SYS = (
    "/sys/devices/system/cpu",
    "/sys/devices/system/node",
    "/sys/kernel/mm/transparent_hugepage",
)
# Never a workspace, and never shared for writing, not even in part.
CLOSED = (
    *TOPS,
    *LINKED_TOPS,
    *("/boot", "/dev", "/etc", "/lost+found", "/proc", "/run", "/sys", "/var/run"),
)

# Entries of /etc for a root host. Of a directory, the files that every user may read are shown.
# Not here, on purpose: shadow, gshadow, sudoers, pam.d, cron, ssh host keys, ssl/private, the
# configuration of servers, and files that commonly hold passwords (mercurial's [auth], gemrc).
ETC: tuple[str, ...] = (
    # names, addresses, time
    *("passwd", "group", "nsswitch.conf", "hosts", "hostname", "host.conf", "resolv.conf"),
    *("services", "protocols", "networks", "ethertypes", "rpc", "gai.conf", "machine-id"),
    *("localtime", "timezone", "adjtime", "locale.alias", "locale.conf", "locale.gen"),
    *(
        "default/locale",
        "subuid",
        "subgid",
        "login.defs",
        "shells",
        "mtab",
        "bindresvport.blacklist",
    ),
    # the release
    *("os-release", "lsb-release", "debian_version", "redhat-release", "fedora-release"),
    *("alpine-release", "arch-release", "system-release", "issue", "issue.net", "dpkg/origins"),
    # the dynamic linker, certificates
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "ld-musl-x86_64.path"),
    *("ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "ca-certificates", "ca-certificates.conf"),
    *("pki/ca-trust", "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf"),
    *("crypto-policies", "gnutls"),
    # shells and terminals
    *("profile", "profile.d", "bash.bashrc", "bashrc", "bash", "bash_completion"),
    *("bash_completion.d", "zsh", "zshenv", "zshrc", "zprofile", "zlogin", "zlogout", "fish"),
    *("inputrc", "environment", "skel", "terminfo", "screenrc", "tmux.conf", "DIR_COLORS"),
    # tools and their defaults
    *("alternatives", "gitconfig", "gitattributes", "vim", "vimrc", "nanorc", "emacs", "magic"),
    *("mime.types", "mailcap", "wgetrc", "curlrc", "lynx", "manpath.config", "man_db.conf"),
    *("ssh/ssh_config", "ssh/ssh_config.d", "ssh/ssh_known_hosts", "fonts", "xdg", "xattr.conf"),
    *("python3", "python3.9", "python3.10", "python3.11", "python3.12", "python3.13"),
    *("python3.14", "python2.7", "pip.conf", "perl", "npmrc", "maven", "gradle", "ant", "R"),
    *("java", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "java-25-openjdk"),
    *("apt/sources.list", "apt/sources.list.d", "apt/trusted.gpg.d", "apt/keyrings"),
    *("apt/apt.conf.d", "apt/preferences.d", "yum.repos.d", "dnf/dnf.conf", "nix/nix.conf"),
    *("ImageMagick-6", "ImageMagick-7", "ghostscript", "OpenCL", "vulkan", "glvnd", "texmf"),
    # Browsers, without `policies/enrollment`: that token enrols a machine at an organisation.
    *("chromium.d", "chromium/policies/managed", "chromium/policies/recommended", "firefox"),
    *("chromium/master_preferences", "chromium/native-messaging-hosts", "firefox-esr"),
    *("opt/chrome/policies/managed", "opt/chrome/policies/recommended"),
    # X11 without the display managers and servers of the machine
    *("X11/app-defaults", "X11/fonts", "X11/xkb", "X11/rgb.txt", "X11/cursors", "X11/locale"),
    *("gtk-2.0", "gtk-3.0", "gtk-4.0", "drirc", "alsa", "groff", "papersize", "paperspecs"),
    *("sgml", "xml", "gdb", "dotnet", "irbrc", "uv/uv.toml", "lesskey"),
    # NixOS: the targets of links in /etc
    *("static", "profiles", "set-environment"),
)
# Files of /etc that are often links to places outside of /etc.
ETC_LINKS = ("resolv.conf", "hosts", "hostname", "localtime", "timezone", "machine-id")
APART_MAX = 64  # entries of a directory of ETC that are shown singly; of more, none is shown
DEPTH_MAX = 4  # of a directory of ETC


def system(files: Files, root: bool) -> list[Entry]:
    """The entries of the machine's system. `root`: the host is root."""
    found = [shares(top) for top in TOPS if files.kind(top) == "dir"]
    for top in LINKED_TOPS:
        found += _copied(files, top)
    found += _opt(files, root)
    if files.kind(NIX_DAEMON) == "dir":
        found.append(Entry(Kind.EMPTY, NIX_DAEMON))
    found += [shares(place) for place in (*VAR, *SYS) if files.kind(place) == "dir"]
    found += [Entry(Kind.EMPTY, place) for place in LOCKS if files.kind(place) == "file"]
    found += [Entry(Kind.LINK, target, text) for target, text in VAR_LINKS]
    if not root:
        return [*found, shares("/etc")]
    for name in ETC:
        found += _etc(files, f"/etc/{name}")
    return found


def linked_files(files: Files, shown: list[Entry]) -> list[Entry]:
    """The files outside of /etc behind links in /etc, like systemd's resolv.conf below /run."""
    found = []
    for name in ETC_LINKS:
        place = f"/etc/{name}"
        if files.kind(place) != "link":
            continue
        real = files.real(place)
        if files.kind(real) == "file" and not any(
            within(real, entry.target) for entry in shown if entry.kind is Kind.READ
        ):
            found.append(shares(real))
    return found


def _copied(files: Files, path: str) -> list[Entry]:
    """A directory as it is; a link as a link with the same text."""
    match files.kind(path):
        case "link":
            return [Entry(Kind.LINK, path, files.link(path))]
        case "dir" | "file":
            return [shares(path)]
    return []


def _opt(files: Files, root: bool) -> list[Entry]:
    if files.kind(OPTIONAL) != "dir":
        return []
    if not root:
        return [shares(OPTIONAL)]
    places = [f"{OPTIONAL}/{name}" for name in files.names(OPTIONAL)]
    return [
        entry
        for place in places
        if files.kind(place) == "link" or files.public(place)
        for entry in _copied(files, place)
    ]


def _etc(files: Files, path: str, depth: int = DEPTH_MAX) -> list[Entry]:
    """The files that every user may read. A directory with a closed entry is shown entry by entry.

    A mount that covered the closed entry would go as soon as the machine replaces the file.
    """
    if files.kind(path) == "link":
        return _copied(files, path)
    if not files.kind(path) or not files.public(path):
        return []
    if not _has_closed(files, path, depth):
        return _copied(files, path)
    names = files.names(path)
    if len(names) > APART_MAX:
        return []
    return [entry for name in names for entry in _etc(files, f"{path}/{name}", depth - 1)]


def _has_closed(files: Files, top: str, depth: int) -> bool:
    """Whether some user may not read an entry below a directory."""
    if files.kind(top) != "dir" or not depth:
        return False
    places = [f"{top}/{name}" for name in files.names(top)]
    return any(
        not files.public(place) or _has_closed(files, place, depth - 1)
        for place in places
        if files.kind(place) != "link"
    )

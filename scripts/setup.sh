# Sourced by ./holdfast and ./check: a virtual environment in .venv with this project in it.
# Installs missing packages with apt-get as root or with sudo; otherwise prints their names.

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
venv="$here/.venv"

say() { printf '%s\n' "$*" >&2; }

apt_install() {
    command -v apt-get >/dev/null 2>&1 || { say "please install: $*"; return 1; }
    if [ "$(id -u)" = 0 ]; then as_root=; elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then as_root=sudo
    else say "please install (needs root): apt-get install $*"; return 1; fi
    say "installing $* ..."
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >/dev/null 2>&1 && return 0
    $as_root apt-get -qq update >/dev/null 2>&1
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >/dev/null
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
        [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 && new_enough "$candidate" && { command -v "$candidate"; return 0; }
    done
    apt_install python3 python3-venv && new_enough python3 && { command -v python3; return 0; }
    say "holdfast needs Python 3.11 or later"
    return 1
}

# setup EXTRAS: makes .venv and installs the project into it, once per state of pyproject.toml.
setup() {
    python=$(find_python) || return 1
    if ! "$venv/bin/python" -c 'import pip' >/dev/null 2>&1; then
        say "setting up $venv ..."
        rm -rf "$venv"
        if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
            version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
            apt_install "python$version-venv" || apt_install python3-venv || return 1
            rm -rf "$venv"
            "$python" -m venv "$venv" || return 1
        fi
    fi
    stamp="$venv/.installed$1"
    if [ ! -e "$stamp" ] || [ "$here/pyproject.toml" -nt "$stamp" ]; then
        say "installing holdfast$1 and what it needs ..."
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e "$here$1" >"$venv/install.log" 2>&1 ||
            { cat "$venv/install.log" >&2; return 1; }
        touch "$stamp"
    fi
}

# with_network: the programs that connect a contained session's own network. Goes on without them.
with_network() {
    missing=
    command -v pasta >/dev/null 2>&1 || missing="passt"
    command -v slirp4netns >/dev/null 2>&1 || missing="$missing slirp4netns"
    # shellcheck disable=SC2086
    [ -z "$missing" ] || apt_install $missing || say "going on without: contained sessions use the machine's network"
}

# Fetches packages of Debian into .cache/NAME, without installing them. scripts/criu and
# scripts/etcd source this file, after they have set:
#
#   name, title    the folder below .cache, and the name in messages
#   packages       what apt-get is asked for; the first one must be found
#   needed         an expression for the names of the packages that are fetched
#   suites         Debian's suites, tried in this order
#   kept           a directory that may have kept packages
#   finish()       called in $place with the unpacked packages in root/
#
# `main "$@"` fetches what scripts/NAME.lock names for this machine's architecture, or with `lock`
# writes a new lock for amd64 and arm64. If no mirror has a package of the lock any more, the newest
# packages are fetched instead, signed by Debian's key. Each later run then looks for the packages of
# the lock again.
# The packages come from the mirrors of this machine's own apt sources; sha256 is checked. Programs
# run with their own loader and libc, so the Debian of this machine does not matter.
set -eu
here=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
lock=$here/scripts/$name.lock
place=$here/.cache/$name

give_up() {
    printf 'no %s: %s\n' "$title" "$*" >&2
    exit 1
}

mirrors() {
    find /etc/apt/sources.list /etc/apt/sources.list.d -type f -exec cat {} + 2>/dev/null |
        sed -n -E 's/#.*//; /^(deb|URIs:)[[:space:]]/s|.*[[:space:]](https?://[^[:space:]]+).*|\1|p' | sort -u
}

choose() {
    own=$place/apt
    rm -rf "$own"
    mkdir -p "$own/lists/partial" "$own/cache/archives/partial"
    : >"$own/status"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$1" "$2" >"$own/sources"
    cat >"$own/conf" <<END
Dir::Etc { sourcelist "$own/sources"; sourceparts "/dev/null"; main "/dev/null"; parts "/dev/null";
  preferences "/dev/null"; preferencesparts "/dev/null"; };
Dir::State "$own"; Dir::State::lists "$own/lists"; Dir::State::status "$own/status"; Dir::Cache "$own/cache";
APT::Architecture "$machine"; APT::Architectures { "$machine"; }; APT::Sandbox::User "root";
Acquire::Languages "none"; Acquire::Check-Valid-Until "false"; Acquire::ForceHash "sha256"; Debug::NoLocking "true";
END
    export APT_CONFIG="$own/conf"
    apt-get -qq update >&2 || return 1
    # 'URI' FILE SIZE HASH: the path below the mirror is kept
    apt-get --no-install-recommends --print-uris -qq -y install $packages |
        sed -n "s|^'$1/*\([^']*\)' \([^ ]*\) [0-9]* SHA256:\([0-9a-f]*\)\$|\2 \3 \1|p" |
        grep -E "^($needed)_" >"$own/lock"
    grep -q "^${packages%% *}_" "$own/lock"
}

good() { [ -f "$1" ] && [ "$(sha256sum <"$1" | cut -d' ' -f1)" = "$2" ]; }

# A wrapper BIN for the unpacked PROGRAM, which uses the unpacked loader and libraries.
wrap() {
    loader=$(cd "$place/root" && find . -name 'ld-linux-*.so*' -type f | head -1)
    printf '%s\n' "${loader#./}" >"$place/loader"
    cat >"$place/bin/$1" <<END
#!/bin/sh
exec "$place/root/${loader#./}" --library-path "$place/root/$(dirname "${loader#./}")" --argv0 $1 "$place/root/$2" "\$@"
END
    chmod 755 "$place/bin/$1"
}

main() {
    for program in apt-get dpkg dpkg-deb curl sha256sum; do
        command -v $program >/dev/null 2>&1 || give_up "$program is not installed"
    done
    machine=$(dpkg --print-architecture)
    mirrors=$(mirrors)
    if [ "${1:-}" = lock ]; then
        for machine in amd64 arm64; do
            newest || give_up "no mirror of this machine offers it for $machine"
            cp "$place/apt/lock" "$place/$machine"
        done
        cat "$place/amd64" "$place/arm64" >"$lock"
        rm "$place/amd64" "$place/arm64"
        exit 0
    fi
    grep -q "_$machine\.deb " "$lock" || give_up "scripts/$name.lock is not for $machine"
    state=$(cat "$lock" "$0" "$here/scripts/debian.sh" | sha256sum | cut -d' ' -f1)
    there=$(cat "$place/state" 2>/dev/null || true)
    [ "$there" != "$state" ] || exit 0
    chosen=$lock
    if ! fetch "$chosen"; then
        state="newest instead of $state" chosen=$place/apt/lock
        [ "$there" != "$state" ] || exit 0
        printf 'a package of scripts/%s.lock is at no mirror of this machine: taking the newest\n' "$name" >&2
        newest && fetch "$chosen" || give_up "no mirror of this machine offers it"
    fi
    rm -f "$place/state"
    unpack "$chosen" || give_up "its packages cannot be unpacked"
    finish
    chmod -R a+rX "$place"
    printf '%s\n' "$state" >"$place/state"
}

newest() {
    for suite in $suites; do
        for mirror in $mirrors; do
            choose "${mirror%/}" "$suite" 2>/dev/null && return 0
        done
    done
    return 1
}

# Fetches the packages that the file LOCK names.
fetch() {
    mkdir -p "$place/debs"
    while read -r file hash path; do
        package=$place/debs/$file
        good "$package" "$hash" || cp -f "$kept/$file" "$package" 2>/dev/null || true
        for mirror in $mirrors; do
            good "$package" "$hash" && break
            curl -fsS --max-time 60 -o "$package" "${mirror%/}/$path" 2>/dev/null || true
        done
        good "$package" "$hash" || return 1
    done <<END
$(named "$1")
END
}

# The lines of the file LOCK for this machine's architecture.
named() { grep -E "_($machine|all)\.deb " "$1"; }

unpack() {
    rm -rf "$place/root" "$place/bin"
    mkdir -p "$place/root" "$place/bin"
    while read -r file _; do
        dpkg-deb -x "$place/debs/$file" "$place/root" || return 1
    done <<END
$(named "$1")
END
}

# Holdfast's shell integration for dash and other plain POSIX shells. `launch.py` writes a header in front of this
# text (`_hf`, `_hf_nonce`, `_hf_esc`, `_hf_bel`, ENV as it was) and starts the shell with ENV naming this file.
#
# Such a shell has no hook but PS1, which it expands before each prompt: parameters, arithmetic and $? only,
# so nothing forks. There is no mark for the start of a typed command. A typed PS1=... removes the marks until
# the next run puts them back; a typed `exec 2>file` sends the prompt, and the nonce in it, into the file.
# The nonce is in PS1 by reference only, because people export PS1. Variables here are scalars: under `set -a`
# the sequence number may reach the environment, the nonce never does.

_hf_mark() {  # KIND;ARGS
    _hf_seq=$((_hf_seq + 1))
    command printf '\033]7717;%s;%s;%s\007' "$_hf_nonce" "$_hf_seq" "$1" >/dev/tty || :
}

# Under `set -e` a status that is only handed on must not end the shell.
_hf_status() {
    case $- in *e*) ;; *) return "$1" ;; esac
}

# Before the text of a run. Tracing pauses until the text itself begins. (If that cannot be parsed, the shell
# goes back to its prompt at once and tracing resumes with the next run.)
_hf_begin() {  # $?, run id, lines to show
    case $-$_hf_prefix in *x*)
        set +x
        _hf_prefix='{ _hf_trace "$?"; } 2>/dev/null; ' ;;
    esac
    _hf_last=$1 _hf_id=$2
    shift 2
    command printf '%s\n' "$@" >/dev/tty || :
    command printf '\033]133;C\007' >/dev/tty || :
    _hf_mark "R;$_hf_id"
    _hf_status "$_hf_last"
}

_hf_trace() {  # $?
    _hf_prefix=
    set -x
    _hf_status "$1"
}

# What this shell is made of, as far as such a shell can say it, for the host (core/shellstate.py reads it): at its start and at the end of each
# run. At a prompt it has no way to, and functions it cannot list at all. Written over, not emptied first: see bash.rc.
_hf_shape() {
    _hf_list 1<>"${_hf%/*}/shape.$(((_hf_seq + 1) % 8))" || :
}

_hf_list() {
    command printf 'hf1\0posix\0%s\0' "$((_hf_seq + 1))" && set && command printf '\0' && command export -p && command printf '\0' && command alias &&
        command printf '\0%s\0' "$-" && command trap && command printf '\0end %s\0' "$((_hf_seq + 1))"
}

_hf_end() {  # $?, run id; descriptor 3 is the shell's stderr
    _hf_shape
    _hf_mark "D;$2;$1"
    if [ -t 3 ]; then
        _hf_after
    else
        # The prompt goes into a file: say here that it is next, and keep the nonce out of that file.
        PS1=${PS1#"$_hf_before"}
        _hf_mark "P;$1"
    fi
    _hf_status "$1"
}

_hf_after() {
    case ${PS1-} in
        *"$_hf_before"*) ;;
        *) PS1=$_hf_before${PS1-}$_hf_behind ;;
    esac
}

_hf_seq=0
_hf_prefix=
_hf_before="$_hf_esc]7717;\${_hf_nonce-};\$((_hf_seq+=1));P;\$?$_hf_bel"
_hf_before="$_hf_before$_hf_esc]133;D;\$?$_hf_bel$_hf_esc]133;A$_hf_bel"
_hf_behind="$_hf_esc]133;B$_hf_bel"

# The user's own files, as the shell would read them.
if [ "$_hf_files" = login ]; then
    if [ -r /etc/profile ]; then . /etc/profile; fi
    if [ -r ~/.profile ]; then . ~/.profile; fi
fi
if [ "${ENV-}" ]; then
    eval "_hf_env=\"$ENV\""
    if [ -r "$_hf_env" ]; then . "$_hf_env"; fi
fi

{ _hf_after; _hf_shape; } 2>/dev/null

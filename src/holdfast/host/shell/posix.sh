# Holdfast's shell integration for dash and other plain POSIX shells. `launch.py` writes a header in
# front of this text (`_hf`, `_hf_esc`, `_hf_bel`, the old ENV, `_hf_own` if the shell writes in
# another directory than the host) and starts the shell with ENV naming this file.
#
# The only hook of such a shell is PS1, which is expanded before each prompt: parameters, arithmetic
# and $? only, so nothing forks. There is no mark for the start of a typed command. A typed PS1=...
# removes the marks until the next run restores them. A typed `exec 2>file` sends the prompt, with
# its marks, into the file. PS1 contains the key by reference only, because people export PS1.
# Variables here are scalars: under `set -a` the sequence number may reach the environment, the key
# never does.

# The host writes the start of every tag into a file. It is read once and emptied at once, before
# any other code of the session runs. core/session/mark_tags.py says what a tag is; `_hf_tag` is the
# arithmetic for the tag of _hf_m. There is no comma operator, so each step is multiplied by 0 and
# added. At its end it overwrites the intermediate values, from which the key could be computed:
# under `set -a` they are in the environment of the next command.
_hf_key() {
    IFS=' ' read -r _hf_a _hf_b _hf_c _hf_d <"${_hf_own-${_hf%/*}}/key"
    : >|"${_hf_own-${_hf%/*}}/key"
    _hf_m='(_hf_b=((_hf_b<<13)|((_hf_b>>51)&8191))^(_hf_a+=_hf_b))*0'
    _hf_m="$_hf_m"'+(_hf_a=((_hf_a<<32)|((_hf_a>>32)&4294967295))'
    _hf_m="$_hf_m"'+(_hf_d=((_hf_d<<16)|((_hf_d>>48)&65535))^(_hf_c+=_hf_d)))*0'
    _hf_m="$_hf_m"'+(_hf_d=((_hf_d<<21)|((_hf_d>>43)&2097151))^_hf_a)*0'
    _hf_m="$_hf_m"'+(_hf_b=((_hf_b<<17)|((_hf_b>>47)&131071))^(_hf_c+=_hf_b))*0'
    _hf_m="$_hf_m"'+(_hf_c=(_hf_c<<32)|((_hf_c>>32)&4294967295))*0'
    _hf_tag="(_hf_a=$_hf_a)*0+(_hf_b=$_hf_b)*0+(_hf_c=$_hf_c)*0+(_hf_d=($_hf_d)^_hf_m)*0+$_hf_m"
    _hf_tag="$_hf_tag+(_hf_a=_hf_a^_hf_m)*0+(_hf_c=_hf_c^255)*0+$_hf_m+$_hf_m+$_hf_m"
    _hf_tag="$_hf_tag+(_hf_m=_hf_a^_hf_b^_hf_c^_hf_d)*0"
    _hf_tag="$_hf_tag+(_hf_a=0)*0+(_hf_b=0)*0+(_hf_c=0)*0+(_hf_d=0)*0+_hf_m"
    _hf_a=0 _hf_b=0 _hf_c=0 _hf_d=0 _hf_m=0
}
_hf_key
unset -f _hf_key

_hf_mark() {  # number of the letter KIND, exit status, KIND;ARGS
    _hf_m=$(((7 << 56) | ((_hf_seq += 1) << 24) | ($1 << 16) | ($2 & 65535)))
    command printf '\033]7717;%s;%s;%s\007' "$(($_hf_tag))" "$_hf_seq" "$3" >/dev/tty || :
}

# Under `set -e` a status that is only passed on must not end the shell.
_hf_status() {
    case $- in *e*) ;; *) return "$1" ;; esac
}

# Before the text of a run. Tracing pauses until the text itself begins. (If the text does not
# parse, the shell returns to the prompt at once and tracing resumes with the next run.)
_hf_begin() {  # $?, run id, lines to show
    case $-$_hf_prefix in *x* | *_hf_trace*)
        set +x
        _hf_prefix='{ _hf_trace "$?"; } 2>/dev/null; ' ;;
    *)
        _hf_prefix= ;;  # it is run before the text, so no other code may choose it
    esac
    _hf_last=$1 _hf_id=$2
    shift 2
    command printf '%s\n' "$@" >/dev/tty || :
    command printf '\033]133;C\007' >/dev/tty || :
    _hf_mark 82 0 "R;$_hf_id"
    _hf_status "$_hf_last"
}

_hf_trace() {  # $?
    _hf_prefix=
    set -x
    _hf_status "$1"
}

# A snapshot of this shell's state for the host, as far as a POSIX shell can tell it
# (core/originators/shell_state.py reads it): at the start and at the end of each run. It is
# impossible at a prompt, and functions cannot be listed at all. The file is not truncated first:
# see bash.rc.
_hf_shape() {
    _hf_list 1<>"${_hf_own-${_hf%/*}}/shape.$(((_hf_seq + 1) % 8))" || :
}

_hf_list() {
    local _hf_tag=  # keeps the key out of the listing, which programs of the session can read
    command printf 'hf1\0posix\0%s\0' "$((_hf_seq + 1))" && set && command printf '\0' && command export -p && command printf '\0' && command alias &&
        command printf '\0%s\0' "$-" && command trap && command printf '\0end %s\0' "$((_hf_seq + 1))"
}

_hf_end() {  # $?, run id; descriptor 3 is the shell's stderr
    _hf_shape
    _hf_mark 68 "$1" "D;$2;$1"
    if [ -t 3 ]; then
        _hf_after
    else
        # The prompt goes into a file: announce it here, and keep marks out of that file.
        PS1=${PS1#"$_hf_before"}
        _hf_mark 80 "$1" "P;$1"
    fi
    _hf_status "$1"
}

_hf_after() {
    case ${PS1-} in
        *"$_hf_before"*) ;;
        *) PS1=$_hf_before${PS1-}$_hf_behind ;;
    esac
}

# The trigger of a run reads the file that `_hf` names: no command may change it.
readonly _hf
_hf_seq=0
_hf_prefix=
_hf_before="$_hf_esc]7717;\$(((_hf_m=(7<<56)|((_hf_seq+=1)<<24)|(80<<16)|(\$?&65535))*0"
_hf_before="$_hf_before+\${_hf_tag:-0}));\$_hf_seq;P;\$?$_hf_bel"
_hf_before="$_hf_before$_hf_esc]133;D;\$?$_hf_bel$_hf_esc]133;A$_hf_bel"
_hf_behind="$_hf_esc]133;B$_hf_bel"

# The user's files, as the shell would read them.
if [ "$_hf_files" = login ]; then
    if [ -r /etc/profile ]; then . /etc/profile; fi
    if [ -r ~/.profile ]; then . ~/.profile; fi
fi
if [ "${ENV-}" ]; then
    eval "_hf_env=\"$ENV\""
    if [ -r "$_hf_env" ]; then . "$_hf_env"; fi
fi

{ _hf_after; _hf_shape; } 2>/dev/null

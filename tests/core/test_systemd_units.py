"""Units for systemd: content, quoting, and detection of edited files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import systemd_units as units
from holdfast.core.systemd_units import Installation
from holdfast.model.errors import Impossible

USER = Installation("user", "ann", "/opt/hf/bin/python", "/home/ann/.local/state/holdfast", "1.2.3")
SYSTEM = Installation(
    "system", "ann", "/opt/hf/bin/python", "/home/ann/.local/state/holdfast", "1.2.3"
)
HARDENING = (
    "NoNewPrivileges",
    "Protect",
    "Private",
    "Restrict",
    "SystemCall",
    "Capabilit",
    "LockPersonality",
    "MemoryDeny",
    "ReadWritePaths",
    "DynamicUser",
)
TEXT = st.text(st.characters(blacklist_categories=("Cc", "Cs")), max_size=30)
NASTY = st.text(
    st.sampled_from(" \t%$\"'\\;#@-:+!~{}nxu0ah/é").filter(lambda c: c != "\t"), max_size=30
)


def settings(text: str, section: str = "Service") -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    inside = ""
    for line in text.splitlines():
        if line.startswith("["):
            inside = line.strip("[]")
        elif line and not line.startswith("#") and inside == section:
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def words(line: str) -> list[str]:
    """Split a command line as systemd.syntax(7) and systemd.service(5) say.

    Spaces outside of quotes, C escapes, %% and (not in a program's path) $$.
    """
    found: list[str] = []
    at = 0
    while at < len(line):
        if line[at] == " ":
            at += 1
            continue
        word, quote = "", ""
        while at < len(line) and (quote or line[at] != " "):
            c = line[at]
            if c == "\\":
                assert line[at + 1] in "\\\"'", "no other escape is written"
                word += line[at + 1]
                at += 2
            elif c == quote:
                quote, at = "", at + 1
            elif not quote and c in "\"'":
                quote, at = c, at + 1
            else:
                word, at = word + c, at + 1
        assert not quote, "a quote is open"
        found.append(word)
    return found


def unspecified(word: str) -> str:
    """Every % is doubled: no specifier is left."""
    pieces = word.split("%%")
    assert not any("%" in piece for piece in pieces), word
    return "%".join(pieces)


def unvaried(word: str) -> str:
    pieces = word.split("$$")
    assert not any("$" in piece for piece in pieces), word
    return "$".join(pieces)


@given(st.lists(TEXT | NASTY, min_size=1, max_size=5))
def test_arguments_come_out_as_they_went_in(arguments: list[str]) -> None:
    line = units.command("/bin/true", *arguments)
    program, *rest = words(line)
    assert program == "/bin/true"
    assert [unvaried(unspecified(word)) for word in rest] == arguments
    assert all(piece != ";" for piece in line.split()[1:2]), (
        "a bare semicolon would begin another command"
    )


@given(TEXT | NASTY)
def test_a_program_is_started_by_its_own_path_and_knows_it(name: str) -> None:
    path = f"/opt/{name}/python"
    if set(path) & set("\"'\\"):
        with pytest.raises(Impossible):
            units.command(path)
        return
    program, *rest = words(units.command(path, "-m", "x"))
    if "$" in path:
        assert program[0] == "@" and unvaried(unspecified(rest.pop(0))) == path, (
            "argv[0] is given by itself"
        )
        program = program[1:]
    assert unspecified(program) == path and rest == ["-m", "x"]


@given(TEXT | NASTY)
def test_an_environment_and_a_path_come_out_as_they_went_in(value: str) -> None:
    assert [unspecified(word) for word in words(units.setting("HOLDFAST_HOME", value))] == [
        f"HOLDFAST_HOME={value}"
    ]
    assert [unspecified(word) for word in words(units.path(f"/x{value}"))] == [f"/x{value}"]


@pytest.mark.parametrize("bad", ["a\nExecStart=/bin/sh", "a\x00b", "\x7f", "\udcff"])
def test_values_that_no_unit_can_express_are_refused(bad: str) -> None:
    for write in (
        units.argument,
        units.path,
        lambda text: units.setting("A", text),
        lambda text: units.command("/x" + text),
    ):
        with pytest.raises(Impossible):
            write(bad)


@pytest.mark.parametrize("installation", [USER, SYSTEM], ids=lambda p: p.manager)
def test_the_nursery_has_its_own_unit_without_hardening(installation: Installation) -> None:
    """Every session would inherit a hardening option."""
    said = settings(units.nursery(installation))
    assert not [name for name in said if name.startswith(HARDENING)]
    assert (
        said["KillMode"] == ["process"]
        and said["Delegate"] == ["yes"]
        and said["OOMPolicy"] == ["continue"]
        and said["TasksMax"] == ["infinity"]
    )
    assert settings(units.nursery(installation), "Unit")["PartOf"] == [units.HOST]
    assert said["ExecStart"][0].endswith(
        f"-m holdfast.keeper.nursery {installation.state}/run"
    ) and said["Type"] == ["notify"]


@pytest.mark.parametrize("installation", [USER, SYSTEM], ids=lambda p: p.manager)
def test_r9_the_drain_stops_before_host_and_nursery(installation: Installation) -> None:
    """systemd stops units in the reverse order of their start, and waits for ExecStop."""
    said, unit = settings(units.drain(installation)), settings(units.drain(installation), "Unit")
    assert unit["After"] == [units.HOST, units.NURSERY]
    assert not {"Requires", "BindsTo", "PartOf"} & unit.keys(), "a stop of the host is no shutdown"
    assert said["ExecStop"][0].endswith(
        f"-m holdfast drain --on-shutdown {installation.manager} --notice {units.DRAIN_NOTICE_S}s"
    )
    assert said["RemainAfterExit"] == ["yes"] and said["Type"] == ["oneshot"]
    assert units.DRAIN_NOTICE_S < units.DRAIN_STOP_S == int(said["TimeoutStopSec"][0])


@pytest.mark.parametrize("installation", [USER, SYSTEM], ids=lambda p: p.manager)
def test_the_host_is_hardened_and_finds_its_nursery(installation: Installation) -> None:
    said, unit = settings(units.host(installation)), settings(units.host(installation), "Unit")
    assert (
        said["NoNewPrivileges"] == ["yes"]
        and said["SystemCallFilter"]
        == ["@system-service", *(["bpf"] if installation.manager == "system" else [])]
        and said["Type"] == ["notify"]
    )
    assert unit["Wants"] == [units.NURSERY, units.DRAIN] and units.NURSERY in unit["After"]
    assert f"HOLDFAST_SERVICE={installation.manager}" in said["Environment"], (
        "or it would start a nursery of its own, and harden sessions"
    )
    assert said["KillMode"] == ["mixed"], "otherwise its client of the manager is told to end, too"
    assert (
        "MemoryDenyWriteExecute" not in said
        and "PrivateTmp" not in said
        and "RestrictRealtime" not in said
        and "ProtectControlGroups" not in said
    )
    assert said.get("ProtectSystem", []) == (
        ["full"] if installation.manager == "system" else []
    ), "a user namespace would hide sessions' processes; `strict` would keep it from their files"
    assert said.get("ReadWritePaths", []) == (
        [installation.state] if installation.manager == "system" else []
    )
    assert said.get("User", []) == (["ann"] if installation.manager == "system" else [])
    assert settings(units.host(installation), "Install")["WantedBy"] == [
        "default.target" if installation.manager == "user" else "multi-user.target"
    ]


def test_a_relay_has_an_account_of_its_own_on_a_machine() -> None:
    said = settings(units.relay(SYSTEM))
    assert (
        said["DynamicUser"] == ["yes"]
        and "User" not in said
        and said["StateDirectoryMode"] == ["0700"]
        and said["CapabilityBoundingSet"] == [""]
    )
    assert {
        "NoNewPrivileges",
        "ProtectSystem",
        "PrivateTmp",
        "MemoryDenyWriteExecute",
        "RestrictAddressFamilies",
    } <= set(said) and said["SystemCallFilter"][0] == "@system-service"
    own = settings(units.relay(USER))
    assert (
        "DynamicUser" not in own
        and own["MemoryDenyWriteExecute"] == ["yes"]
        and own["ExecStart"][0].endswith(f"relay serve --data {USER.state}/relay")
    )


def test_a_relay_gets_its_certificate_from_the_manager_and_its_port_by_a_capability() -> None:
    for options in (
        ["--tls-cert", "/c%d/a b.pem", "--tls-key=/k$.pem", "--listen", "0.0.0.0:443"],
        ["--listen=[::]:443", "--tls-cert=/c%d/a b.pem", "--tls-key", "/k$.pem"],
    ):
        said = settings(units.relay(SYSTEM, options))
        assert said["LoadCredential"] == ["tls-cert:/c%%d/a b.pem", "tls-key:/k$.pem"] and said[
            "AmbientCapabilities"
        ] == ["CAP_NET_BIND_SERVICE"]
        assert (
            "--tls-cert ${CREDENTIALS_DIRECTORY}/tls-cert" in said["ExecStart"][0]
            and "--tls-key ${CREDENTIALS_DIRECTORY}/tls-key" in said["ExecStart"][0]
        )
        assert "a b.pem" not in said["ExecStart"][0]
    assert "AmbientCapabilities" not in settings(
        units.relay(SYSTEM, ["--listen", "127.0.0.1:8410"])
    )
    with pytest.raises(Impossible):
        units.relay(SYSTEM, ["--tls-cert", "relative.pem"])
    assert (
        "--tls-cert /c.pem" in settings(units.relay(USER, ["--tls-cert", "/c.pem"]))["ExecStart"][0]
    ), "an account's own relay reads its own files"


def test_a_generated_file_is_recognised_until_it_is_edited() -> None:
    text = units.host(USER)
    newer = units.host(
        Installation(**{**{f: getattr(USER, f) for f in USER.__slots__}, "release": "9.9.9"})
    )
    assert units.compare(None, text) == "missing" and units.compare(text, text) == "current"
    assert units.compare(text, newer) == "outdated"
    assert units.compare(text.replace("Restart=on-failure", "Restart=no"), newer) == "edited"
    assert (
        units.compare(text + "# mine\n", newer) == "edited"
        and units.compare("[Service]\n", newer) == "edited"
        and units.compare("", newer) == "edited"
    )
    assert units.home_of(text) == USER.state and units.home_of("[Service]\n") is None


def test_t4_the_kernel_can_limit_sessions_beside_the_nursery_and_takes_services_last() -> None:
    """A group with processes cannot bound the groups below, so the nursery is in a group below."""
    for installation, value in ((USER, None), (SYSTEM, ["-900"])):
        nursery = settings(units.nursery(installation))
        assert nursery["Delegate"] == ["yes"]
        assert nursery["DelegateSubgroup"] == [units.KEEPERS]
        assert nursery.get("OOMScoreAdjust") == value
        assert settings(units.host(installation)).get("OOMScoreAdjust") == value

"""The options that the host uses, by name and type."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from holdfast.home import Home, config
from holdfast.model.contained import AUTO
from holdfast.model.limits import (
    CHECKPOINT_BYTES,
    CHECKPOINTS_KEPT,
    CONNECTION_SILENT_S,
    COPIES_BYTES,
    SPOOL_BYTES,
)
from holdfast.model.limits import LEASE_DRIFT as DRIFT
from holdfast.model.limits import LEASE_TERM_S as TERM_S


class LeaseSettings(NamedTuple):
    """The options `lease.*`."""

    store: str = "sqlite"
    path: str = ""
    term_s: float = TERM_S
    drift: float = DRIFT
    etcd_endpoints: tuple[str, ...] = ()
    etcd_prefix: str = "holdfast/"
    etcd_ca: str = ""
    etcd_certificate: str = ""
    etcd_key: str = ""
    etcd_password_file: str = ""


class Settings(NamedTuple):
    """The options that the host uses."""

    shell: str
    login_shell: bool
    ring_bytes: int
    keep_ended_s: float
    host_away_s: float
    pace_s: float
    turn_idle_s: float
    turn_gone_s: float
    turn_policy: str
    record_days: int
    spool_bytes: int = SPOOL_BYTES
    checkpoint_keep: int = CHECKPOINTS_KEPT
    checkpoint_bytes: int = CHECKPOINT_BYTES
    copies_bytes: int = COPIES_BYTES
    metrics: str = ""
    otlp: str = ""
    trace_names: bool = False
    trace_commands: bool = False
    gate: str = "auto"
    clipboard: bool = False
    inside: str = "refuse"  # acts of a client inside a session that another operator started
    agent_env: tuple[str, ...] = ()  # variables that agents and services may set
    # Of contained sessions, as core/session/limits.py reads them, and those that the file sets.
    limits: Mapping[str, str] = MappingProxyType({})
    limits_set: frozenset[str] = frozenset()
    contain_workspaces: tuple[str, ...] = ()
    contain_share: tuple[str, ...] = ()
    contain_doors: tuple[str, ...] = ()
    contain_net: str = AUTO
    contain_tool_files: str = "list"
    contain_keep_home: bool = False
    contain_publish: tuple[int, ...] = ()
    connections_silent_s: float = CONNECTION_SILENT_S
    reaper: Mapping[str, str] = MappingProxyType({})  # as core/reaper reads it
    lease: LeaseSettings = LeaseSettings()

    @classmethod
    def load(cls, home: Home) -> Settings:
        """The values of this home's configuration file."""
        effective = config.load(home.config)
        values = {one.key: one.value for one in effective}
        limits = [one for one in effective if one.key.startswith("limits.")]
        return cls(
            shell=values["session.shell"],
            login_shell=values["session.login_shell"],
            ring_bytes=values["session.ring_bytes"],
            keep_ended_s=values["session.keep_ended_s"],
            host_away_s=values["host.away_s"],
            pace_s=values["session.pace_s"],
            turn_idle_s=values["turn.idle_s"],
            turn_gone_s=values["turn.gone_s"],
            turn_policy=values["turn.policy"],
            record_days=values["record.keep_days"],
            spool_bytes=values["session.spool_bytes"],
            checkpoint_keep=values["checkpoint.keep"],
            checkpoint_bytes=values["checkpoint.disk_bytes"],
            copies_bytes=values["recovery.copies_bytes"],
            metrics=values["telemetry.metrics"],
            otlp=values["telemetry.otlp"],
            trace_names=values["telemetry.names"],
            trace_commands=values["telemetry.commands"],
            gate=values["session.gate"],
            clipboard=values["session.clipboard"],
            inside=values["session.inside"],
            agent_env=tuple(filter(None, values["session.agent_env"].replace(",", " ").split())),
            limits={one.key.removeprefix("limits."): str(one.value or "none") for one in limits},
            limits_set=frozenset(
                one.key.removeprefix("limits.") for one in limits if one.source != "default"
            ),
            contain_workspaces=tuple(values["contain.workspaces"]),
            contain_share=tuple(values["contain.share"]),
            contain_doors=tuple(values["contain.doors"]),
            contain_net=values["contain.net"],
            contain_tool_files=values["contain.tool_files"],
            contain_keep_home=values["contain.keep_home"],
            contain_publish=tuple(map(int, values["contain.publish"].replace(",", " ").split())),
            connections_silent_s=values["connections.silent_s"],
            reaper={
                key.removeprefix("reaper."): str(value)
                for key, value in values.items()
                if key.startswith("reaper.")
            },
            lease=LeaseSettings(
                **{name: values[f"lease.{name}"] for name in LeaseSettings._fields}
                | {"etcd_endpoints": tuple(values["lease.etcd_endpoints"])}
            ),
        )

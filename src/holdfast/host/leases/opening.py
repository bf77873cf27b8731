"""Opens the store that the configuration names."""

from __future__ import annotations

import os

from holdfast.home import Home
from holdfast.home.settings import Settings
from holdfast.host.leases.etcd import Access, EtcdStore
from holdfast.host.leases.ownership import Ownership, Terms
from holdfast.host.leases.sqlite import SQLiteStore
from holdfast.host.leases.store import LeaseStore


def open_store(home: Home, settings: Settings) -> LeaseStore:
    lease = settings.lease
    if lease.store == "sqlite":
        return SQLiteStore(lease.path or f"{home.state}/leases.db")
    return EtcdStore(
        Access(
            lease.etcd_endpoints,
            lease.etcd_prefix,
            lease.etcd_ca,
            lease.etcd_certificate,
            lease.etcd_key,
            lease.etcd_password_file,
        )
    )


def open_ownership(home: Home, settings: Settings, machine: str, run: int) -> Ownership:
    """`run`: the host's term, which rises with each host process of this home."""
    terms = Terms(settings.lease.term_s, settings.lease.drift)
    return Ownership(open_store(home, settings), machine, os.uname().nodename, run, terms)

"""Real members of etcd with TLS, client certificates, users and passwords (R3)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.lease.records import Commit
from holdfast.host.leases.etcd import Access, EtcdStore
from holdfast.host.leases.store import StoreDenied
from holdfast.model.errors import Unavailable, Usage
from tests.support.recovery.authority import Authority
from tests.support.recovery.etcd import Cluster, ask, cluster, needs_etcd, with_users

pytestmark = needs_etcd
WITHIN_S = 20.0
USER = "fleet:correct horse: battery"
PUT = Commit((), (("machine/a", b"1"),))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Cluster]:
    """Its tokens last for a second."""
    short = ("--auth-token-ttl", "1")
    with cluster(tmp_path_factory.mktemp("etcd"), 3, authority, short) as made:
        name, _, password = USER.partition(":")
        with_users(made.leader(), "holdfast/", {name: password})
        yield made


def written(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.fixture
def access(etcd: Cluster, authority: Authority, tmp_path: Path) -> Access:
    pair = authority.pair("machine")
    return Access(
        etcd.endpoints,
        ca=authority.ca,
        certificate=pair.certificate,
        key=pair.key,
        password_file=written(tmp_path / "password", USER + "\n"),
    )


def denied(access: Access) -> StoreDenied:
    store = EtcdStore(access)
    try:
        with pytest.raises(StoreDenied) as error:
            store.commit(PUT, WITHIN_S)
    finally:
        store.close()
    assert isinstance(error.value, Unavailable) and not error.value.retry_safe
    assert error.value.recover and "horse" not in str(error.value.to_wire())
    return error.value


def test_r3_a_client_certificate_and_a_password(access: Access) -> None:
    store = EtcdStore(access)
    made = store.commit(PUT, WITHIN_S)
    assert made and store.read(["machine/a"], WITHIN_S)["machine/a"].revision == made
    store.check(WITHIN_S)
    assert store.read(["check"], WITHIN_S)["check"].revision == 0, "the check writes nothing"


def test_r3_a_token_that_has_expired_is_replaced(access: Access, etcd: Cluster) -> None:
    """Also with one endpoint, where no other member could be asked."""
    store = EtcdStore(access._replace(endpoints=etcd.endpoints[:1]))
    assert store.commit(PUT, WITHIN_S)
    store._token = "expired.1"
    assert store.commit(PUT, WITHIN_S)
    root = ask(etcd.members[0], "/v3/auth/authenticate", {"name": "root", "password": "root"})
    ask(etcd.members[0], "/v3/auth/role/add", {"name": "more"}, root["token"])
    assert store.commit(PUT, WITHIN_S), "the token is of an older state of etcd's users"


def test_r3_a_token_that_is_never_accepted_is_told(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EtcdStore, "_login", lambda *_: "never.1")
    assert denied(access).facts == {"cause": "token"}


def test_r3_a_certificate_of_another_authority_is_told(access: Access, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    error = denied(access._replace(ca=other.ca))
    assert error.facts == {"cause": "server_certificate"} and "lease.etcd_ca" in error.recover
    pair = other.pair("machine")
    error = denied(access._replace(certificate=pair.certificate, key=pair.key))
    assert error.facts == {"cause": "client_certificate"}
    assert denied(access._replace(certificate="", key="")).facts == {"cause": "client_certificate"}


def test_r3_the_gateway_wants_a_certificate_without_a_common_name(
    access: Access, authority: Authority
) -> None:
    pair = authority.pair("named", common_name="fleet")
    error = denied(access._replace(certificate=pair.certificate, key=pair.key))
    assert error.facts == {"cause": "client_certificate"} and "common name" in error.recover


def test_r3_a_member_with_the_certificate_of_another_name_is_told(
    access: Access, etcd: Cluster
) -> None:
    elsewhere = etcd.endpoints[0].replace("127.0.0.1", "localhost")
    error = denied(access._replace(endpoints=(elsewhere,)))
    assert error.facts == {"cause": "server_certificate"} and "localhost" in error.message


def test_r3_a_wrong_password_is_told(access: Access, tmp_path: Path) -> None:
    wrong = written(tmp_path / "wrong", "fleet:no horse\n")
    error = denied(access._replace(password_file=wrong))
    assert error.facts == {"cause": "password"} and "fleet" in error.message
    assert denied(access._replace(password_file="")).facts == {"cause": "password"}


def test_r3_a_user_without_the_permission_is_told(access: Access) -> None:
    error = denied(access._replace(prefix="elsewhere/"))
    assert error.facts == {"cause": "permission"}
    assert "fleet" in error.message and "elsewhere/" in error.message


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_secrets_must_be_private(access: Access, tmp_path: Path, mode: int) -> None:
    shared = written(tmp_path / "shared", USER, mode)
    error = denied(access._replace(password_file=shared))
    assert error.facts == {"cause": "password"} and "chmod 600" in error.recover
    os.chmod(access.key, mode)
    error = denied(access._replace(password_file=""))
    os.chmod(access.key, 0o600)
    assert error.facts == {"cause": "client_certificate"} and "chmod 600" in error.recover


def test_files_that_are_missing_or_no_certificates_are_named(
    access: Access, tmp_path: Path
) -> None:
    missing, text = str(tmp_path / "missing"), written(tmp_path / "text", "no name\n")
    for found, path in [
        (denied(access._replace(ca=missing)), missing),
        (denied(access._replace(ca=text)), text),
        (denied(access._replace(certificate=missing)), missing),
        (denied(access._replace(certificate=text)), text),
        (denied(access._replace(password_file=missing)), missing),
        (denied(access._replace(password_file=text)), text),
    ]:
        assert path in found.message, found.message


def test_a_password_needs_tls_outside_of_the_machine() -> None:
    with pytest.raises(Usage, match="unencrypted"):
        EtcdStore(Access(("http://10.0.0.1:2379",), password_file="secret"))


def test_r3_http_at_a_member_with_tls_is_told(access: Access, etcd: Cluster) -> None:
    plain = etcd.endpoints[0].replace("https", "http")
    with pytest.raises(Unavailable, match="closed connection"):
        EtcdStore(access._replace(endpoints=(plain,))).read(["machine/a"], WITHIN_S)

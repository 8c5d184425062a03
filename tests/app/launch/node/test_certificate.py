import datetime
import ipaddress
import socket
import ssl
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509

from app.launch.node.certificate import Authority, issue_certificate
from app.settings.knobs import SettingsError
from tests.cloud.authority import make_authority


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return make_authority(tmp_path / "authority")


def issued(authority: Path, folder: Path) -> dict[str, str]:
    folder.mkdir()
    return issue_certificate(Authority.read(authority), folder, "127.0.0.1")


def context(purpose: ssl.Purpose, variables: dict[str, str]) -> ssl.SSLContext:
    made = ssl.create_default_context(purpose, cafile=variables["RAY_TLS_CA_CERT"])
    made.load_cert_chain(variables["RAY_TLS_SERVER_CERT"], variables["RAY_TLS_SERVER_KEY"])
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def handshake(server: dict[str, str], client: dict[str, str]) -> bytes:
    """A byte that the client gets from the server after both have shown their certificates."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                connection, _ = listener.accept()
                with context(ssl.Purpose.CLIENT_AUTH, server).wrap_socket(connection, server_side=True) as secured:
                    secured.sendall(b"!")
            except OSError:
                pass

        thread = Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listener.getsockname(), timeout=60) as plain,
                context(ssl.Purpose.SERVER_AUTH, client).wrap_socket(plain, server_hostname="127.0.0.1") as secured,
            ):
                return secured.recv(1)
        finally:
            thread.join()


def test_two_nodes_of_one_authority_take_each_other(authority: Path, tmp_path: Path) -> None:
    one, other = issued(authority, tmp_path / "one"), issued(authority, tmp_path / "other")
    assert one["RAY_USE_TLS"] == "1"
    assert handshake(one, other) == b"!"
    assert Path(one["RAY_TLS_SERVER_KEY"]).stat().st_mode & 0o077 == 0


def test_a_node_of_another_authority_is_refused(authority: Path, tmp_path: Path) -> None:
    ours = issued(authority, tmp_path / "ours")
    stranger = issued(make_authority(tmp_path / "elsewhere"), tmp_path / "stranger")
    with pytest.raises(ssl.SSLError):
        handshake(ours, stranger)
    with pytest.raises(ssl.SSLError):
        handshake(stranger, ours)


def test_a_certificate_ends_with_its_authority(tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "authority", days=2)
    path = issued(authority, tmp_path / "node")["RAY_TLS_SERVER_CERT"]
    certificate = x509.load_pem_x509_certificate(Path(path).read_bytes())
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=1) < left <= datetime.timedelta(days=2)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert ipaddress.ip_address("127.0.0.1") in names.get_values_for_type(x509.IPAddress)


def test_the_names_of_a_kubernetes_tls_secret_do_too(authority: Path, tmp_path: Path) -> None:
    for ending in ("crt", "key"):
        (authority / f"ca.{ending}").rename(authority / f"tls.{ending}")
    assert issued(authority, tmp_path / "node")["RAY_USE_TLS"] == "1"


@pytest.mark.parametrize("name", ["ca.crt", "ca.key"])
def test_an_unreadable_authority_is_named(name: str, authority: Path, tmp_path: Path) -> None:
    (authority / name).write_text("nonsense")
    with pytest.raises(SettingsError, match=name):
        issued(authority, tmp_path / "node")

import ssl
from pathlib import Path

import pytest

from space.core.errors import InvalidRequest
from space.templates.authorities import Authority, extra_authorities

SYSTEM = sorted(ssl.create_default_context().get_ca_certs(binary_form=True))
ONE, TWO, MINE = SYSTEM[:3]
certificate = ssl.DER_cert_to_PEM_cert


def test_the_hosts_added_authorities_are_taken_each_once(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "one.crt").write_text(certificate(ONE))
    (tmp_path / "deeper/both.crt").write_text(certificate(ONE) + certificate(TWO))
    (tmp_path / "README").write_text(certificate(MINE))
    found = extra_authorities(None, host_directory=tmp_path)
    assert {ssl.PEM_cert_to_DER_cert(authority.pem) for authority in found} == {ONE, TWO}


def test_a_host_without_added_authorities_has_none(tmp_path: Path) -> None:
    assert extra_authorities(None, host_directory=tmp_path / "missing") == ()


def test_a_configured_file_replaces_the_hosts(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host/one.crt").write_text(certificate(ONE))
    (tmp_path / "mine.pem").write_text(certificate(MINE))
    (authority,) = extra_authorities(tmp_path / "mine.pem", host_directory=tmp_path / "host")
    assert ssl.PEM_cert_to_DER_cert(authority.pem) == MINE


def test_a_private_key_in_the_file_is_not_taken(tmp_path: Path) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"
    (tmp_path / "mine.pem").write_text(key + certificate(MINE) + key)
    (authority,) = extra_authorities(tmp_path / "mine.pem")
    assert "PRIVATE" not in authority.pem


@pytest.mark.parametrize(
    "text", ["", "no certificate\n", "-----BEGIN CERTIFICATE-----\nb25l\n-----END CERTIFICATE-----\n"]
)
def test_a_configured_file_without_a_certificate_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.pem").write_text(text)
    with pytest.raises(InvalidRequest, match="holds no PEM certificate"):
        extra_authorities(tmp_path / "mine.pem")


def test_a_configured_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="SPACE_EXTRA_CA: cannot read"):
        extra_authorities(tmp_path / "missing.pem")


def test_file_names_come_from_the_content() -> None:
    name = Authority(certificate(ONE)).file_name
    assert name != Authority(certificate(TWO)).file_name
    assert set(name.removeprefix("space-").removesuffix(".crt")) <= set("0123456789abcdef")

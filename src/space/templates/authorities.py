"""Certificate authorities that the operator trusts beyond Debian's: the host's own, or one named file.

Templates carry them, so that a sandbox behind a company's TLS proxy can fetch packages as the host can.
"""

import hashlib
import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from space.core.errors import InvalidRequest

HOST_DIRECTORY = Path("/usr/local/share/ca-certificates")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\s.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Authority:
    """One certificate; its name comes from its content, so that names cannot clash or lead out of a directory."""

    pem: str

    @property
    def file_name(self) -> str:
        return f"space-{hashlib.sha256(self.pem.encode()).hexdigest()[:16]}.crt"


def extra_authorities(configured: Path | None, *, host_directory: Path = HOST_DIRECTORY) -> tuple[Authority, ...]:
    """Return the certificates in `configured`, or else those that the host added, each once.

    Only certificates are taken: a private key that lies in the same file stays where it is.

    Raises:
        InvalidRequest: `configured` cannot be read or holds no certificate.
    """
    if configured is None:
        files = sorted(host_directory.rglob("*.crt")) if host_directory.is_dir() else []
        return _unique(authority for file in files for authority in _read(file))
    try:
        found = _unique(_read(configured))
    except OSError as error:
        raise InvalidRequest(f"SPACE_EXTRA_CA: cannot read {configured}: {error.strerror}") from None
    if not found:
        raise InvalidRequest(f"SPACE_EXTRA_CA: {configured} holds no PEM certificate")
    return found


def _read(path: Path) -> list[Authority]:
    blocks = _CERTIFICATE.findall(path.read_text(errors="replace"))
    return [
        Authority(ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(pem))) for pem in blocks if _is_certificate(pem)
    ]


def _is_certificate(pem: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError):
        return False
    return True


def _unique(authorities: Iterable[Authority]) -> tuple[Authority, ...]:
    return tuple(sorted(dict.fromkeys(authorities), key=lambda authority: authority.file_name))

"""Mutual TLS between the parts: contexts from three files, and whether those files have changed.

Both sides present a certificate of one installation's authority and demand one of the other; what a
certificate may do is decided by who holds it (`isolet.agent.server.auth`, docs/security.md).
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TLSFiles:
    """Where a part keeps its certificate, its key and the authority it trusts, all PEM."""

    certificate: Path
    key: Path
    authority: Path

    @classmethod
    def in_folder(cls, folder: Path) -> "TLSFiles":
        """The three under the names that a Kubernetes TLS Secret gives them."""
        return cls(
            certificate=folder / "tls.crt", key=folder / "tls.key", authority=folder / "ca.crt"
        )

    def stamp(self) -> Stamp:
        """A value that changes when one of the files is replaced or rewritten.

        Raises:
            OSError: a file is missing or cannot be read.
        """
        stats = [path.stat() for path in (self.certificate, self.key, self.authority)]
        return tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in stats)


def server_context(files: TLSFiles) -> ssl.SSLContext:
    """A context that refuses every client without a certificate of the authority.

    Raises:
        OSError: a file cannot be read, or (ssl.SSLError) holds no such thing, or certificate and
            key do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, files)
    context.verify_mode = ssl.CERT_REQUIRED
    # Nothing resumes sessions, and a ticket would outlive a change of the authority.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    return context


def client_context(files: TLSFiles) -> ssl.SSLContext:
    """A context that presents our certificate and checks the server's name.

    Raises:
        OSError: as for `server_context`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load(context, files)
    return context


def _load(context: ssl.SSLContext, files: TLSFiles) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # An encrypted key would make OpenSSL ask on the terminal; an empty password refuses it.
    context.load_cert_chain(files.certificate, files.key, password="")
    context.load_verify_locations(files.authority)

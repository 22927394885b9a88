"""Keys and certificates of the cluster's own API server, made with openssl."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from pathlib import Path

from .errors import ClusterError

CONFIG = """
[req]
distinguished_name = subject
prompt = no
[subject]
[ca]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature,keyEncipherment
extendedKeyUsage = serverAuth
subjectAltName = @names
[names]
IP.1 = 127.0.0.1
IP.2 = 10.96.0.1
DNS.1 = localhost
DNS.2 = kubernetes.default
DNS.3 = kubernetes.default.svc
[client]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = clientAuth
"""
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
DAYS = "3650"


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        ["openssl", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise ClusterError(
            f"openssl {arguments[0]} failed in {folder}: {done.stderr.strip()[-400:]}"
        )


def _authority(folder: Path, name: str, subject: str) -> None:
    _openssl(
        folder,
        "req",
        "-x509",
        *NEW_KEY,
        "-keyout",
        f"{name}.key",
        "-out",
        f"{name}.crt",
        "-days",
        DAYS,
        "-subj",
        subject,
        "-config",
        "openssl.cnf",
        "-extensions",
        "ca",
    )


def _certificate(folder: Path, name: str, subject: str, authority: str, kind: str) -> None:
    _openssl(
        folder,
        "req",
        "-new",
        *NEW_KEY,
        "-keyout",
        f"{name}.key",
        "-out",
        f"{name}.csr",
        "-subj",
        subject,
        "-config",
        "openssl.cnf",
    )
    _openssl(
        folder,
        "x509",
        "-req",
        "-in",
        f"{name}.csr",
        "-out",
        f"{name}.crt",
        "-days",
        DAYS,
        "-CA",
        f"{authority}.crt",
        "-CAkey",
        f"{authority}.key",
        "-CAcreateserial",
        "-extfile",
        "openssl.cnf",
        "-extensions",
        kind,
    )


def ensure(folder: Path) -> None:
    """Makes them once, aside, so that a killed `up` never leaves half of them."""
    if folder.is_dir():
        return
    aside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True, mode=0o700)
    (aside / "openssl.cnf").write_text(CONFIG)
    _authority(aside, "ca", "/CN=isolet-cluster-ca")
    _authority(aside, "front-proxy-ca", "/CN=isolet-front-proxy-ca")
    _certificate(aside, "apiserver", "/CN=kube-apiserver", "ca", "server")
    _certificate(aside, "admin", "/O=system:masters/CN=cluster-admin", "ca", "client")
    # A name of its own, so that the audit log tells its writes from a person's.
    _certificate(
        aside,
        "controller-manager",
        "/O=system:masters/CN=system:kube-controller-manager",
        "ca",
        "client",
    )
    _certificate(aside, "front-proxy-client", "/CN=front-proxy-client", "front-proxy-ca", "client")
    _openssl(aside, "genrsa", "-out", "service-account.key", "2048")
    token = secrets.token_hex(24)
    (aside / "admin.token").write_text(token)
    (aside / "tokens.csv").write_text(f'{token},cluster-admin,cluster-admin,"system:masters"\n')
    for secret in (*aside.glob("*.key"), aside / "admin.token", aside / "tokens.csv"):
        secret.chmod(0o600)
    aside.rename(folder)

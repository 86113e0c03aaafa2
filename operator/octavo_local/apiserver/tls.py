"""A certificate authority and a server certificate that live as long as the process.

Clients of Kubernetes send their token over TLS only, so a local API needs a certificate that its
kubeconfig vouches for.
"""

import ipaddress
import os
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = timedelta(days=365)
_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_ADDRESSES = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """`ca_pem` is public; `context` holds the server's private key, which is nowhere on disk."""

    ca_pem: str
    context: ssl.SSLContext


def make_identity(host: str) -> Identity:
    """A new authority, and a certificate of it for `host` and the loopback names."""
    now = datetime.now(UTC) - timedelta(minutes=5)  # clocks of clients may be a little behind
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "octavo local authority")])
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key(), ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "octavo local api")])
    certificate = (
        _builder(name, ca_name, key.public_key(), ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternative_names(host)), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    ca_pem = ca.public_bytes(serialization.Encoding.PEM)
    chain = certificate.public_bytes(serialization.Encoding.PEM) + ca_pem
    return Identity(ca_pem=ca_pem.decode(), context=_context(key, chain))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    now: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False
        )
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(host: str) -> list[x509.GeneralName]:
    addresses, names = list(_ADDRESSES), list(_NAMES)
    try:
        addresses.append(str(ipaddress.ip_address(host)))
    except ValueError:
        names.append(host)
    return [
        *(x509.DNSName(name) for name in dict.fromkeys(names)),
        *(x509.IPAddress(ipaddress.ip_address(one)) for one in dict.fromkeys(addresses)),
    ]


def _context(key: ec.EllipticCurvePrivateKey, chain_pem: bytes) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    # The ssl module reads files only; this one is ours alone (0600) and goes at once.
    descriptor, path = tempfile.mkstemp(prefix="octavo-tls-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(key_pem + chain_pem)
        context.load_cert_chain(path)
    finally:
        os.unlink(path)
    return context

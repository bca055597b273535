"""Make the Secret with which operator and agents trust each other: a certificate authority of one, and a token."""

import base64
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from paddock.api.vocabulary import Label
from paddock.controller.cluster import JSON, Cluster, ClusterError, namespaced

SERVER_NAME = "paddock-agent"
"""DNS name in every agent's certificate: agents are reached by pod IP, which no certificate can know."""
YEARS = 10


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the operator needs to talk to agents."""

    certificate_authority: str
    """PEM."""
    token: str


async def ensure(cluster: Cluster, namespace: str, name: str) -> Credentials:
    """Read the Secret, or make it. Deleting it and restarting the operator renews everything."""
    path = namespaced("secrets", namespace, name)
    try:
        return _read(await cluster.get(path))
    except ClusterError as error:
        if not error.not_found:
            raise
    body = _secret(namespace, name)
    try:
        return _read(await cluster.post(namespaced("secrets", namespace), body))
    except ClusterError as error:
        if not error.already_exists:
            raise
        return _read(await cluster.get(path))


def _read(secret: JSON) -> Credentials:
    data = secret.get("data") or {}
    try:
        ca, token = (base64.b64decode(data[key]).decode() for key in ("ca.crt", "token"))
    except (KeyError, ValueError) as error:
        name = secret["metadata"]["name"]
        raise ClusterError(0, "BadSecret", f"Secret {name} lacks {error}: delete it, and it is made anew") from error
    return Credentials(ca, token)


def _secret(namespace: str, name: str) -> JSON:
    ca, certificate, key = make_certificates()
    values = {"ca.crt": ca, "tls.crt": certificate, "tls.key": key, "token": secrets.token_urlsafe(32)}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": {Label.MANAGED_BY: "paddock"}},
        "type": "Opaque",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()},
    }


def make_certificates() -> tuple[str, str, str]:
    """Make an authority and one server certificate; gives authority, certificate and key as PEM.

    The authority's key is thrown away: nobody can sign a second certificate.
    """
    # Imported here: it takes memory, and is needed once in the life of an installation.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    start, end = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(days=365 * YEARS)
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "paddock agents")])

    def builder(name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(authority_name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )

    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    authority = (
        builder(authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    server = (
        builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)]), server_key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return (
        authority.public_bytes(pem).decode(),
        server.public_bytes(pem).decode(),
        server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode(),
    )

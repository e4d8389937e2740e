"""The endpoint with a certificate of its own: clients that trust it are answered, others refuse to talk.

The endpoint is this file's own: it starts with a certificate for TLS.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from deploy.serving.command import _tls
from pddpo_ray.errors import UserError
from tests.support.served_process import served
from tests.support.served_run import SAFE, make_run


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed one for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pddpo test")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    signed = (
        builder.not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
    )
    return files


def test_a_pair_that_cannot_speak_https_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (cert, key), (_, other) = certificate(tmp_path), certificate(tmp_path / "other")
    assert _tls(cert, key) == (cert, key)
    assert _tls(None, None) is None
    for wrong in ((cert, None), (None, key), (cert, other), (cert, tmp_path / "none.pem"), (key, cert)):
        with pytest.raises(UserError, match="--tls-cert"):
            _tls(*wrong)


@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.full
def test_the_endpoint_speaks_https_to_those_who_trust_its_certificate(tmp_path: Path) -> None:
    run = make_run(tmp_path / "demo", (SAFE,))
    cert, key = certificate(tmp_path)
    try:
        with served(run.folder, tmp_path / "serve.log", "--tls-cert", str(cert), "--tls-key", str(key)) as server:
            url = server.url.replace("http:", "https:")
            headers = {"authorization": f"Bearer {(run.folder / 'serve-key').read_text().strip()}"}
            listed = httpx.get(f"{url}/v1/models", headers=headers, verify=str(cert), timeout=60)
            assert listed.json()["data"][0]["id"] == "released"
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                httpx.get(f"{url}/v1/models", headers=headers, timeout=60)
            with pytest.raises(httpx.HTTPError):
                httpx.get(f"{server.url}/v1/models", headers=headers, timeout=60)
    finally:
        run.close()

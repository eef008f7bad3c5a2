"""The client's side of SCRAM (RFC 5802), written for tests."""

import base64
import hashlib
import hmac

from moldau.security.scram import ScramMechanism

PASSWORD = b"pencil"


def fields_of(challenge: bytes) -> dict[str, str]:
    return dict(part.split("=", 1) for part in challenge.decode().split(","))


class ScramClient:
    """What a client sends, part by part, so that each part can be wrong."""

    def __init__(
        self,
        name: str = "alice",
        password: bytes = PASSWORD,
        *,
        mechanism: ScramMechanism = ScramMechanism.SHA_256,
        header: str = "n,,",
        nonce: str = "client",
    ) -> None:
        self.mechanism, self.password, self.header = mechanism, password, header
        escaped = name.replace("=", "=3D").replace(",", "=2C")
        self.bare = f"n={escaped},r={nonce}"
        self.expected = b""
        """The last message of a server that knows the password, after `final`."""

    @property
    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, challenge: bytes, *, nonce: str | None = None, channel: str = "") -> bytes:
        """With the right proof, also over a wrong nonce or header."""
        given = fields_of(challenge)
        bound = base64.b64encode((channel or self.header).encode()).decode()
        without_proof = f"c={bound},r={given['r'] if nonce is None else nonce}"
        signed = f"{self.bare},{challenge.decode()},{without_proof}".encode()
        name = self.mechanism.hash_name
        salted = hashlib.pbkdf2_hmac(
            name, self.password, base64.b64decode(given["s"]), int(given["i"])
        )
        key = hmac.digest(salted, b"Client Key", name)
        signature = hmac.digest(hashlib.new(name, key).digest(), signed, name)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", name)
        self.expected = b"v=" + base64.b64encode(hmac.digest(server_key, signed, name))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

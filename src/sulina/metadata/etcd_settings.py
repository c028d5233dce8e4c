"""Settings of a connection to etcd, without loading gRPC."""

from dataclasses import dataclass

from sulina.errors import InvalidSettings


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """TLS files in PEM form. Without `ca` the system's certificates are used; `cert` and `key` go together."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Read the files. Return ca, key and cert.

        Raises:
            InvalidSettings: a file cannot be read, or only one of `cert` and `key` is given.
        """
        if (self.cert is None) != (self.key is None):
            raise InvalidSettings("a certificate for etcd needs its key, and a key its certificate: give both")
        return _read(self.ca), _read(self.key), _read(self.cert)


@dataclass(frozen=True, slots=True)
class EtcdStatus:
    """The status that one member of etcd reports."""

    endpoint: str
    version: str
    member_id: int
    leader_id: int  # 0: it knows no leader
    revision: int
    db_bytes: int  # of its file, with free space inside
    used_bytes: int  # without free space inside
    quota_bytes: int  # 0: not reported, as before 3.6
    raft_term: int
    errors: tuple[str, ...]  # alarms, such as a full disk

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.member_id

    @property
    def is_full(self) -> bool:
        """Whether a member has used up its quota, so that no member accepts a write."""
        return any("NOSPACE" in error for error in self.errors)


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidSettings(f"{path} cannot be read: {error.strerror}") from None

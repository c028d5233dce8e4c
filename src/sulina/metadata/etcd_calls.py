"""The methods of etcd that Sulina calls, and the two ways in which a call can fail.

- `EtcdRefused`: etcd has said no. Nothing was done, and the same call gets the same answer everywhere.
- `Unanswered`: the connection broke, time ran out, the member has no leader. Whether anything was done, or still will
  be, is unknown; another endpoint, or a later time, may answer.
"""

import os
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

# Else it writes to the terminal what its callers are told anyway. It looks when it is loaded.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio

from sulina.errors import InvalidInput, InvalidSettings, MetadataFailed, MetadataFull, SulinaError
from sulina.metadata.etcd_proto import etcd_pb2 as pb

Request = TypeVar("Request")
Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """A path, and the messages that go there and back."""

    path: str
    request: type[Request]
    response: type[Response]


RANGE = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse)
TXN = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
COMPACT = Method("/etcdserverpb.KV/Compact", pb.CompactionRequest, pb.CompactionResponse)
WATCH = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse)
LEASE_GRANT = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
LEASE_REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
LEASE_KEEP_ALIVE = Method("/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse)
LEASE_TIME_TO_LIVE = Method(
    "/etcdserverpb.Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse
)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse)
STATUS = Method("/etcdserverpb.Maintenance/Status", pb.StatusRequest, pb.StatusResponse)
ALARM = Method("/etcdserverpb.Maintenance/Alarm", pb.AlarmRequest, pb.AlarmResponse)
DEFRAGMENT = Method("/etcdserverpb.Maintenance/Defragment", pb.DefragmentRequest, pb.DefragmentResponse)

# Codes of answers that etcd gives instead of doing something. All others leave it open.
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
}
DETAILS_MAX = 300  # characters of an error that are shown


class EtcdRefused(Exception):
    """etcd said no, and did nothing."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details[:DETAILS_MAX]}")
        self.code, self.details = code, details

    @property
    def wants_token(self) -> bool:
        """A new token helps: the old one has expired, there was none, or the rules have changed since."""
        return self.code == grpc.StatusCode.UNAUTHENTICATED or any(
            reason in self.details for reason in ("invalid auth token", "user name is empty", "auth store is old")
        )

    def as_error(self, path: str) -> SulinaError:
        """What a caller of the store is told."""
        match self.code:
            case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.UNAUTHENTICATED:
                return InvalidSettings(f"etcd at {path} does not allow it: {self.details[:DETAILS_MAX]}")
            case grpc.StatusCode.INVALID_ARGUMENT if "user" in self.details or "auth" in self.details:
                return InvalidSettings(f"etcd at {path} wants another user or password: {self.details[:DETAILS_MAX]}")
            case grpc.StatusCode.INVALID_ARGUMENT:
                return InvalidInput(f"etcd at {path} refuses it: {self.details[:DETAILS_MAX]}")
            case grpc.StatusCode.RESOURCE_EXHAUSTED if "space exceeded" in self.details:
                return MetadataFull(path=path)
        return MetadataFailed(path=path, cause=self)


class Unanswered(Exception):
    """No answer, or one that leaves the outcome open."""


def failure_of(error: grpc.aio.AioRpcError) -> EtcdRefused | Unanswered:
    """What a failed call means."""
    code, details = error.code(), error.details() or ""
    if code in REFUSALS and not is_passing(code, details):
        return EtcdRefused(code, details)
    return Unanswered(f"{code.name}: {details[:DETAILS_MAX]}")


def is_passing(code: grpc.StatusCode, details: str) -> bool:
    """Refusals that say "not now", or "not me"."""
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:  # also said by gRPC, of connections
        return not ("space exceeded" in details or "larger than max" in details)
    return code == grpc.StatusCode.FAILED_PRECONDITION and "not leader" in details


def serializers(method: Method[Any, Any]) -> dict[str, Any]:
    """As gRPC takes them."""
    return {
        "request_serializer": method.request.SerializeToString,
        "response_deserializer": method.response.FromString,
    }

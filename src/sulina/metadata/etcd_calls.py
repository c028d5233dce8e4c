"""The methods of etcd that Sulina calls, and the two ways in which a call can fail.

- `EtcdRefused`: etcd refused the call. Nothing was done, and every member gives the same answer.
- `Unanswered`: the connection broke, time ran out, or the member has no leader. Whether anything was done, or still
  will be, is unknown; another endpoint may answer, or the same one later.
"""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sulina.errors import InvalidInput, InvalidSettings, MetadataFailed, MetadataFull, SulinaError
from sulina.metadata.etcd_proto import etcd_pb2 as pb
from sulina.metadata.quiet_grpc import grpc

Request = TypeVar("Request")
Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """A method's path, and the types of its request and response."""

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

# Codes of answers that etcd gives without doing anything. With all other codes the outcome is unknown.
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
    """etcd refused the call, and did nothing."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details[:DETAILS_MAX]}")
        self.code, self.details = code, details

    @property
    def wants_token(self) -> bool:
        """Whether a new token helps: the old one has expired, there was none, or the access rules have changed."""
        return self.code == grpc.StatusCode.UNAUTHENTICATED or any(
            reason in self.details for reason in ("invalid auth token", "user name is empty", "auth store is old")
        )

    def as_error(self, path: str) -> SulinaError:
        """Return the error for callers of the store."""
        match self.code:
            case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.UNAUTHENTICATED:
                return InvalidSettings(f"etcd at {path} does not allow the call: {self.details[:DETAILS_MAX]}")
            case grpc.StatusCode.INVALID_ARGUMENT if "user" in self.details or "auth" in self.details:
                return InvalidSettings(f"etcd at {path} refuses the user or password: {self.details[:DETAILS_MAX]}")
            case grpc.StatusCode.INVALID_ARGUMENT:
                return InvalidInput(f"etcd at {path} refuses the call: {self.details[:DETAILS_MAX]}")
            case grpc.StatusCode.RESOURCE_EXHAUSTED if "space exceeded" in self.details:
                return MetadataFull(path=path)
        return MetadataFailed(path=path, cause=self)


class Unanswered(Exception):
    """There was no answer, or one that leaves the outcome unknown."""


def failure_of(error: grpc.aio.AioRpcError) -> EtcdRefused | Unanswered:
    """Return the meaning of a failed call."""
    code, details = error.code(), error.details() or ""
    if code in REFUSALS and not is_passing(code, details):
        return EtcdRefused(code, details)
    return Unanswered(f"{code.name}: {details[:DETAILS_MAX]}")


def is_passing(code: grpc.StatusCode, details: str) -> bool:
    """Tell whether a refusal is temporary, or of this member only."""
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:  # gRPC uses it for connections, too
        return not ("space exceeded" in details or "larger than max" in details)
    return code == grpc.StatusCode.FAILED_PRECONDITION and "not leader" in details


def serializers(method: Method[Any, Any]) -> dict[str, Any]:
    """Return the serializers of a method, as arguments for gRPC."""
    return {
        "request_serializer": method.request.SerializeToString,
        "response_deserializer": method.response.FromString,
    }

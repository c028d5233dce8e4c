"""gRPC, loaded so that it does not write to the terminal: its callers get its failures as errors anyway.

gRPC reads its log level from the environment when it is loaded, and offers no other way to set it. So the variable is
set for that moment only, and `grpc` is imported from here, never directly. A level that the user has set stays.
"""

import os

_VARIABLE = "GRPC_VERBOSITY"
_is_ours = _VARIABLE not in os.environ
if _is_ours:
    os.environ[_VARIABLE] = "NONE"

import grpc  # noqa: E402 - it reads the variable now
import grpc.aio  # noqa: E402

if _is_ours:
    del os.environ[_VARIABLE]

__all__ = ["grpc"]

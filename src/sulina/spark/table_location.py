"""Where a Delta table is: `s3://…`, `gs://…`, `az://…`, `file:///…` or a plain path.

Two libraries go there: ours for the data files, delta-rs for the log. Both take credentials from the environment, as
the clouds' own tools have them; an endpoint of one's own is given to both.
"""

import os
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from sulina.errors import InvalidSettings
from sulina.spark.byte_source import open_shared
from sulina.storage.objects import Objects, open_objects

LOG_FOLDER = "_delta_log"
_FILE = "file"
_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az"}


@dataclass(frozen=True, slots=True)
class TableLocation:
    """The root of a table. Pickled with every task."""

    uri: str  # as `open_objects` takes it
    endpoint: str | None = None

    @classmethod
    def parse(cls, path: str | None, endpoint: str | None = None) -> "TableLocation":
        """Read a path or URL. The store is not asked yet.

        Raises:
            InvalidSettings: no table can be there.
        """
        if path is None or not path.strip():
            raise InvalidSettings(
                "the location of the table is missing: use .load(PATH), .save(PATH), .start(PATH) or option path"
            )
        parts = urlsplit(path)
        if parts.scheme in _SCHEMES and parts.netloc:
            uri = f"{_SCHEMES[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}"
        elif "://" in path and parts.scheme != _FILE:
            raise InvalidSettings(
                f"{path} is not the location of a table: use s3://BUCKET/PREFIX, gs://, az:// or a path"
            )
        else:
            directory = unquote(parts.path) if parts.scheme == _FILE else path
            uri = f"{_FILE}://{quote(os.path.abspath(directory))}"
        if "%" in (unquote(uri) if uri.startswith(_FILE) else uri):
            raise InvalidSettings(f"{path} has a percent sign, which the Delta library does not find again: rename it")
        location = cls(uri, endpoint)
        location.objects()
        return location

    def objects(self) -> Objects:
        """Open the store of the data files. Connections to a bucket are shared by a process."""
        if self.directory is not None:
            return open_objects(self.uri)  # which remembers its folders, and they may be gone by the next write
        return open_shared(self.uri, self.endpoint)

    @property
    def directory(self) -> str | None:
        """Return the directory on this machine; None: the table is in a bucket."""
        return unquote(urlsplit(self.uri).path) if self.uri.startswith(_FILE) else None

    @property
    def path_or_uri(self) -> str:
        """Return the location for delta-rs and for messages."""
        return self.directory or self.uri

    @property
    def storage_options(self) -> dict[str, str]:
        """Return the options for delta-rs, which takes the rest from the environment."""
        options: dict[str, str] = {}
        if self.uri.startswith("s3:"):
            options["aws_conditional_put"] = "etag"  # one of two writers of a version wins, the store sees to it
            if self.endpoint is not None:
                options["aws_endpoint_url"] = self.endpoint
                if os.environ.get("AWS_SKIP_SIGNATURE"):
                    options["aws_skip_signature"] = os.environ["AWS_SKIP_SIGNATURE"]
        elif self.endpoint is not None and self.uri.startswith("az:"):
            options["azure_storage_endpoint"] = self.endpoint
        elif self.endpoint is not None and self.uri.startswith("gs:"):
            options["google_base_url"] = self.endpoint
        if self.endpoint is not None and self.endpoint.startswith("http:"):
            options["allow_http"] = "true"
        return options

"""The stores and the directory that a node opens before its broker starts."""

import asyncio
import os
import secrets

from sulina.broker.archives import Archives
from sulina.broker.options import BrokerOptions
from sulina.config import Settings
from sulina.errors import CorruptCommit, LogLocked
from sulina.metadata.sqlite import SqliteMetadata
from sulina.ports import File, Files, MetadataStore
from sulina.storage.files import read_whole, write_whole

METADATA_FILE = "metadata.sqlite"
STORE_ID_FILE = "store-id"
LOCK_FILE = "node.lock"


async def open_metadata(settings: Settings, data: str) -> MetadataStore:
    """Open the metadata store that the settings name.

    Raises:
        InvalidSettings: a setting of etcd is wrong.
        MetadataFailed: the store does not answer.
        LogLocked: another process has the file.
    """
    etcd = settings.etcd
    if etcd is None:
        return await SqliteMetadata.open(os.path.join(data, METADATA_FILE))
    from sulina.metadata.etcd import EtcdMetadata
    from sulina.metadata.etcd_settings import EtcdTls

    tls = None
    if etcd.is_tls:
        tls = EtcdTls(ca=settings.metadata_ca, cert=settings.metadata_cert, key=settings.metadata_key)
    return await EtcdMetadata.open(
        etcd.endpoints,
        prefix=etcd.prefix,
        tls=tls,
        user=settings.metadata_user,
        password=settings.metadata_password,
    )


async def open_archives(settings: Settings, options: BrokerOptions) -> Archives | None:
    """Open the archives in the object store that the settings name, or return None without one.

    Raises:
        InvalidSettings: the object store cannot be used.
    """
    if settings.objects is None:
        return None
    from sulina.storage.objects import open_objects

    objects = await asyncio.to_thread(open_objects, settings.objects, endpoint=settings.objects_endpoint)
    return Archives(objects, options, endpoint=settings.objects_endpoint)


def take_directory(files: Files, data: str) -> tuple[File, str]:
    """Lock the data directory; return the lock and the directory's id, which is made once. Blocks.

    The lock proves that a registration with this id is of a process that has ended.

    Raises:
        LogLocked: another process has the directory.
        CorruptCommit: its id is damaged.
    """
    lock = files.lock(os.path.join(data, LOCK_FILE))
    if lock is None:
        raise LogLocked(path=data)
    try:
        return lock, _store_id(files, data)
    except BaseException:
        lock.close()
        raise


def _store_id(files: Files, data: str) -> str:
    path = os.path.join(data, STORE_ID_FILE)
    stored = read_whole(files, path)
    if stored is None:
        made = secrets.token_hex(8)
        write_whole(files, path, made.encode())
        return made
    found = stored.decode("ascii", "replace")
    if not found.isalnum():
        raise CorruptCommit(name=path, reason=f"it says {found!r}, not the id of a data directory")
    return found

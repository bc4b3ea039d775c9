"""On which file system a path lies, and whether that is one of a network, where SQLite's write-ahead log loses data."""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
_OF_A_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "coda", "ncpfs"),
    *("lustre", "gpfs", "beegfs", "beegfs_nodev", "glusterfs", "panfs", "pvfs2", "orangefs", "wekafs", "gfs2", "ocfs2"),
    *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.glusterfs", "fuse.ceph", "fuse.juicefs"),
    *("fuse.cifs", "fuse.smbnetfs", "fuse.davfs", "fuse.mount-s3", "fuse.blobfuse", "fuse.blobfuse2", "davfs"),
}
_OCTAL = re.compile(r"\\([0-7]{3})")


def network_file_system(path: Path) -> str | None:
    """The type of the network file system that the path lies on; None for a local one, and where there is no way to know."""
    try:
        table = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:  # not Linux
        return None
    kind = file_system(Path(os.path.realpath(path)), table)
    return kind if kind in _OF_A_NETWORK else None


def file_system(path: Path, table: str) -> str | None:
    """The type of the file system that an absolute path lies on, by a mount table as proc(5) describes mountinfo."""
    found: tuple[int, str] | None = None
    for line in table.splitlines():
        mount, _, source = line.partition(" - ")
        fields, kinds = mount.split(" "), source.split(" ")
        if len(fields) < 5 or not kinds[0]:
            continue
        point = Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), fields[4]))
        # Of two mounts on one point the later one is on top.
        if (path == point or point in path.parents) and (found is None or len(point.parts) >= found[0]):
            found = len(point.parts), kinds[0]
    return found[1] if found else None

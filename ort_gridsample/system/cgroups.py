"""The control groups by which Linux limits the memory and the processors of this process."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

#: The folder in which the hierarchies of control groups are mounted.
MOUNT = Path("/sys/fs/cgroup")
#: The file that lists the groups of this process, as lines ``number:controllers:path``.
GROUPS_FILE = Path("/proc/self/cgroup")


def group_folders(controller: str) -> list[Path]:
    """List the folders of the control groups that may limit this process.

    Each group limits the groups inside it as well. Hence the list contains the groups of the
    process, all groups around them, and the mounts of both versions. A folder need not exist: a
    container usually sees its own group as the mount.

    Args:
        controller: the controller's name in version 1, such as ``"memory"``. Version 2 has one
            hierarchy for all controllers.

    Returns:
        The folders, those of outer groups before those of inner groups.
    """
    mounts = {"": MOUNT, controller: MOUNT / controller}
    folders = list(mounts.values())
    try:
        # The name of a group may be any bytes but a newline and a zero.
        lines = GROUPS_FILE.read_bytes().split(b"\n")
    except OSError:  # not Linux, or /proc is not mounted
        return folders
    for line in filter(None, lines):
        _, controllers, path = os.fsdecode(line).split(":", 2)
        names = PurePosixPath(path).parts[1:]
        if ".." in names:  # the group is outside of the container
            continue
        for name in controllers.split(","):
            if name in mounts:
                folders += _folders_inside(mounts[name], names)
    return folders


def _folders_inside(mount: Path, names: tuple[str, ...]) -> list[Path]:
    """List the folders from ``mount`` on, without it, down to the path of ``names``."""
    return [mount.joinpath(*names[: depth + 1]) for depth in range(len(names))]

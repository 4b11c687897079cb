"""The rights of another user, for a while: what a unit's user may open is tried as that user (credentials(7))."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Account:
    """A user as the system knows it; ``groups`` are the numbers of all its groups."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def account(user: str) -> Account | None:
    """The user of a name or a number; None: there is no such user."""
    import pwd

    try:
        entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    except (KeyError, OSError, ValueError, OverflowError):
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, tuple(groups), entry.pw_dir)


def group_ids(names: Sequence[str]) -> list[int]:
    """The numbers of these groups, those that exist."""
    import grp

    found = []
    for name in names:
        try:
            found.append(int(name) if name.isdigit() else grp.getgrnam(name).gr_gid)
        except (KeyError, ValueError):
            continue
    return found


@contextmanager
def being(user: str, more: Sequence[int] = ()) -> Iterator[bool]:
    """The file system rights of a user with its groups and ``more`` of them. False: we cannot be that user.

    "" and our own user are what we are already. Only a process of one thread may use this, such as a forked child.
    """
    if user in ("", "root") and os.geteuid() == 0:
        yield True
        return
    found = account(user) if user else None
    if os.geteuid() != 0 or found is None:
        yield not user or (found is not None and found.uid == os.geteuid())
        return
    groups = os.getgroups()
    try:
        os.setgroups([*found.groups, *more])
        os.setegid(found.gid)
        os.seteuid(found.uid)
    except OSError:
        _root_again(groups)
        yield False
        return
    try:
        yield True
    finally:
        _root_again(groups)


def _root_again(groups: list[int]) -> None:
    os.seteuid(0)
    os.setegid(0)
    os.setgroups(groups)

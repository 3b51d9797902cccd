"""What of the training data volunteers had to leave out, by their own word."""

from collections.abc import Sequence

from dedloc_kit.events import PeerSeen


def left_out(peers: Sequence[PeerSeen]) -> str:
    """What of the training data volunteers cannot use, in words; empty if nothing is known to be lost.

    Where they differ, the one in the middle is believed.
    """
    parts = []
    by_files = sorted((peer.unreadable_files, peer.files) for peer in peers if 0 < peer.unreadable_files <= peer.files)
    if by_files:
        unreadable, files = by_files[len(by_files) // 2]
        them = "1 volunteer" if len(by_files) == 1 else f"{len(by_files)} volunteers"
        parts.append(f"{unreadable:,} of {files:,} files of the data cannot be read by {them}")
    by_rows = sorted(peer.bad_rows for peer in peers if peer.bad_rows)
    if by_rows:
        them = "1 volunteer" if len(by_rows) == 1 else f"{len(by_rows)} volunteers"
        rows = by_rows[len(by_rows) // 2]
        parts.append(f"{rows:,} row{'' if rows == 1 else 's'} of the data left out by {them}")
    return "; ".join(parts)

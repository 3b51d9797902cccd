"""Can a run's bucket be written here, and read by everybody?"""

import secrets
import threading
from pathlib import Path

from dedloc_kit.bucket.contents import Chunk
from dedloc_kit.bucket.reading import Bucket, BucketFailed
from dedloc_kit.bucket.writing import digest_of, writer_of
from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable


def try_bucket(downloads: str, folder: Path | None, run_id: str) -> str:
    """Write a small file there, read it as any volunteer would, and remove it; says in one line how that went.

    :param folder: see `writer_of`
    """
    if downloads.startswith("https://") and folder is None:
        where = "downloads_folder in coordinator.toml"
        return f"{downloads} was not tried: say which folder of this machine is shown there ({where})"
    content = secrets.token_bytes(32)
    chunk, found = Chunk(digest=digest_of(content), size=len(content)), bytearray(len(content))
    writer = writer_of(downloads, folder, run_id)
    try:
        writer.put({chunk.digest: content})
        try:
            Bucket(downloads, run_id).read([chunk], memoryview(found), threading.Event())
        finally:
            writer.delete([chunk.digest])
    except (UserError, HubUnavailable) as error:
        return f"{downloads} cannot be written: {error}"
    except BucketFailed as error:
        fix = "let the web server show that folder there" if folder else "make the bucket a public one on its page"
        return f"{downloads} was written, but others could not read it, for it {error}; {fix}"
    return f"{downloads} can be written, and read by everybody"

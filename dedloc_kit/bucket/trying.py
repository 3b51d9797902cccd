"""Can a run's bucket be written here, and read by everybody?"""

import secrets
import threading
from pathlib import Path

from dedloc_kit.bucket.contents import Chunk
from dedloc_kit.bucket.reading import Bucket, BucketFailed
from dedloc_kit.bucket.writing import digest_of, writer_of
from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable


def try_bucket(state_bucket: str, folder: Path | None, run_id: str) -> str:
    """Write a small file there, read it as any volunteer would, and remove it; says in one line how that went.

    :param folder: see `writer_of`
    """
    if state_bucket.startswith("https://") and folder is None:
        where = "state_bucket_folder in coordinator.toml"
        return f"{state_bucket} was not tried: say which folder of this machine is shown there ({where})"
    content = secrets.token_bytes(32)
    chunk, found = Chunk(digest=digest_of(content), size=len(content)), bytearray(len(content))
    writer = writer_of(state_bucket, folder, run_id)
    try:
        writer.put({chunk.digest: content})
        try:
            Bucket(state_bucket, run_id).read([chunk], memoryview(found), threading.Event())
        finally:
            writer.delete([chunk.digest])
    except (UserError, HubUnavailable) as error:
        return f"{state_bucket} cannot be written: {error}"
    except BucketFailed as error:
        fix = "let the web server show that folder there" if folder else "make the bucket a public one on its page"
        return f"{state_bucket} was written, but others could not read it, for it {error}; {fix}"
    return f"{state_bucket} can be written, and read by everybody"

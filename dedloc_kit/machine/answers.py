"""What comes over HTTP from anyone, within bounds that hold before it takes memory."""

import requests
from urllib3.exceptions import HTTPError

PLAIN = {"Accept-Encoding": "identity"}
"""Headers that ask for an answer which is as long as it says: some kilobytes may unpack to gigabytes."""


def body(answer: requests.Response, most: int) -> bytes:
    """The content of an answer to a request made with `stream=True` and the headers `PLAIN`.

    Raises requests.RequestException if it has more bytes than `most`, comes packed or breaks off.
    """
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise requests.RequestException("the answer comes packed, which nobody asked for")
    try:
        content = bytes(answer.raw.read(most + 1, decode_content=False))
    except (HTTPError, OSError) as error:
        raise requests.RequestException(str(error)) from None
    if len(content) > most:
        raise requests.RequestException(f"the answer has more than {most} bytes")
    return content

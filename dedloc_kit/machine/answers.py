"""What comes over HTTP from anyone, within bounds that hold before it takes memory."""

import requests
from urllib3.exceptions import HTTPError

PLAIN = {"Accept-Encoding": "identity"}
"""Headers that ask for an answer which is as long as it says: some kilobytes may unpack to gigabytes."""


class Unfit(requests.RequestException):
    """Somebody answers, but not as anyone does who means it."""


def body(answer: requests.Response, most: int) -> bytes:
    """The content of an answer to a request made with `stream=True` and the headers `PLAIN`.

    Raises Unfit if it has more bytes than `most` or comes packed, and requests.RequestException if it breaks off.
    """
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise Unfit("the answer comes packed, which nobody asked for")
    try:
        content = bytes(answer.raw.read(most + 1, decode_content=False))
    except (HTTPError, OSError) as error:
        raise requests.RequestException(str(error)) from None
    if len(content) > most:
        raise Unfit(f"the answer has more than {most} bytes")
    return content

"""A request to the Hub that is cut off, or that finds it busy, costs that request.

Looking a dataset up takes some ten requests, and huggingface_hub repeats few of them: of a Hub that fails one in five
hardly any look-up would ever succeed, however often it began anew.
"""

import sys
import time
from typing import Any

from dedloc_kit.fetching import SILENCE_SECONDS, bound_silence
from dedloc_kit.machine.account import leave_no_token

PAUSES = (0.5, 1.0, 2.0)
"""Seconds before a request is made again."""
_SAFE = {"GET", "HEAD"}
"""Requests that may be made twice."""
_BUSY = {500, 502, 503, 504}


def be_patient() -> None:
    """Let this process ask the Hub again, from now on, and without what cannot be a token."""
    from huggingface_hub import set_client_factory

    leave_no_token()
    set_client_factory(_client)


def _client() -> Any:
    from huggingface_hub.utils._http import default_client_factory

    client: Any = default_client_factory()
    bound_silence(client)
    ask = client.send
    # huggingface_hub has its own choice of library.
    broken: type[Exception] = sys.modules[type(client).__module__.partition(".")[0]].TransportError

    def ask_patiently(request: Any, **how: Any) -> Any:
        began = time.monotonic()
        for pause in PAUSES if request.method in _SAFE else ():
            try:
                answer = ask(request, **how)
            except broken:
                if time.monotonic() - began >= SILENCE_SECONDS:
                    raise
            else:
                if answer.status_code not in _BUSY:
                    return answer
                answer.close()
            time.sleep(pause)
        return ask(request, **how)

    client.send = ask_patiently
    return client

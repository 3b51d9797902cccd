"""A man in the middle: a proxy for plain HTTP that passes everything on but the kit, in which it puts its own code."""

import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO

import requests

EVIL = "answer = 'evil'\n"


def altered(wheel: bytes) -> bytes:
    """The same wheel by name, version and metadata, with other code."""
    archive = BytesIO()
    with zipfile.ZipFile(BytesIO(wheel)) as read, zipfile.ZipFile(archive, "w") as written:
        for name in read.namelist():
            written.writestr(name, EVIL if name == "dedloc_kit/__init__.py" else read.read(name))
    return archive.getvalue()


@contextmanager
def man_in_the_middle() -> Iterator[dict[str, str]]:
    """Yields the environment of a program whose requests pass through him; also those to machines that have gone."""
    kept: dict[str, bytes] = {}

    class Between(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            with requests.Session() as session:
                session.trust_env = False
                try:
                    answer = session.get(self.path, timeout=20.0)
                    status, content = answer.status_code, answer.content
                except requests.ConnectionError:  # the coordinator has gone: he has its address now
                    status, content = 200, kept[self.path]
            if "/wheel/" in self.path:
                content = kept[self.path] = altered(content) if self.path not in kept else kept[self.path]
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Between) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        proxy = f"http://127.0.0.1:{server.server_port}"
        try:
            yield {"http_proxy": proxy, "HTTP_PROXY": proxy, "no_proxy": "", "NO_PROXY": ""}
        finally:
            server.shutdown()

"""Where a live page is served, and who is told when something is wrong."""

from dataclasses import dataclass
from typing import Self

from dedloc_kit.config.machine import PageOptions
from dedloc_kit.dashboard.http.sockets import Certificate
from dedloc_kit.errors import UserError
from dedloc_kit.steering.webhook import webhook_address


@dataclass(frozen=True)
class PageSettings:
    """`PageOptions`, read and checked.

    :ivar url: under which others find it, where a proxy stands before it
    :ivar webhook: the secret address to which alerts are posted as well
    """

    host: str = "0.0.0.0"
    port: int = 8000
    url: str | None = None
    certificate: Certificate | None = None
    webhook: str | None = None

    @classmethod
    def of(cls, options: PageOptions) -> Self:
        """Raises UserError if a file cannot be read, or one of a certificate and its key is missing."""
        cert, key = options.tls_cert, options.tls_key
        if (cert is None) != (key is None):
            raise UserError("a certificate and its key belong together; give both tls_cert and tls_key")
        certificate = Certificate(cert, key) if cert is not None and key is not None else None
        url = options.url and options.url.rstrip("/")
        return cls(options.host, options.port, url, certificate, webhook_address(options.webhook_file))

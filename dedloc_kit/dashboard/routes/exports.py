"""The ledger as files to download: tables for programs and spreadsheets, and the whole of it for a mirror."""

import asyncio
import hashlib
import logging
import shutil
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from dedloc_kit.dashboard.http.openapi import answering
from dedloc_kit.errors import UserError
from dedloc_kit.ledger.copying import write_copy
from dedloc_kit.ledger.tables import TableFormat, TableName, write_table

FRESH_SECONDS = 30.0
"""Whoever asks so soon after another gets the same file."""
_PARQUET = "application/vnd.apache.parquet"
_MEDIA = {"csv": "text/csv; charset=utf-8", "parquet": _PARQUET, "zip": "application/zip"}

_log = logging.getLogger(__name__)


class _Made(NamedTuple):
    path: Path
    tag: str
    """What is in it, as an ETag."""
    time: float


class Exports:
    """Files made of the ledger when somebody asks for them, one at a time, beside it: a long run's take many megabytes.

    Made first and sent then: a download that takes hours must not keep the ledger from forgetting its old pages.
    """

    def __init__(self, ledger: Path) -> None:
        self._ledger, self._folder = ledger, ledger.parent / ".exports"
        shutil.rmtree(self._folder, ignore_errors=True)  # an earlier start's
        self._made: dict[str, _Made] = {}
        self._turn = asyncio.Lock()

    def routes(self) -> APIRouter:
        router = APIRouter(prefix="/api/export", tags=["export"])

        @router.get("/ledger.zip", response_class=FileResponse, responses=answering("application/zip", cached=True))
        async def copy(request: Request) -> Response:
            """The whole ledger, one Parquet file for each of its tables, from which it can be restored exactly."""
            return await self._answer(request, "ledger.zip", self._write_copy)

        @router.get(
            "/{table}.{kind}", response_class=FileResponse, responses=answering("text/csv", _PARQUET, cached=True)
        )
        async def table(request: Request, table: TableName, kind: TableFormat) -> Response:
            """One table of the ledger, of all global steps."""
            write = partial(write_table, self._ledger, table, kind)
            return await self._answer(request, f"{table}.{kind}", write)

        return router

    async def _answer(self, request: Request, name: str, write: Callable[[Path], None]) -> Response:
        async with self._turn:
            made = await asyncio.to_thread(self._make, name, write)
        headers = {"ETag": made.tag}
        if made.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        # Whoever still reads it when a newer one takes its place goes on with the old one.
        return FileResponse(made.path, headers=headers, media_type=_MEDIA[made.path.suffix[1:]], filename=name)

    def _make(self, name: str, write: Callable[[Path], None]) -> "_Made":
        path, made = self._folder / name, self._made.get(name)
        if made is not None and time.monotonic() - made.time < FRESH_SECONDS and path.exists():
            return made
        fresh = self._folder / f".{name}"
        try:
            self._folder.mkdir(exist_ok=True)
            write(fresh)
            with fresh.open("rb") as file:
                tag = hashlib.file_digest(file, "sha256").hexdigest()[:32]
            fresh.replace(path)
        except (UserError, OSError) as error:  # paths of this machine are not for viewers
            _log.warning("%s cannot be made: %s", name, error)
            raise UserError("there is no such file yet; try again when the run has begun") from None
        self._made[name] = made = _Made(path, f'"{tag}"', time.monotonic())
        return made

    def _write_copy(self, path: Path) -> None:
        folder = self._folder / ".copy"
        shutil.rmtree(folder, ignore_errors=True)
        write_copy(self._ledger, folder)
        with zipfile.ZipFile(path, "w") as archive:  # Parquet is compressed already
            for table in sorted(folder.iterdir()):
                entry = zipfile.ZipInfo(table.name)  # without its time: what is the same has the same tag
                entry.file_size = table.stat().st_size
                with table.open("rb") as content, archive.open(entry, "w") as written:
                    shutil.copyfileobj(content, written)
        shutil.rmtree(folder)

"""The ledger as files to download: tables for programs and spreadsheets, and the whole of it for a mirror."""

import asyncio
import logging
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse

from dedloc_kit.dashboard.http.openapi import answering
from dedloc_kit.errors import UserError
from dedloc_kit.ledger.copying import write_copy
from dedloc_kit.ledger.tables import TableFormat, TableName, write_table

FRESH_SECONDS = 30.0
"""Whoever asks so soon after another gets the same file."""
_PARQUET = "application/vnd.apache.parquet"
_MEDIA = {"csv": "text/csv; charset=utf-8", "parquet": _PARQUET, "zip": "application/zip"}

_log = logging.getLogger(__name__)


class Exports:
    """Files made of the ledger when somebody asks for them, one at a time, beside it: a long run's take many megabytes.

    Made first and sent then: a download that takes hours must not keep the ledger from forgetting its old pages.
    """

    def __init__(self, ledger: Path) -> None:
        self._ledger, self._folder = ledger, ledger.parent / ".exports"
        shutil.rmtree(self._folder, ignore_errors=True)  # an earlier start's
        self._made: dict[str, float] = {}
        self._turn = asyncio.Lock()

    def routes(self) -> APIRouter:
        router = APIRouter(prefix="/api/export", tags=["export"])

        @router.get("/ledger.zip", response_class=FileResponse, responses=answering("application/zip"))
        async def copy() -> FileResponse:
            """The whole ledger, one Parquet file for each of its tables, from which it can be restored exactly."""
            return await self._answer("ledger.zip", self._write_copy)

        @router.get("/{table}.{kind}", response_class=FileResponse, responses=answering("text/csv", _PARQUET))
        async def table(table: TableName, kind: TableFormat) -> FileResponse:
            """One table of the ledger, of all global steps."""
            return await self._answer(f"{table}.{kind}", lambda path: write_table(self._ledger, table, kind, path))

        return router

    async def _answer(self, name: str, write: Callable[[Path], None]) -> FileResponse:
        async with self._turn:
            path = await asyncio.to_thread(self._make, name, write)
        # Whoever still reads it when a newer one takes its place goes on with the old one.
        return FileResponse(path, media_type=_MEDIA[path.suffix[1:]], filename=name)

    def _make(self, name: str, write: Callable[[Path], None]) -> Path:
        path = self._folder / name
        if time.monotonic() - self._made.get(name, -FRESH_SECONDS) < FRESH_SECONDS and path.exists():
            return path
        fresh = self._folder / f".{name}"
        try:
            self._folder.mkdir(exist_ok=True)
            write(fresh)
            fresh.replace(path)
        except (UserError, OSError) as error:  # paths of this machine are not for viewers
            _log.warning("%s cannot be made: %s", name, error)
            raise UserError("there is no such file yet; try again when the run has begun") from None
        self._made[name] = time.monotonic()
        return path

    def _write_copy(self, path: Path) -> None:
        folder = self._folder / ".copy"
        shutil.rmtree(folder, ignore_errors=True)
        write_copy(self._ledger, folder)
        with zipfile.ZipFile(path, "w") as archive:  # Parquet is compressed already
            for file in sorted(folder.iterdir()):
                archive.write(file, file.name)
        shutil.rmtree(folder)

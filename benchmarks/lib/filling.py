"""Keeps a line full: `filling sink ADDRESS PORT` takes what `filling source ADDRESS PORT STREAMS` sends there."""

import asyncio
import sys

_BLOCK = bytes(2**16)


async def _take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(2**18):
        pass
    writer.close()


async def _sink(address: str, port: int) -> None:
    server = await asyncio.start_server(_take, address, port)
    print("ready", flush=True)
    await server.serve_forever()


async def _source(address: str, port: int) -> None:
    _, writer = await asyncio.open_connection(address, port)
    while True:
        writer.write(_BLOCK)
        await writer.drain()


async def main(kind: str, address: str, port: str, streams: str = "1") -> None:
    if kind == "sink":
        await _sink(address, int(port))
    else:
        await asyncio.gather(*(_source(address, int(port)) for _ in range(int(streams))))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

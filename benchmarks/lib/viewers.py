"""Many viewers of a dashboard in one process, for benchmarks.dashboard: `python -m benchmarks.lib.viewers URL NUMBER`.

Says `watching` once all have been welcomed; then, for the viewer that was let in last, each global step and when it was
told of it (seconds since 1970). Ends with its standard input.
"""

import asyncio
import json
import sys
import time
from urllib.parse import urlsplit

AT_ONCE = 20


async def main() -> None:
    address, number = urlsplit(sys.argv[1]), int(sys.argv[2])
    welcomed, watching = asyncio.Semaphore(0), False

    async def watch(last: bool) -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=2**20)
        request = f"GET /api/events HTTP/1.1\r\nHost: {address.netloc}\r\nAccept: text/event-stream\r\n\r\n"
        writer.write(request.encode())
        heard = False
        while line := await reader.readline():
            if line.startswith(b"event: state") and not heard:
                heard = True
                welcomed.release()
            if last and watching and line.startswith(b"data: ") and b'"step"' in line:
                step = json.loads(line.removeprefix(b"data: ")).get("step")
                if step is not None:
                    print(step, time.time(), flush=True)

    tasks = []
    for viewer in range(number):
        tasks.append(asyncio.create_task(watch(last=viewer == number - 1)))
        if viewer >= AT_ONCE:
            await asyncio.wait_for(welcomed.acquire(), 60)
    for _ in range(min(number, AT_ONCE)):
        await asyncio.wait_for(welcomed.acquire(), 60)
    watching = True
    print("watching", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()


asyncio.run(main())

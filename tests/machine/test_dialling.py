"""Plain connections to peers' addresses; tests/swarm/network/test_reach.py tries them with real nodes."""

import asyncio
import socket
import time

import pytest
import uvloop

from dedloc_kit.machine.dialling import answering, host_and_port, in_own_loop, own_address

PEER = "QmcFKvU2EFGisLXRffTz31yXF3vWgZjKM4d1myqspfDYFi"


def test_addresses_of_every_form_are_tried_and_those_that_answer_are_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        living = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}", f"/dns4/localhost/tcp/{port}/p2p/{PEER}"]
        others = [f"/ip6/::1/tcp/{port}/p2p/{PEER}", f"/ip4/127.0.0.1/udp/{port}/p2p/{PEER}", "nonsense"]
        assert in_own_loop(answering([others[0], *living, *others[1:]])) == living


def test_work_runs_in_a_loop_of_python_whatever_the_process_has_been_told_to_use() -> None:
    async def module_of_loop() -> str:
        return type(asyncio.get_running_loop()).__module__

    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        assert in_own_loop(module_of_loop()).startswith("asyncio.")
    finally:
        asyncio.set_event_loop_policy(before)


@pytest.mark.parametrize("turns", [2, 3])
def test_whoever_answers_while_an_import_holds_this_one_up_is_found_afterwards(turns: int) -> None:
    async def held_up(address: str) -> list[str]:
        asking = asyncio.create_task(answering([address], seconds=1.0))
        for _ in range(turns):
            await asyncio.sleep(0)
        time.sleep(1.1)  # the connection is under way: the kernel goes on, this loop does not
        return await asking

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{PEER}"
        assert in_own_loop(held_up(address)) == [address]


def test_a_host_and_a_port_are_read_or_refused() -> None:
    assert host_and_port(f"/dns4/example.org/tcp/31337/p2p/{PEER}") == ("example.org", 31337)
    for address in (f"/ip4/1.2.3.4/udp/1/p2p/{PEER}", "/ip4/1.2.3.4/tcp/1", "http://1.2.3.4", ""):
        with pytest.raises(ValueError, match=r"TCP|unpack"):
            host_and_port(address)


def test_it_works_where_an_event_loop_is_running_already() -> None:
    async def notebook() -> list[str]:
        return in_own_loop(answering([]))

    assert asyncio.run(notebook()) == []


def test_the_own_address_is_one_that_can_be_listened_on() -> None:
    address = own_address()
    if address is not None:  # a machine without a network has none
        socket.create_server((address, 0)).close()

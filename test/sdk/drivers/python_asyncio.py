# Does what the lines of its standard input say, with the asyncio client for Python. See ../driver.ts.
import asyncio
import multiprocessing
import os
import sys

import tallygate
from tallygate import aio

INSTANCE = os.environ["INSTANCE"]


def say(*words):
    print(*words, flush=True)


def say_answer(answer):
    item = answer.items[0]
    verdict = "granted" if answer.granted else "refused"
    say(verdict, item.code, item.tokens_charged, item.retry or "-", answer.advice or "")


def request(value, count):
    return tallygate.Requester("user", value), [tallygate.Item("LaserCut", float(count), "1.0")]


async def do(agent, session, name, *words):
    if name == "access":
        value, version, count, times = words
        for _ in range(int(times)):
            item = tallygate.Item("LaserCut", float(count), version)
            say_answer(await agent.access(INSTANCE, tallygate.Requester("user", value), iter([item])))
    elif name == "cancel":
        task = asyncio.ensure_future(agent.access(INSTANCE, *request(words[0], "1")))
        lost = aio._Wire.connection_lost

        def lose(wire, error):
            lost(wire, error)
            asyncio.get_running_loop().call_soon(task.cancel)

        aio._Wire.connection_lost = lose
        try:
            await task
        except asyncio.CancelledError:
            say("cancelled")
        finally:
            aio._Wire.connection_lost = lost
    elif name == "burst":
        burst = [agent.access(INSTANCE, *request(f"anna-{n}", "1")) for n in range(int(words[0]))]
        say("granted", [answer.granted for answer in await asyncio.gather(*burst)].count(True))
    elif name == "offers":
        offered = (await agent.offers())["instances"][0]
        for each in offered["items"]:
            say("offer", each["item"], each["version"], each["lineItems"][0]["rate"], offered["name"])
    elif name == "open":
        session = await agent.open_session(INSTANCE, bound=words == ("bound",))
        say("opened", session.id)
    elif name == "request":
        say_answer(await session.request(*request(*words)))
    elif name == "state":
        say("state", await session.state())
    elif name == "wait":
        say("ended", (await session.wait()).state)
    elif name == "close":
        await asyncio.gather(session.close(), *(session.close() for _ in words))
        say("closed")
    elif name == "end":
        say("end", session.end.state if session.end else "-")
    elif name == "fork":
        child = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(run(agent, session, *words)))
        child.start()
        child.join()
    return session


async def run(agent, session, *words):
    try:
        return await do(agent, session, *words)
    except tallygate.TallygateError as error:
        named = [word for word in ("connections", "TALLYGATE_SOCKET", "sign in") if word in str(error)]
        say("error", type(error).__name__, error.code, error.retry, *named)
        return session


async def main():
    session = None
    loop = asyncio.get_running_loop()
    agent = aio.connect(patience_s=int(os.environ["PATIENCE_MS"]) / 1000)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        session = await run(agent, session, *line.split())
        say("done")
    os._exit(0)


asyncio.run(main())

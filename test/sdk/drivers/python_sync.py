# Does what the lines of its standard input say, with the client for Python. See ../driver.ts.
import multiprocessing
import os
import signal
import sys
import threading

import tallygate

INSTANCE = os.environ["INSTANCE"]
agent = tallygate.connect(patience_s=int(os.environ["PATIENCE_MS"]) / 1000)
session = None


def say(*words):
    print(*words, flush=True)


def say_answer(answer):
    item = answer.items[0]
    verdict = "granted" if answer.granted else "refused"
    say(verdict, item.code, item.tokens_charged, item.retry or "-", answer.advice or "")


class Interrupted(Exception):
    pass


def interrupted(*_):
    raise Interrupted


def request(value, count):
    return tallygate.Requester("user", value), [tallygate.Item("LaserCut", float(count), "1.0")]


def do(name, *words):
    global session
    if name == "access":
        value, version, count, times = words
        for _ in range(int(times)):
            item = tallygate.Item("LaserCut", float(count), version)
            say_answer(agent.access(INSTANCE, tallygate.Requester("user", value), iter([item])))
    elif name == "interrupt":
        signal.signal(signal.SIGALRM, interrupted)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            agent.access(INSTANCE, *request(words[0], "1"))
        except Interrupted:
            say("interrupted")
    elif name == "burst":
        granted = []
        request_one = lambda n: granted.append(agent.access(INSTANCE, *request(f"anna-{n}", "1")).granted)
        burst = [threading.Thread(target=request_one, args=(n,)) for n in range(int(words[0]))]
        for each in burst:
            each.start()
        for each in burst:
            each.join()
        say("granted", granted.count(True))
    elif name == "offers":
        offered = agent.offers()["instances"][0]
        for each in offered["items"]:
            say("offer", each["item"], each["version"], each["lineItems"][0]["rate"], offered["name"])
    elif name == "open":
        session = agent.open_session(INSTANCE, bound=words == ("bound",))
        say("opened", session.id)
    elif name == "request":
        say_answer(session.request(*request(*words)))
    elif name == "state":
        say("state", session.state())
    elif name == "wait":
        say("ended", session.wait().state)
    elif name == "close":
        closing = [threading.Thread(target=session.close) for _ in words]
        for each in closing:
            each.start()
        session.close()
        for each in closing:
            each.join()
        say("closed")
    elif name == "end":
        say("end", session.end.state if session.end else "-")
    elif name == "fork":
        child = multiprocessing.get_context("fork").Process(target=run, args=words)
        child.start()
        child.join()


def run(*words):
    try:
        do(*words)
    except tallygate.TallygateError as error:
        named = [word for word in ("connections", "TALLYGATE_SOCKET", "sign in") if word in str(error)]
        say("error", type(error).__name__, error.code, error.retry, *named)


for line in sys.stdin:
    run(*line.split())
    say("done")
os._exit(0)

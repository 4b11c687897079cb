"""Streams from an engine: `client.py PORT THREADS ROUNDS TOKENS`; each thread asks for so many, one after the other.

Says "flowing" when every thread has its first piece, and at the end one line for each stream: its status, how many pieces came,
and "whole" if it was ended by the engine's own mark, else what broke it.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

PORT, THREADS, ROUNDS, TOKENS = map(int, sys.argv[1:5])
first = threading.Barrier(THREADS, action=lambda: print("flowing", flush=True))


def stream(number: int) -> str:
    body = {"model": "tiny", "prompt": "the fox", "max_tokens": TOKENS, "temperature": 1, "ignore_eos": True, "stream": True}
    line = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    pieces, status = 0, 0
    try:
        line.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = line.getresponse()
        status = answer.status
        for text in answer:
            if text.startswith(b"data: {"):
                pieces += 1
                if number == 0 and pieces == 1:
                    first.wait(600)
            elif text.startswith(b"data: [DONE]"):
                return f"{status} {pieces} whole"
    except (OSError, http.client.HTTPException) as error:
        return f"{status} {pieces} {type(error).__name__}"
    finally:
        line.close()
    return f"{status} {pieces} cut"


def ask(_: int) -> list[str]:
    return [stream(number) for number in range(ROUNDS)]


with ThreadPoolExecutor(THREADS) as pool:
    for told in pool.map(ask, range(THREADS)):
        print(*told, sep="\n", flush=True)

"""Asks for health until it is good, then for one token until it is given: `first_token.py URL BODY HEALTH`.

Prints CLOCK_MONOTONIC then. In the order in which a daemon asks: SGLang ends at a multiple of 5 s after its first
request, so that an earlier one would move its end.
"""

from __future__ import annotations

import sys
import time
import urllib.request

URL, BODY, HEALTH = sys.argv[1:4]
PAUSE, LIMIT, ANSWER = 0.05, 600.0, 120.0

token = urllib.request.Request(URL, BODY.encode(), {"Content-Type": "application/json"})
begun = time.monotonic()
for asked in (urllib.request.Request(HEALTH), token):
    while True:
        if time.monotonic() - begun > LIMIT:
            sys.exit(f"no 200 from {asked.full_url} within {LIMIT:g} s")
        try:
            with urllib.request.urlopen(asked, timeout=ANSWER) as answer:
                answer.read()
                break
        except OSError:  # it refuses, is not ready (HTTPError), or takes too long
            time.sleep(PAUSE)
print(time.monotonic())

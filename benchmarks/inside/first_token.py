"""Asks for one token until it is given: `first_token.py URL BODY`; prints CLOCK_MONOTONIC at the first answer that is 200."""

from __future__ import annotations

import sys
import time
import urllib.request

URL, BODY = sys.argv[1:3]
PAUSE, LIMIT, ANSWER = 0.05, 600.0, 120.0

asked = urllib.request.Request(URL, BODY.encode(), {"Content-Type": "application/json"})
begun = time.monotonic()
while time.monotonic() - begun < LIMIT:
    try:
        with urllib.request.urlopen(asked, timeout=ANSWER) as answer:
            answer.read()
            print(time.monotonic())
            sys.exit(0)
    except OSError:  # it refuses, is not ready (HTTPError), or takes too long
        time.sleep(PAUSE)
sys.exit(f"no token from {URL} within {LIMIT:g} s")

"""Entry point: `python3 -I tests/standins/sglang_standin --tp 2 --port 30000 ...`."""

import os
import sys
from importlib import import_module

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
import_module("sglang_standin.launcher").main(sys.argv[1:])

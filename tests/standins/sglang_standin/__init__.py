"""A program that looks like an SGLang 0.5.23 server from outside; run it with `python3 -I` on this folder."""

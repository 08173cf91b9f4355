"""Renders templates for the tests: one JSON request a line on standard input,
{"template": …, "vars": {…}}, one JSON answer a line on standard output. The
request {"assigned": text} is answered with the characters of text that Python
knows, {"text": …}."""

import json
import os
import sys
import unicodedata

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import jinja_env

env = jinja_env.environment()
for line in sys.stdin:
    request = json.loads(line)
    if "assigned" in request:
        known = [c for c in request["assigned"] if unicodedata.category(c) != "Cn"]
        print(json.dumps({"text": "".join(known)}), flush=True)
        continue
    print(json.dumps(jinja_env.render(env, request["template"], request["vars"])), flush=True)

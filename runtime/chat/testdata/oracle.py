"""Renders templates for the tests: one JSON request a line on standard input,
{"template": …, "vars": {…}}, one JSON answer a line on standard output."""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import jinja_env

env = jinja_env.environment()
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(jinja_env.render(env, request["template"], request["vars"])), flush=True)

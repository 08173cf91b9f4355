"""The Jinja2 environment in which transformers renders chat templates.

Restated from the documentation of transformers and Jinja2: the immutable
sandbox, trim_blocks, lstrip_blocks, loop controls, {% generation %}, and the
functions and filters that transformers adds.
"""

import datetime
import json

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

NOW = datetime.datetime(2024, 7, 6, 5, 4, 3)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return env


def render(env, template, variables):
    """Returns {"text": …} or {"error": …}."""
    try:
        return {"text": env.from_string(template).render(**variables)}
    except RecursionError:
        return {"error": "RecursionError"}
    except Exception as e:
        return {"error": type(e).__name__ + ": " + str(e)[:200]}

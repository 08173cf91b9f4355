"""Writes goldens.jsonl: templates, variables, and what Jinja2 makes of them.

    python3 make_goldens.py > goldens.jsonl

The first line holds the variables. A line is {"template", "text" or "error"};
or "refused" for a template that the package chat is known not to support,
though Jinja2 renders it.
"""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import jinja_env

MESSAGES = [
    {"role": "system", "content": "  Be brief. "},
    {"role": "user", "content": "Hi <b>there</b>\n"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 3}}}]},
    {"role": "tool", "name": "weather", "content": [{"type": "text", "text": "sunny"}, {"type": "image"}]},
    {"role": "user", "content": "Thanks 😀 \"quoted\""},
]
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "Weather's report\tfor \"a\" city", "parameters": {
        "type": "object", "required": ["city"],
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1.5, "enum": []}}}}}]
V = {"messages": MESSAGES, "tools": TOOLS, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>",
     "n": 5, "f": 2.5, "s": "Hello World", "l": [3, 1, 2], "d": {"b": 1, "a": {"x": [1, 2.0, None, True, "q'"]}, "Items": "k"},
     "e": "", "z": None, "t": True, "u": "àéî ßΣ ǆ ﬁ 日本"}

# One template a line, with a ! in front if the package chat refuses it. Outside
# of tags \n, \r, \t and \u stand for the characters, as in Python.
PLAIN = r'''
a\n  {% if true %}\n  b\n  {% endif %}\n  c\n
a\n  {%- if true %}\n  b\n  {%- endif %}\n  c\n\n
a\n  {%+ if true %}\n  b\n  {%+ endif +%}\n  c\n
  {% if true -%}   \n\n  x  {%- endif -%}  \n y
{{ 1 }}\n{{ 2 }}  {{- 3 -}}  {{+4 }} {{-5}} {{ -5 }}\n
  {# c #}\n  x {# c -#}   y {#- c +#}\n z {#+ c #}\n
{% raw %}\n  {{ x }} {% if %}\n  {% endraw %}\n  y
{% raw -%}   {{ x }}  {%- endraw -%}  \n y
a {%- raw %} b {% endraw %}\n c {%+ raw %} d \n  {%+ endraw +%}\n e
x\r\ny\rz{{ "a\r\nb" }}\r\n
x\n\n
{% for m in messages %}\n{{ loop.index }}/{{ loop.length }} {{ m.role }}\n{% endfor %}\n
{% for m in messages -%} {{ m['role'] }}{{ ',' if not loop.last }} {%- endfor %}
{% for x in l %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}
{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}
{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{{ loop.cycle('a','b') }}{% endfor %}
{% for x in [1,1,2,2,1] %}{{ loop.changed(x) }}{% endfor %}
{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}
{% for x in [] %}a{% else %}none{% endfor %}{% for x in [1] %}a{% else %}none{% endfor %}
{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}
{% for x in [1] %}{% break %}{% else %}else{% endfor %}
{% for x in [1] %}{% continue %}{% else %}else{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% else %}none{% endfor %}
{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k in d %}{{ k }}{% endfor %}{% for v in d.values() %}{{ v }}{% endfor %}{{ d.keys() }}{{ d.items() }}
{% for a, (b, c) in [(1, (2, 3)), (4, [5, 6])] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [[1]] %}{% endfor %}
{% for a in 5 %}{% endfor %}
{% for c in 'añb' %}{{ c }}.{% endfor %}
{% for c in undefinedvar %}x{% else %}none{% endfor %}
!{% for x in l recursive %}{{ x }}{% endfor %}
{% set x = 1 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(a=1) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}
{% set ns = namespace({'q': 2}, w=3) %}{{ ns.q }}{{ ns.w }}{{ ns }}
{% set ns = namespace() %}{% set ns.x = ns %}{{ ns.x.x.x is defined }}
{% set d.x = 1 %}
{% if true %}{% set q = 1 %}{% endif %}{{ q }}{% if false %}{% set w = 1 %}{% endif %}{{ w }}|
{% if false %}{% set bos_token = 'x' %}{% endif %}{{ bos_token }}
{% for i in l %}{% if loop.first %}{% set bos_token = 'x' %}{% endif %}{{ bos_token }}{% endfor %}{{ bos_token }}
{% macro f() %}{{ bos_token }}{% endmacro %}{{ f() }}{% set bos_token = 'x' %}{{ f() }}
{% macro f() %}[{{ q }}]{% endmacro %}{{ f() }}{% set q = 5 %}{{ f() }}
{% macro f() %}{% set q = 7 %}{{ q }}{% endmacro %}{% set q = 5 %}{{ f() }}{{ q }}
{% for i in l %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}
!{% set ns = namespace() %}{% for i in l %}{% macro f() %}{{ i }}{% endmacro %}{% if loop.first %}{% set ns.f = f %}{% endif %}{{ ns.f() }}{% endfor %}{{ ns.f() }}
{% with x = 1 %}{% macro f() %}[{{ x }}]{% endmacro %}{% set y = f %}{{ f() }}{% endwith %}{{ x }}{{ y }}
{% set x = 9 %}{% with x = 1, y = x %}{{ x }}{{ y }}{% endwith %}{{ x }}
{% with %}{% set a = 2 %}{{ a }}{% endwith %}{{ a }}
{% with a, b = (1, 2), c = 3 %}{{ a }}{{ b }}{{ c }}{% endwith %}
{% macro f(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(1, c=4) }}{{ f(b=1, a=9) }}{{ f() }}
{% macro f(a=b, b=1) %}{{ a }}{{ b }}{% endmacro %}{{ f() }}{{ f(2) }}
{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, x=4) }}{{ f() }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, b=2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}
{% macro f(a) %}{{ caller is defined }}{{ caller }}{% endmacro %}{{ f(1) }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro a(n) %}{% if n > 0 %}a{{ b(n-1) }}{% endif %}{% endmacro %}{% macro b(n) %}{% if n > 0 %}b{{ a(n-1) }}{% endif %}{% endmacro %}{{ a(5) }}
{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}
{% macro f() %}  x\n{% endmacro %}{{ f() | trim }}{{ f }}{{ f is callable }}{{ f() is string }}
{% macro f() %}{% for x in l %}{{ loop.index }}{% endfor %}{% endmacro %}{{ f() }}
{% for x in l %}{% macro f() %}{{ loop.index }}{% endmacro %}{{ f() }}{% endfor %}
{% call f() %}{% endcall %}
{% macro f(x) %}<{{ x }}{{ caller() }}{{ caller is callable }}>{% endmacro %}{% call f(1) %}body {{ n }}{% endcall %}{% call f(x=2) %}{% set n = 8 %}{{ n }}{% endcall %}{{ n }}
{% macro f() %}{{ caller(1, b=2) }}{{ caller(3) }}{% endmacro %}{% call(a, b=9) f() %}{{ a }}{{ b }};{% endcall %}
{% macro f() %}{{ caller }}{% endmacro %}{% call f() %}{% endcall %}{{ f() }}{{ f(caller=none) }}{{ f(caller=5) }}
{% macro f() %}x{% endmacro %}{% call f() %}{% endcall %}
{% macro f() %}{{ kwargs|list }}{% endmacro %}{% call f() %}{% endcall %}
{% macro g() %}g{{ caller() }}{% endmacro %}{% macro f() %}{% call g() %}{{ caller is defined }}{% endcall %}{{ caller() }}{% endmacro %}{% call f() %}in{% endcall %}
{% for x in l %}{% macro f() %}[{{ caller() }}]{% endmacro %}{% call f() %}{{ x }}{{ loop.index }}{% endcall %}{% endfor %}
{% call range(3) %}{% endcall %}
{% call dict() %}{% endcall %}
{% call f %}{% endcall %}
{% call s.upper() %}{% endcall %}
!{{ 'abab'.find('a', 1) }}
{{ 'ab'.replace('a', 'b', count=1) }}
{{ s.startswith(prefix='H') }}
{{ d.get(key='b') }}
{{ 'a\nb'.splitlines(keepends=true) }}
{% set x %}a {{ n }}\n{% endset %}[{{ x }}]
{% set x | upper | replace('A', 'b') %}a {{ n }}\n{% endset %}[{{ x }}]
{% set x | default(s) %}a{% endset %}{{ x }}
{{ s }}{% set x | default(s) %}a{% endset %}{{ x }}
{% filter upper %}a{{ n }}b{% endfilter %}{% filter replace('a', s) | trim %} xa {% endfilter %}
{% filter length %}ab{% endfilter %}
{% set q | length %}ab{% endset %}{{ q + 1 }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d2) = [3, 4] %}{{ c }}{{ d2 }}{% set a, b = b, a %}{{ a }}{{ b }}
{% set _ = l.append(4) %}{{ l }}
{% set x = l.append %}{{ x is defined }}[{{ x }}]
{% do l.append(1) %}
{{ d.update is defined }}{{ d.pop }}
{{ d.pop('b') }}
{% print n, s %}{% print %}
{% if n == 5 %}a{% elif n == 6 %}b{% else %}c{% endif %}{% if n == 6 %}{% elif n < 9 %}d{% endif %}
{% if n: %}colon{% endif %}{% for x in l: %}{{ x }}{% endfor %}
{% generation %}gen {{ n }}{% set n = 7 %}{% endgeneration %}{{ n }}
{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}\n  A{{ loop.index }}\n{% endgeneration %}{% endif %}{% endfor %}
{{ 'x' if false }}|{{ 'x' if true }}|{{ 1 if 0 else 2 if 0 else 3 }}|{{ ('x' if false) is defined }}
{{ 1 + 2 * 3 - 4 // 3 % 2 ** 3 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 2 ** -1 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 4 / 2 }}
{{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ -7.5 % 2 }} {{ 7.5 % -2 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e15 }} {{ 1e-4 }} {{ 1e-5 }} {{ 1.5e300 * 1e10 }} {{ 2.0 }} {{ 1_000 }} {{ 0x1F }} {{ 0b11 }} {{ 0o17 }} {{ -0.0 }} {{ 1e400 }} {{ 1E3 }} {{ 1.0e+2 }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1.0 % 0 }}
{{ true + true }} {{ true == 1 }} {{ 1 == 1.0 }} {{ '1' == 1 }} {{ none == false }} {{ true is number }} {{ -true }} {{ +true }}
{{ 'a' + 1 }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1, 'x'] ~ undefinedvar }}
{{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ [1] * 2 }} {{ 'a' * -1 }} {{ [1] + [2, 3] }} {{ (1,) + (2,) }} {{ (1,) }} {{ () }} {{ (1, 2) }}
{{ [1] + (2,) }}
{{ 'a' 'b' "c" }} {{ "a\tb\\n\x41\u00e9\U0001F600\101\q\'" }} {{ 'a\"b' }}
{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 < 2 == true }} {{ 1 == 1 in [1] }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ (1,) < (1, 0) }} {{ 1 <= 1 >= 1 != 2 }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ undefinedvar < 1 }}
{{ 'a' in 'abc' }} {{ 'x' not in 'abc' }} {{ 2 in l }} {{ 'b' in d }} {{ 'role' in messages[0] }} {{ not 'a' in 'b' }} {{ 1 in (1, 2) }} {{ 1.0 in l }} {{ none in [none] }} {{ 'x' in undefinedvar }} {{ 1 in d.values() }} {{ ('b', 1) in d.items() }}
{{ 1 in 'abc' }}
{{ 1 in 5 }}
{{ 0 or 'x' }} {{ 0 and 'x' }} {{ '' or none or [] }} {{ 1 and 2 or 3 }} {{ not 1 }} {{ not not '' }} {{ [] or {} }}
{{ l[0] }}{{ l[-1] }}{{ l[9] }}{{ l[9] is defined }}{{ s[0] }}{{ s[-1] }}{{ u[3] }}{{ l[true] }}{{ l['x'] }}{{ l[1.0] }}{{ l.0 }}{{ d['a']['x'][4] }}{{ d.a.x.4 }}
{{ l[1:] }}{{ l[:1] }}{{ l[::-1] }}{{ l[-2:] }}{{ l[5:] }}{{ l[::2] }}{{ l[2:0:-1] }}{{ l[:-1] }}{{ l[none:2] }}{{ l[-9:9] }}{{ l[9:-9:-2] }}{{ (1,2,3)[1:] }}
{{ s[1:4] }}{{ s[::-1] }}{{ u[::-1] }}{{ u[2:5] }}{{ s[-3:] }}{{ s[10:2:-3] }}{{ ''[::-1] }}{{ u[-2:] }}
{{ l[::0] }}
{{ l['a':] }}
{{ z[1:] }}
{{ d[1:] }}
{{ undefinedvar[1:] }}
!{{ range(5)[1:3] }}
{{ messages[1:] | length }}{{ messages[::-1][0].role }}{{ messages | map(attribute='role') | list }}
{{ undefinedvar }}|{{ d.nope }}|{{ d['nope'] }}|{{ n.nope }}|{{ s.nope }}|{{ none.x }}|{{ z.x }}
{{ undefinedvar.x }}
{{ undefinedvar['x'] }}
{{ undefinedvar() }}
{{ d.nope.nope }}
{{ undefinedvar + 1 }}
{{ -undefinedvar }}
{{ undefinedvar == undefined2 }} {{ undefinedvar is undefined }} {{ undefinedvar is none }} {{ undefinedvar | length }} {{ undefinedvar | list }} {{ undefinedvar | upper }}| {{ undefinedvar | join }}| {{ undefinedvar | string }}| {{ undefinedvar | trim }}| {{ undefinedvar | first }}| {{ undefinedvar | last }}| {{ undefinedvar is string }} {{ undefinedvar is iterable }} {{ undefinedvar is sequence }} {{ undefinedvar is mapping }} {{ undefinedvar is callable }} {{ [undefinedvar] }} {{ not undefinedvar }} {{ undefinedvar | replace('a', 'b') }}|{{ undefinedvar | sort }}{{ undefinedvar | map('upper') | list }}{{ undefinedvar | items | list }}{{ undefinedvar | selectattr('x') | list }}{{ undefinedvar | reverse | list }}{{ undefinedvar | sum }}{{ undefinedvar | min }}{{ undefinedvar | unique | list }}
{{ undefinedvar | int }}
{{ undefinedvar | abs }}
{{ undefinedvar | tojson }}
{{ undefinedvar | dictsort }}
{{ undefinedvar | indent }}
{{ undefinedvar is odd }}
{{ undefinedvar | default }}|{{ undefinedvar | default('x') }}|{{ '' | default('x') }}|{{ '' | default('x', true) }}|{{ z | d('x') }}|{{ z | d('x', true) }}|{{ undefinedvar | default(default_value=3) }}|{{ 0 | default('y', boolean=true) }}
{{ [1, 1.0, none, true, 'a', "it's", 'q"', 'b"\'', 'n\n\t\\', undefinedvar, {'a': 1, 2: 'b', none: 3, true: 4, 1.5: (1,)}, [], (), {}] }}
{{ u }} {{ [u, '\x00\x1f\x7f\x85\xa0\xad', '\u200b\ue000😀', '\U000e0001'] }}
{{ {'a': 1}['a'] }} {{ {'a': 1, 'a': 2} }} {{ {1: 'a', true: 'b', 1.0: 'c'} }} {{ {'x': [1, {'y': 2}]}.x[1].y }} {{ {} }} {{ {'a': 1,} }} {{ [1,] }}
{{ {[1]: 2} }}
!{{ {(1, 2): 3} }}
{{ messages[0].get('role') }} {{ messages[0].get('x') }} {{ messages[0].get('x', 'y') }} {{ d.get('a').get('x') }}
!{{ d.items }}
{{ d.Items }} {{ d['items'] is callable }} {{ messages[2]['keys'] is defined }}
!{{ {'items': 5}.items }}
{{ {'items': 5}['items'] }}
{{ {'_x': 5}._x }}{{ {'__x': 5}['__x'] }}{{ s['__class__'] }}{{ s['upper']() }}{{ s['nope'] }}
!{{ s.__class__ }}
!{{ s.upper.__func__ }}
{{ d.copy() }} {{ l.copy() }} {{ l.index(1) }} {{ l.count(1) }} {{ (1, 2).index(2) }}
{{ l.index(7) }}
{{ s.upper() }}{{ s.lower() }}{{ 'abc'.capitalize() }}{{ "they're bill's".title() }}{{ ' x '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcab'.lstrip('ab') }}|{{ 'abcab'.rstrip('ba') }}|{{ 'x'.strip(none) }}
{{ 'a,b,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ ' a b c '.split(none, 1) }} {{ 'a b c '.split(none, 2) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a,b'.split(',')[-1] }} {{ 'abc'.split('b', 0) }} {{ 'a<t>b</t>c'.split('</t>')[0].split('<t>')[-1] }} {{ 'a b'.split(maxsplit=1) }} {{ 'a,b'.split(sep=',') }}
{{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b c '.rsplit(none, 1) }} {{ ' a b c '.rsplit(none, 5) }} {{ 'abc'.rsplit('x', 1) }} {{ 'a b'.rsplit() }} {{ ''.rsplit(',', 1) }} {{ ' a'.rsplit(none, 1) }} {{ 'aXbXc'.rsplit('X', 2) }}
{{ 'a'.split('') }}
{{ 'a'.split(1) }}
{{ 'a\nb\r\nc\x0bd\u2028e\n'.splitlines() }} {{ 'a\n\nb'.splitlines(true) }} {{ ''.splitlines() }}
{{ s.startswith('He') }} {{ s.endswith(('x', 'ld')) }} {{ s.startswith(()) }} {{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('z') }} {{ u.find('ß') }} {{ s.count('l') }} {{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ s.replace('', '-') }} {{ s.replace('', '-', 3) }} {{ 'aaa'.count('') }}
{{ s.startswith(1) }}
{{ s.index('zz') }}
{{ ', '.join(['a', 'b']) }} {{ ''.join([]) }} {{ '-'.join('abc') }} {{ '-'.join(d) }}
{{ ','.join([1]) }}
{{ 'abc'.isalpha() }}{{ ''.isalpha() }}{{ 'a1'.isalnum() }}{{ '12'.isdigit() }}{{ ' '.isspace() }}{{ 'aB'.islower() }}{{ 'AB1'.isupper() }}{{ '1'.isupper() }}{{ 'é'.isalpha() }}{{ '12'.isnumeric() }}{{ '12'.isdecimal() }}{{ 'a'.isascii() }}
{{ 'prefix-x'.removeprefix('prefix-') }}{{ 'x.py'.removesuffix('.py') }}{{ '7'.zfill(3) }}{{ '-7'.zfill(4) }}{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '*') }}{{ 'ab'.center(5) }}|{{ 'abc'.center(6) }}|{{ 'a'.center(4, '.') }}{{ 'k=v=w'.partition('=') }}{{ 'k=v=w'.rpartition('=') }}{{ 'kv'.partition('=') }}{{ 'kv'.rpartition('=') }}
!{{ '{}'.format(1) }}
!{{ s.encode() }}
{{ s.nope() }}
!{{ s.swapcase() }}
!{{ n.bit_length() }}
!{{ n.real }}
{{ '%s is %d' % ('a', 3) }} {{ '%s' % 'x' }} {{ '%d%%' % 50 }} {{ '%.2f' % 3.14159 }} {{ '%5d|%05d' % (42, -42) }} {{ '%s' % [1] }} {{ '%s' % ((1, 2),) }} {{ '%i' % 3.9 }} {{ '%s %s' | format('a', 1) }} {{ '%s' % undefinedvar }} {{ '%f' % 1 }} {{ '%8.3f' % -2.0005 }} {{ '%s' % d }}
{{ '%s' % (1, 2) }}
{{ '%d' % 'x' }}
{{ '%s %s' % 'x' }}
{{ 'x' % 5 }}
{{ 'x' % [5] }}
!{{ '%r' % 'x' }}
!{{ '%(a)s' % {'a': 1} }}
{{ ' a '|trim }}{{ 'xax'|trim('x') }}{{ 5|trim }}{{ s|upper }}{{ s|lower }}{{ 'hELLO wORLD'|capitalize }}{{ "hello-world (foo) it's [x]<y {z"|title }}{{ s|length }}{{ u|length }}{{ d|length }}{{ l|count }}
{{ u|upper }} {{ u|lower }} {{ u|title }} {{ 'ÀB'|capitalize }} {{ 'ßa'|capitalize }} {{ 'ΑΣ'|lower }} {{ 'ǆx'|capitalize }} {{ 'éa bc'.title() }} {{ 'ﬁx'.capitalize() }}
{{ 5|length }}
{{ none|length }}
{{ l|join }}{{ l|join(', ') }}{{ messages|join('|', attribute='role') }}{{ l|join(d='-') }}{{ [1, none, true]|join(5) }}{{ 'abc'|join('.') }}
{{ l|first }}{{ l|last }}{{ []|first }}{{ []|last }}{{ s|first }}{{ s|last }}{{ d|first }}{{ d|last }}{{ (1, 2)|last }}{{ ''|first is defined }}
{{ l|map('string')|last }}
{{ 5|first }}
{{ 'abc'|list }}{{ d|list }}{{ (1, 2)|list }}{{ range(3)|list }}{{ d.items()|list }}
{{ '42'|int }}{{ ' 4_2 '|int }}{{ '4.9'|int }}{{ 'x'|int }}{{ 'x'|int(7) }}{{ 4.9|int }}{{ -4.9|int }}{{ true|int }}{{ none|int }}{{ '1e3'|int }}{{ 'inf'|int }}{{ 'nan'|int(3) }}{{ []|int }}{{ '0x1'|int }}{{ '+5'|int }}{{ '-5'|int }}{{ '__5'|int }}{{ 'x'|int(default='d') }}
!{{ '0x1f'|int(0, 16) }}
{{ '1.5'|float }}{{ 'x'|float }}{{ 'x'|float(2.5) }}{{ 3|float }}{{ '1e3'|float }}{{ 'inf'|float }}{{ '-Infinity'|float }}{{ 'NaN'|float }}{{ '0x1p3'|float }}{{ '1_0.5'|float }}{{ true|float }}{{ none|float }}{{ '1e999'|float }}{{ '.5'|float }}{{ '5.'|float }}{{ 'infinit'|float }}{{ '1__0'|float }}
{{ 1e400|int }}
{{ 5|string }}{{ none|string }}{{ [1]|string }}{{ 1.0|string }}{{ 5|string ~ 5 }}
{{ 'aXbX'|replace('X', '-') }}{{ 'aXbX'|replace('X', '-', 1) }}{{ 55|replace(5, 6) }}{{ 'aaa'|replace('a', 'b', count=2) }}{{ 'a'|replace('a', none) }}
{{ -5|abs }}{{ (-5)|abs }}{{ (-2.5)|abs }}{{ true|abs }}
{{ 2.5|round }} {{ 3.5|round }} {{ 42.55|round(1) }} {{ 42.55|round(1, 'floor') }} {{ 42.54|round(1, 'ceil') }} {{ 5|round }} {{ 5|round(2) }} {{ -2.5|round }} {{ 2.675|round(2) }} {{ 5|round(0, 'floor') }} {{ 1.23456|round(precision=3) }} {{ (-0.4)|round }} {{ (-0.4)|round(0, 'ceil') }}
{{ 'x'|round }}
{{ tools|tojson }}\n{{ tools|tojson(indent=2) }}\n{{ tools[0]|tojson(indent=4) }}
{{ d|tojson }}{{ [1, 1.0, none, true, 1e20, 1e-7, 'a/b<>&\'']|tojson }}{{ u|tojson }}{{ u|tojson(true) }}{{ '😀\x7f\x80'|tojson(ensure_ascii=true) }}{{ '\x00\x1f\x7f"\\\n\r\t\b\f\u2028'|tojson }}
{{ {'b': 1, 'a': [{}, [], [1, {'z': 1}]]}|tojson(indent=2) }}{{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }}{{ {'a': [1, 2]}|tojson(separators=(',', ':')) }}{{ {'a': [1, 2]}|tojson(separators=(', ', ': '), indent=1) }}{{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}{{ (1, 2)|tojson }}{{ {'a': 1}|tojson(indent=0) }}{{ [1]|tojson(indent='--') }}{{ [1]|tojson(indent=none) }}{{ 5|tojson }}{{ none|tojson }}{{ 'x'|tojson|tojson }}
{{ {(1, 2): 3}|tojson }}
{{ ['nan'|float, 'inf'|float, '-inf'|float]|tojson }}{{ ['nan'|float, '-inf'|float] }}{{ {1.5: 1, false: 2, 'x': 3}|tojson }}{{ 'nan'|float == 'nan'|float }}{{ 'nan'|float < 1 }}{{ 'nan'|float|int }}
!{{ 1e30|int }}
{{ -(0.0) }}{{ +(2.5) }}{{ +n }}{{ -f }}{{ 0.0 == -0.0 }}{{ 2.0 ** 3 }}{{ 2 ** 0.5 }}{{ 0 ** 5 }}{{ 1 ** 100 }}{{ (-1) ** 101 }}{{ (-1) ** 100 }}{{ 5 // -1 }}{{ 5 % -1 }}{{ 0.0 // 5 }}{{ -0.0 // 5 }}{{ 6.0 % 3 }}{{ 1.5 - 1 }}{{ 3 * 1.5 }}
{{ 0.0 ** -1 }}
{{ 0 ** -1 }}
{{ 10.0 ** 400 }}
!{{ (-8) ** 0.5 }}
{{ -s }}
{{ l - l }}
{{ {'a': 1} + {'b': 2} }}
{{ {'a': 1} == {'a': 1.0} }}{{ {'a': 1} != {'a': 2} }}{{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }}{{ [1, [2]] == [1, [2]] }}{{ [1] == (1,) }}{{ range(3) == [0, 1, 2] }}{{ d.get == 5 }}{{ d == l }}{{ none == undefinedvar }}{{ range == range }}
{{ 'a\\nb' }}{{ "it\'s" }}{{ '\x4a' '\112' }}
{{ dict([['a', 1]], b=2) }}{{ namespace() }}
{{ dict(undefinedvar) }}
{{ dict([['a']]) }}
{{ dict(5) }}
{{ dict(d, d) }}
{{ l.count(2) }}{{ l.count(1.0) }}{{ (1, 'a').count('a') }}{{ [[1]].index([1]) }}
{{ raise_exception() }}
{{ raise_exception(5) }}
{{ ('ab' * 3)[::2] }}{{ u[-1] }}{{ u[-99] }}|{{ u[99] }}|{{ s[-11] }}
{{ 'abc'|truncate(2) }}
{{ l|truncate(4, leeway=0) }}{{ undefinedvar|truncate(4) is undefined }}{{ d|truncate }}
{{ l|truncate(2, true, '', 0) }}
{{ 5|truncate }}
{{ l|round }}
{{ 2.5|round(0, 'up') }}
{{ {}|first }}{{ {}|last }}{{ range(0)|last }}
{{ 5|join }}
{{ 5|list }}
{{ 5|sort }}
{{ 5|sum }}
{{ 5|map('upper')|list }}
{{ 0|map('upper')|list }}
{{ messages|map(attribute='content')|map('length')|list }}
{{ [[1, 2], [0, 5]]|sort }}{{ [true, 0, 1.5]|sort }}{{ [true, 0, 1.5]|max }}{{ ['b', 'B', 'a']|max }}
!{{ l|batch(0)|list }}
{{ l|slice(0)|list }}
{{ l|batch|list }}
{{ range(3)|tojson }}
{{ {'b': 1, 1: 2}|tojson(sort_keys=true) }}
{{ messages|tojson }}{{ messages[3]|tojson(indent=1) }}{{ 1e400|tojson }}
{{ d|items|list }}{% for k, v in d|items %}{{ k }}{{ v }}{% endfor %}
{{ 5|items|list }}
{{ {'b': 1, 'A': 2, 'c': 0}|dictsort }}{{ {'b': 1, 'A': 2, 'c': 0}|dictsort(true) }}{{ {'b': 1, 'A': 2, 'c': 0}|dictsort(by='value') }}{{ {'b': 1, 'A': 2, 'c': 0}|dictsort(false, 'value', true) }}{{ {'a': 1, 'B': 1, 'c': 1}|dictsort(by='value', reverse=true) }}
{{ l|dictsort }}
{{ l|sort }}{{ l|sort(reverse=true) }}{{ ['b', 'A', 'c', 'a', 'B']|sort }}{{ ['b', 'A', 'c']|sort(case_sensitive=true) }}{{ messages|sort(attribute='role')|map(attribute='role')|join(',') }}{{ [{'a': 1, 'b': 2}, {'a': 1, 'b': 1}]|sort(attribute='a,b') }}{{ [(2, 'x'), (1, 'y')]|sort(attribute=0) }}{{ [[2], [1, 5], [1]]|sort }}{{ [{'k': 'b'}, {'k': 'A'}]|sort(false, false, 'k') }}
{{ [1, 'a']|sort }}
{{ [none, none]|sort }}
{{ ['a', 'A', 'b', 'a']|unique|list }}{{ ['a', 'A', 'b']|unique(true)|list }}{{ [1, 1.0, true, 2]|unique|list }}{{ messages|unique(attribute='role')|map(attribute='role')|list }}
{{ l|reverse|list }}{{ s|reverse }}{{ (1, 2)|reverse|list }}{{ d|reverse|list }}{{ range(3)|reverse|list }}{{ u|reverse }}
{{ l|map('string')|list }}{{ ['a', 'b']|map('upper')|join }}{{ messages|map(attribute='name', default='-')|list }}{{ messages|map(attribute='tool_calls.0.function.name', default='-')|list }}
{{ messages|map(attribute='content.0.type')|first is defined }}{{ [['a', 'b']]|map('last')|list }}{{ [['a', 'b']]|map(attribute=1)|list }}{{ [' a ', 'b']|map('trim')|map('replace', 'a', 'c')|list }}{{ ['x']|map('default', 'y')|list }}{{ [{'a': 1}]|map('tojson')|join }}{{ [[1, 2], [3]]|map('join', '+')|list }}
{{ l|map|list }}
{{ l|map('nope')|list }}
{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ messages|rejectattr('role', '==', 'user')|map(attribute='role')|list }}{{ messages|selectattr('name', 'defined')|list|length }}{{ messages|selectattr('content')|list|length }}{{ messages|selectattr('role', 'in', ['user', 'tool'])|map(attribute='role')|join(',') }}{{ messages|selectattr('tool_calls', 'undefined')|list|count }}{{ messages|selectattr('content', 'string')|list|length }}
{{ l|select('odd')|list }}{{ l|reject('odd')|list }}{{ l|select('>', 1)|list }}{{ [0, 1, '', 'a', none]|select|list }}{{ [0, 1]|reject|list }}{{ l|select('divisibleby', 3)|list }}{{ l|select('in', [1, 3])|list }}
{{ l|select('nope')|list }}
!{{ l|select }}
{{ l|select|length }}
{% set g = l|select('odd') %}{{ g|list }}{{ g|list }}{{ g is iterable }}{{ g is sequence }}{{ 'y' if g }}
{% set g = l|map('string') %}{% for x in g %}{{ x }}{{ loop.length }}{{ loop.last }}{% endfor %}{% for x in g %}{{ x }}{% else %}empty{% endfor %}
{% for x in l|map('string') %}{{ loop.nextitem }}{{ loop.revindex }}{% endfor %}
{% set ns = namespace(ok=true) %}{% for x in l if ns.ok %}{{ x }}{% if x == 1 %}{% set ns.ok = false %}{% endif %}{% endfor %}
{% set ns = namespace(ok=true) %}{% for x in l if ns.ok %}{{ x }}{{ loop.last }}{% if x == 1 %}{% set ns.ok = false %}{% endif %}{% endfor %}
{% for x in l %}{% for y in l if y > loop.index %}{{ y }}{% endfor %};{% endfor %}
{{ l|min }}{{ l|max }}{{ ['b', 'A']|min }}{{ ['b', 'A']|max }}{{ []|min }}{{ messages|max(attribute='role') }}{{ ['a', 'A']|max }}{{ ['a', 'A']|min(case_sensitive=true) }}
{{ l|sum }}{{ l|sum(start=10) }}{{ [{'a': 1}, {'a': 2}]|sum(attribute='a') }}{{ []|sum }}{{ [[1], [2]]|sum(start=[]) }}
!{{ [1.5, 2]|sum }}
{{ ['a']|sum }}
{{ range(7)|batch(3)|list }}{{ range(7)|batch(3, 'x')|list }}{{ range(7)|slice(3)|list }}{{ range(7)|slice(3, 'x')|list }}{{ []|batch(2)|list }}
{{ 'a\nb\n\nc'|indent }}{{ 'a\nb\n\nc'|indent(2, true) }}{{ 'a\nb\n\nc'|indent(2, blank=true) }}{{ 'a\nb'|indent('> ', first=true) }}{{ ''|indent }}|{{ 'a\n'|indent }}|{{ 'a\r\nb'|indent(1) }}|{{ '\n\na'|indent(width=3) }}
{{ 5|indent }}
{{ 'foo bar baz qux'|truncate(9) }}{{ 'foo bar baz qux'|truncate(9, true) }}{{ 'foo bar baz qux'|truncate(11) }}{{ 'foo bar baz qux'|truncate(11, false, '...', 0) }}{{ 'foobarbazqux'|truncate(5, leeway=0) }}{{ u|truncate(5, true, '…', 0) }}{{ 'x'|center(5) }}|{{ 'x'|center(4) }}|
{{ '<a href="x">&\'</a>'|e }}{{ '<'|escape|e }}{{ '<'|safe }}{{ '<'|safe ~ '<' }}{{ '<'|safe == '<' }}{{ '<'|e|length }}{{ '<'|safe is string }}{{ '<'|safe is escaped }}{{ d|tojson|safe }}{{ 5|e }}{{ '<'|safe|safe }}{{ '<'|safe|string }}{{ ['<'|safe] }}{{ {'<'|safe: 1} }}{{ ['<'|safe, '<']|join }}
!{{ '<'|safe + '<' }}
!{{ '<'|e|upper }}
!{{ ('<'|safe).upper() }}
!{{ '<'|forceescape }}
!{{ l|random }}
{{ l|groupby('x') }}
!{{ s|attr('upper') }}
!{{ s|wordcount }}
!{{ s|urlencode }}
!{{ s|pprint }}
{{ s|nope }}
{{ s is nope }}
{{ n is defined }}{{ n is not defined }}{{ z is none }}{{ z is not none }}{{ n is number }}{{ f is float }}{{ n is integer }}{{ t is integer }}{{ t is boolean }}{{ t is true }}{{ 1 is true }}{{ 0 is false }}{{ s is string }}{{ l is sequence }}{{ s is sequence }}{{ d is sequence }}{{ n is iterable }}{{ d is mapping }}{{ l is mapping }}{{ s is iterable }}{{ range(2) is sequence }}{{ d.items() is sequence }}{{ d.items() is iterable }}{{ 3 is odd }}{{ 4 is even }}{{ 9 is divisibleby 3 }}{{ 9 is divisibleby(2) }}{{ 1 is eq 1 }}{{ 1 is equalto(2) }}{{ 1 is ne 2 }}{{ 1 is lt 2 }}{{ 1 is ge 2 }}{{ 2 is greaterthan 1 }}{{ 1 is in [1] }}{{ 'a' is in 'abc' }}{{ 'a' is lower }}{{ 'A' is upper }}{{ '1' is lower }}{{ t is sameas true }}{{ 1 is sameas true }}{{ z is sameas none }}{{ range is callable }}{{ s is callable }}{{ s.upper is callable }}{{ 2.0 is even }}{{ s is escaped }}
{{ not n is defined }}{{ n is defined and s is string or false }}{{ n is defined == true }}{{ 5 is odd + 1 }}
{{ 'a' is odd }}
!{{ 1 is sameas 1 }}
!{{ 'upper' is filter }}
{{ (n is string) is false }}{{ n is string is false }}
{{ n|string|length + 1 }}{{ -n|abs }}{{ n + l|length }}{{ (n + 1)|string ~ 'x' }}{{ l|length > 2 and s|length > 3 }}{{ not l|length }}{{ 'a' ~ 'b'|upper }}{{ 1 if l|length == 3 else 2 }}{{ -1|abs }}{{ 2 ** 2|int }}{{ s|upper|lower|title }}
{{ s.split(' ')[0].lower()[:2] ~ '!' }}{{ (s ~ 'x').upper() }}{{ [1, 2][0] }}{{ 'abc'[1] }}{{ {'a': [5]}['a'][0] }}{{ (1, 2)[1] }}{{ 5.0.nope }}{{ 'x'.upper().lower() }}
{{ range(3) }}{{ range(1, 10, 3)|list }}{{ range(5, 0, -2)|list }}{{ range(0)|length }}{{ 3 in range(5) }}{{ range(5)[-1] }}{{ range(0, 5, 1) == range(5) }}{{ range(5, 1)|list }}{{ range(0, 4, 2) }}{{ range(3)|sum }}{{ range(3)|join }}
{{ range(1000001) }}
{{ range('a') }}
{{ range(1, 2, 0) }}
{{ range() }}
{{ range(1.5) }}
{{ dict(a=1, b=2) }}{{ dict({'x': 1}, y=2) }}{{ dict([('a', 1), ['b', 2]]) }}{{ dict() }}{{ dict(a=1).a }}
{{ dict([1]) }}
{{ raise_exception('oh no') }}
{{ raise_exception('a' ~ 1) if n == 5 else 'fine' }}
{% if n == 6 %}{{ raise_exception('oh no') }}{% endif %}fine
{{ strftime_now('%d %b %Y') }}{{ strftime_now('%Y-%m-%d %H:%M:%S %A %a %B %b %p %I %j %y %% %-d %-m %-H %-I %e %F %T %D %R %f %h %Z%z') }}
!{{ strftime_now('%c') }}
!{{ cycler(1, 2) }}
!{{ lipsum() }}
!{{ joiner() }}
!{{ self }}
{{ loop is defined }}{{ loop }}
{% for x in l %}{{ loop }}{% endfor %}
{% for x in l %}{{ loop.nope }}{{ loop['index'] }}{{ loop|length }}{% endfor %}
{% for x in l %}{{ loop.cycle() }}{% endfor %}
{% for x in l %}{% set loop = 1 %}{% endfor %}
{% for loop in l %}{% endfor %}
{% for x in l %}{{ loop(x) }}{% endfor %}
{% set loop = 5 %}{{ loop }}{% for x in l %}{{ loop.index }}{% endfor %}{{ loop }}
{% break %}
{% for x in l %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}
{% for x in l %}{% set y %}a{% if x == 1 %}{% break %}{% endif %}{% endset %}{{ y }}{{ x }}{% endfor %}end
{% for x in l %}{% filter upper %}a{% if x == 1 %}{% continue %}{% endif %}b{% endfilter %}{{ x }}{% endfor %}end
{% for x in l %}{% with y = x %}{% if y == 1 %}{% continue %}{% endif %}{{ y }}{% endwith %}{% endfor %}end
{% set true = 1 %}
{% set 1 = 1 %}
{% set [a, b] = [1, 2] %}
{% if %}{% endif %}
{% if true %}
{% endif %}
{% else %}
{% for x in %}{% endfor %}
{% foo %}
{{ 1 +  }}
{{ }}
{{ (1 }}
{{ 1) }}
{{ [1, 2 }}
{{ 'abc }}
{{ a b }}
{{ a..b }}
{{ a.'b' }}
{{ a ! b }}
{{ a = b }}
{{ f(a=1, 2) }}
{{ f(a=1, a=2) }}
{{ f(*[1]) }}
{{ {'a' 1} }}
{{ x is is }}
{# unclosed
{% raw %} unclosed
{% endraw %}
{{ '}}' }}{{ "{{ x }}" }}{{ {'a': {'b': 1}}['a'] }}{{ {'a': {'b': 1}} }}{% set x = '%}' %}{{ x }}
{{ 1 if true else }}
{{ true }}{{ True }}{{ none }}{{ None }}{{ false }}{{ null is defined }}
{% set x = 1, 2 %}{{ x }}{% set x = (1) %}{{ x }}{% set x = (1,) %}{{ x }}{{ 1, 2 }}
{% for x in 1, 2 %}{{ x }}{% endfor %}{% for x in (1, 2), %}{{ x }}{% endfor %}
{% include 'x' %}
{% import 'x' as y %}
{% from 'x' import y %}
{% extends 'x' %}
!{% block b %}{% endblock %}
!{% autoescape true %}{% endautoescape %}
{% trans %}{% endtrans %}
{{ l|tojson(bogus=1) }}
{{ l|join(1, 2, 3) }}
{{ n() }}
{{ s() }}
!{{ 9223372036854775807 + 1 }}
!{{ 2 ** 64 }}
!{{ 99999999999999999999 }}
{{ 9223372036854775807 - 1 }}{{ -9223372036854775807 - 1 }}{{ 2 ** 62 }}{{ (-2) ** 61 }}{{ 3 ** 39 }}{{ 0 ** 0 }}{{ 4611686018427387904 / 3 }}{{ 9007199254740993 / 1 }}{{ 2.0 ** 0.5 }}{{ 9007199254740993 == 9007199254740992.0 }}{{ 9007199254740993 > 9007199254740992.0 }}
{{ messages[0]['content']|trim }}{{ messages[1].content|trim|length }}{{ (messages|last)['content'] }}{{ messages[-1].content[:6] }}{{ messages|length - 1 }}
{{ messages[3].content|map(attribute='text')|select('defined')|join }}{{ messages[2].tool_calls[0].function.arguments|tojson }}{{ messages[2].tool_calls[0]['function']['arguments'].items()|list }}
{% for k, v in messages[2].tool_calls[0].function.arguments|items %}{{ k }}:{{ v|tojson if v is not string else v }}{{ ', ' if not loop.last }}{% endfor %}
{% if messages[0]['role'] == 'system' %}{% set sys = messages[0]['content'] %}{% set rest = messages[1:] %}{% else %}{% set sys = '' %}{% set rest = messages %}{% endif %}{{ sys|trim }}{{ rest|length }}
{% if n %}{% set a = 1 %}{% for i in l %}{{ a }}{% set a = i %}{% endfor %}{{ a }}{% endif %}{{ a }}
{% macro f(x) %}{% if x %}{% set y = 1 %}{% endif %}{{ y }}{% endmacro %}{{ f(0) }}{{ f(1) }}{{ y }}{% set y = 3 %}{{ f(0) }}
{% set x = 1 %}{% macro f() %}{{ x }}{% set x = 2 %}{{ x }}{% endmacro %}{{ f() }}{{ x }}
{% for i in l %}{% for j in l %}{% set k = i * j %}{{ k }}{% endfor %}{{ k }}{% endfor %}
{% set k = 0 %}{% for i in l %}{% for j in l %}{{ k }}{% set k = j %}{% endfor %}{{ k }}{% set k = 100 %}{% endfor %}{{ k }}
{% for m in messages if m.role != 'system' %}{{ loop.index0 % 2 == 0 }}{{ m.role }}{% else %}{{ m }}{% endfor %}{{ m }}
{% for m in messages %}{% set role = m.role %}{% if role == 'user' %}{% set role = 'U' %}{% elif role == 'tool' %}{% set other = 'T' %}{% endif %}{{ role }}{{ other }}{% endfor %}
{% set x = namespace(v=[]) %}{% for i in l %}{% set x.v = x.v + [i] %}{% endfor %}{{ x.v }}
{% set x %}{% set y = 5 %}{{ y }}{% endset %}{{ x }}{{ y }}
{% filter trim %}{% set y = 5 %} {{ y }} {% endfilter %}{{ y }}
{% if undefinedvar is defined and undefinedvar.x %}a{% else %}b{% endif %}{% if not tools is defined or not tools %}c{% endif %}{{ (undefinedvar or 'q') }}
{{ bos_token + messages[0].content }}{{ eos_token }}\n\n{{ add_generation_prompt }}
\n{{ 'x' }}\n\n  {%- if n -%}\n y \n {%- endif %}\n\n
{{- '\n' -}}  a  {{- '\n' }}  {% set x = 1 %}  b {% set y = 2 -%}  \n c
<a>{% if n %}{% endif %}\n</a>{% if n %}x{% endif %}\n\n{% if n %}\n\n{% endif %}
\t {% if n %}\t\n{% endif %}\u00a0{%- if n %}z{% endif %}
{{ 'é'|upper ~ 'É'|lower }}{{ 'ﬀ'.upper() }}{{ 'İ'.lower()|length }}{{ '\u0149'|upper }}
'''

# Templates written in the manner of some models, with their tools.
LONG = [
    """{{- bos_token }}
{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{#- The system message comes first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start|>system<|end|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: tools\\n" }}{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{{- system_message }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("no first user message") }}
    {%- endif %}
    {{- first_user_message + "<|eot|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one call at a time") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start|>ipython<|end|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
""",
    """{% macro render_content(content) -%}
  {%- if content is string -%}{{ content }}
  {%- elif content is none -%}
  {%- else -%}
    {%- for part in content -%}
      {%- if part.type == 'text' -%}{{ part.text }}{%- else -%}<{{ part.type }}>{%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last=-1, thinking=false) -%}
{%- for m in messages[::-1] -%}
  {%- set index = (messages | length - 1) - loop.index0 -%}
  {%- if ns.last < 0 and m.role == 'user' -%}{%- set ns.last = index -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
<|{{ m.role }}|>
{{ render_content(m.content) | trim }}{% if loop.index0 > ns.last %} (after){% elif loop.index0 == ns.last %} (last){% endif %}

{%- if m.tool_calls %}
  {%- for call in m.tool_calls %}
    {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
<call name="{{ call.name }}">
    {%- for k, v in call.arguments.items() %}

<arg {{ k }}>{{ v if v is string else v | tojson | safe }}</arg>
    {%- endfor %}

</call>
  {%- endfor %}
{%- endif %}

{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}""",
]


def main():
    env = jinja_env.environment()
    print(json.dumps({"vars": V}, ensure_ascii=True))
    for line in PLAIN.strip("\n").split("\n"):
        # The goldens keep backslashes of string literals: only line breaks and
        # tabs of the template text itself are escapes here.
        refused = line.startswith("!")
        line = line.lstrip("!")
        template = ""
        inside = 0
        i = 0
        while i < len(line):
            two = line[i:i + 2]
            if two in ("{{", "{%"):
                inside += 1
            elif two in ("}}", "%}"):
                inside = max(0, inside - 1)
            if line[i] == "\\" and not inside:
                if two == "\\u":
                    template += chr(int(line[i + 2:i + 6], 16))
                    i += 6
                    continue
                template += {"n": "\n", "r": "\r", "t": "\t"}[two[1]]
                i += 2
                continue
            template += line[i]
            i += 1
        emit(env, template, refused)
    for template in LONG:
        emit(env, template, False)


def emit(env, template, refused):
    out = {"template": template}
    out.update(jinja_env.render(env, template, json.loads(json.dumps(V))))
    if refused:
        out.pop("text", None)
        out["refused"] = True
    print(json.dumps(out, ensure_ascii=True))


main()

"""Line charts and attention maps as SVG, written by hand: no plotting library is needed, and
the same results give the same bytes."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

COLOURS = ("#0b6e99", "#c4572b", "#6b4fa0", "#2f855a", "#b7791f", "#97266d", "#4a5568", "#2b6cb0")
LEGEND = 225  # width of a name in the legend
DASHES = ("", "6 3", "2 3", "8 3 2 3")
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 }
  .note { font-size: 12px; fill: #57606a }
  .page { fill: #ffffff }
  .grid { stroke: #d0d7de; stroke-width: 1 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .note { fill: #9198a1 }
    .page { fill: #0d1117 }
    .grid { stroke: #30363d }
  }
"""


@dataclass
class Line:
    """points (x, value, least, most): the middle of several runs and their range."""

    name: str
    points: Sequence[tuple[float, float, float, float]]


@dataclass
class Panel:
    """A chart: x in powers of two or linear, y from 0 to `top`; percent writes y so."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line] = field(default_factory=list)
    top: float = 1.0
    percent: bool = True
    linear: bool = False


def _text(x, y, words, css="", anchor="start") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(str(words))}</text>'


def page(title: str, width: int, height: int, body: list[str]) -> str:
    """A whole SVG file."""
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{html.escape(title)}">',
        f"<style>{STYLE}</style>", f'<rect class="page" width="{width}" height="{height}"/>', *body, "</svg>", ""])


def charts(title: str, panels: list[Panel], wide: int = 300, high: int = 230) -> str:
    """Panels side by side with one legend below; a method has one colour in all of them."""
    left, top, gap = 62, 46, 52
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    per_row = max(1, (len(panels) * (wide + left)) // LEGEND)
    rows = -(-len(names) // per_row)
    width = len(panels) * (wide + left) + 24
    height = top + high + gap + 22 * rows + 10
    body = []
    for n, panel in enumerate(panels):
        body += _panel(panel, names, left + n * (wide + left), top, wide, high)
    for n, name in enumerate(names):
        x, y = left + LEGEND * (n % per_row), top + high + gap + 22 * (n // per_row) + 6
        body += [_stroke(names.index(name), f"M{x} {y - 4}h26"), _text(x + 34, y, name)]
    return page(title, width, height, body)


def _stroke(index: int, path: str) -> str:
    colour, dash = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'


def _panel(panel: Panel, names: list[str], left: float, top: float, wide: int, high: int) -> list[str]:
    xs = sorted({p[0] for line in panel.lines for p in line.points})
    if not xs:
        return [_text(left, top - 23, panel.title, "title"), _text(left, top + 20, "not measured yet", "note")]
    scale = float if panel.linear else math.log2
    low, span = scale(xs[0]), scale(xs[-1]) - scale(xs[0])

    def at(x: float, y: float) -> tuple[float, float]:
        share = (scale(x) - low) / span if len(xs) > 1 else 0.5
        return left + 12 + (wide - 24) * share, top + high - high * min(1.0, y / panel.top)

    out = [_text(left, top - 23, panel.title, "title")]
    for n in range(5):
        value = panel.top * n / 4
        y = at(xs[0], value)[1]
        told = f"{100 * value:.0f} %" if panel.percent else f"{value:g}"
        out += [f'<path class="grid" d="M{left} {y:.1f}h{wide}"/>', _text(left - 8, y + 4, told, "note", "end")]
    shown = xs[:: -(-len(xs) // 9)]
    out += [_text(at(x, 0)[0], top + high + 17, f"{x:g}", "note", "middle") for x in shown]
    out.append(_text(left + wide / 2, top + high + 34, panel.x_label, "note", "middle"))
    out.append(_text(left, top - 7, panel.y_label, "note"))
    for line in panel.lines:
        index = names.index(line.name)
        colour, spots = COLOURS[index % len(COLOURS)], [at(x, y) for x, y, _, _ in line.points]
        if any(least < most for _, _, least, most in line.points) and len(spots) > 1:
            edge = [at(x, most) for x, _, _, most in line.points]
            edge += [at(x, least) for x, _, least, _ in reversed(line.points)]
            out.append(f'<path d="M{_path(edge)}Z" fill="{colour}" opacity="0.15"/>')
        out.append(_stroke(index, f"M{_path(spots)}"))
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots]
    return out


def _path(spots: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)


def maps(title: str, pictures: list[tuple[str, list[list[float]]]], cell: int = 6) -> str:
    """Attention rows of one sequence, a picture a method: darker is more weight, each row by
    its largest. rows[i] holds the weights of positions 0 to i."""
    steps = max(len(rows) for _, rows in pictures)
    size, top = cell * steps, 40
    body = []
    for n, (name, rows) in enumerate(pictures):
        left = 20 + n * (size + 24)
        body += [_text(left, top - 12, name),
                 f'<rect x="{left}" y="{top}" width="{size}" height="{size}" fill="#f6f8fa"/>']
        for i, row in enumerate(rows):
            most = max(max(row), 1e-9)
            for j, weight in enumerate(row):
                if weight / most > 0.02:
                    body.append(f'<rect x="{left + cell * j}" y="{top + cell * i}" width="{cell}" '
                                f'height="{cell}" fill="#0b4f6c" opacity="{weight / most:.2f}"/>')
    return page(title, 20 + len(pictures) * (size + 24), top + size + 20, body)

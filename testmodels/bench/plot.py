"""Charts as SVG, for light and dark pages."""

from html import escape
from pathlib import Path

COLOURS = {"fparun": "#2f6fde", "llama.cpp": "#d9822b", "PyTorch": "#b03a48", "ONNX Runtime": "#6b7a8f"}
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.axis { stroke: #8c959f; fill: none }
.grid { stroke: #8c959f; stroke-opacity: .25 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }
</style>"""


def svg(path: Path, width: int, height: int, title: str, body: list[str]) -> None:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">'
    )
    path.write_text("\n".join([head, STYLE, f'<text class="title" x="12" y="22">{escape(title)}</text>', *body, "</svg>"]) + "\n")


def bars(path: Path, title: str, rows: list[tuple[str, dict[str, float]]]) -> None:
    """Horizontal bars in groups, one a row: its name, and the figure of each engine.
    Each group has a scale of its own: the largest figure in it."""
    left, length, bar = 190, 380, 16
    body, y = [], 40
    for name, figures in rows:
        largest = max(figures.values())
        body.append(f'<text x="12" y="{y + 13}">{escape(name)}</text>')
        for engine, value in figures.items():
            width = max(1, round(length * value / largest))
            body.append(f'<rect x="{left}" y="{y}" width="{width}" height="{bar - 3}" fill="{COLOURS[engine]}"/>')
            body.append(f'<text x="{left + width + 6}" y="{y + 11}">{value:,.0f} {escape(engine)}</text>')
            y += bar
        y += 12
    svg(path, left + length + 190, y, title, body)


def curve(path: Path, title: str, series: dict[str, dict[int, float]], x_title: str) -> None:
    """One line an engine over the depths, both axes linear from 0."""
    left, top, width, height = 60, 40, 520, 280
    x_most = max(x for line in series.values() for x in line)
    y_most = max(y for line in series.values() for y in line.values()) * 1.08

    def at(x: float, y: float) -> str:
        return f"{left + width * x / x_most:.1f},{top + height * (1 - y / y_most):.1f}"

    body = []
    step = next(s for s in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000, 2000) if y_most / s <= 6 or s == 2000)
    for tick in range(0, int(y_most) + 1, step):
        y = float(at(0, tick).split(",")[1])
        body.append(f'<path class="grid" d="M{left},{y}h{width}"/><text x="{left - 8}" y="{y + 4}" text-anchor="end">{tick}</text>')
    for tick in sorted({x for line in series.values() for x in line}):
        x = float(at(tick, 0).split(",")[0])
        body.append(f'<text x="{x}" y="{top + height + 18}" text-anchor="middle">{tick:,}</text>')
    body.append(f'<path class="axis" d="M{left},{top}v{height}h{width}"/>')
    body.append(f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">{escape(x_title)}</text>')
    for i, (name, line) in enumerate(series.items()):
        colour = next((c for engine, c in COLOURS.items() if name.startswith(engine)), "#1a7f4b")
        dash = ' stroke-dasharray="6 4"' if name not in COLOURS else ""
        points = " ".join(at(x, y) for x, y in sorted(line.items()))
        body.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        y = top + 10 + 18 * i
        body.append(f'<path d="M{left + width + 16},{y}h24" stroke="{colour}" stroke-width="2"{dash}/>')
        body.append(f'<text x="{left + width + 46}" y="{y + 4}">{escape(name)}</text>')
    svg(path, left + width + 260, top + height + 50, title, body)

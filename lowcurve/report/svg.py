"""Charts as inline SVG: colors come from the page's style, values from `<title>` and `data-tip` of each point."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT = 800, 380
LEFT, RIGHT, TOP, BOTTOM = 80, 16, 14, 56
INSET = 10  # pixels from the frame to the outermost points, whose rings would cover the ticks' labels
DENSE = 20  # points; more of them are drawn small
MARKS = 5  # about how many ticks an axis has


class Axis:
    """Maps values to pixels, linearly or by their logarithm."""

    def __init__(self, values: Sequence[float], start: float, end: float, log: bool) -> None:
        self.log = log
        usable = [value for value in values if value > 0 or not log] or [1.0]
        low, high = min(usable), max(usable)
        if log and low == high:
            low, high = low / 2, high * 2
        elif not log:
            room = max(0.05 * (high - low), 1e-3 * max(abs(low), abs(high))) or 1.0
            near = 0 <= low < 0.25 * high  # zero is so near that leaving it out would only mislead
            low, high = (0.0 if near else low - room), high + room
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> float:
        """Return the pixel of `value`."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values between the ends.

        >>> Axis([0, 10], 0, 100, log=False).ticks()
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        >>> Axis([96, 99], 0, 100, log=False).ticks()
        [96.0, 97.0, 98.0, 99.0]
        """
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            decades = [base * 10.0**power for power in range(first, last + 1) for base in (1, 2, 5)]
            inside = [tick for tick in decades if self.low <= tick * 1.0001 and tick <= self.high * 1.0001]
            whole = [tick for tick in inside if f"{tick:e}"[0] == "1"]
            return whole if len(whole) >= 3 else inside or [float(f"{end:.3g}") for end in (self.low, self.high)]
        rough = (self.high - self.low) / MARKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.9 * rough)
        first = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def places(rows: Sequence[str], order: Sequence[str]) -> list[int]:
    """Return the place of each line, which gives it its color: that of its row, or its own where lines are no rows.

    >>> places(["c", "a"], ["a", "b", "c"]), places(["a", "x"], ["a", "b", "c"])
    ([2, 0], [0, 1])
    """
    of_rows = len({*rows}) == len(rows) and {*rows} <= {*order}
    return [order.index(row) for row in rows] if of_rows else list(range(len(rows)))


def line_chart(curve: dict[str, Any], name: str, order: Sequence[str] = ()) -> str:
    """Return a chart with a line per row, its spread over seeds as a band and its prediction dashed.

    `order` has the rows of the whole table, or of the whole page: a row has one color, whatever a chart leaves out.
    """
    lines, log = curve["lines"], curve["log"]
    xs = [value for line in lines for value in line["x"]]
    ys = [value for line in lines for key in ("low", "high", "predicted") for value in line.get(key, [])]
    y = _vertical(ys, log)
    x = _horizontal(xs, y, log)
    parts = [_frame(x, y, curve["x_label"], curve["y_label"])]
    for position, line in zip(places([line["row"] for line in lines], order), lines, strict=True):
        parts.append(_line(line, position, x, y))
    label = escape(f"{name}: {curve['y_label']} against {curve['x_label']}", quote=True)
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="{label}">{"".join(parts)}</svg>'


def layer_chart(groups: dict[str, dict[str, float]], y_label: str, positions: Sequence[int]) -> str:
    """Return a chart, logarithmic, with one line of marks per group over named positions, such as β over the layers."""
    names = list(dict.fromkeys(name for values in groups.values() for name in values))
    y = _vertical([value for values in groups.values() for value in values.values()], log=True)
    x = _horizontal([0, len(names) - 1 or 1], y, log=False)
    parts = [_frame(x, y, "layer, first to last", y_label, x_ticks=False)]
    for position, (label, values) in zip(positions, groups.items(), strict=True):
        line = {
            "label": label,
            "x": [float(names.index(name)) for name in values],
            "y": list(values.values()),
            "low": list(values.values()),
            "high": list(values.values()),
            "names": list(values),
        }
        parts.append(_line(line, position, x, y))
    title = escape(f"{y_label} by layer", quote=True)
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="{title}">{"".join(parts)}</svg>'


def _vertical(values: Sequence[float], log: bool) -> Axis:
    return Axis(values, HEIGHT - BOTTOM - INSET, TOP + INSET, log)


def _horizontal(values: Sequence[float], y: Axis, log: bool) -> Axis:
    return Axis(values, _left(y) + INSET, WIDTH - RIGHT - INSET, log)


def _left(y: Axis) -> int:
    """Return where the plot begins: right of its longest tick, in the large letters of a phone."""
    return max(LEFT, 34 + 12 * max(len(f"{tick:g}") for tick in y.ticks() or [0]))


def _frame(x: Axis, y: Axis, x_label: str, y_label: str, *, x_ticks: bool = True) -> str:
    left = _left(y)
    parts = [
        f'<rect class="plot" x="{left}" y="{TOP}" width="{WIDTH - left - RIGHT}" height="{HEIGHT - TOP - BOTTOM}"/>'
    ]
    for tick in x.ticks() if x_ticks else []:
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 4}" dy="1em" text-anchor="middle">{tick:g}</text>')
    for tick in y.ticks():
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{left - 6}" y="{y(tick):.1f}" dy=".35em" text-anchor="end">{tick:g}</text>')
    middle, center = (TOP + HEIGHT - BOTTOM) / 2, (left + WIDTH - RIGHT) / 2
    for place, text in (
        (f'x="{center}" y="{HEIGHT - 10}"', x_label),
        (f'transform="translate(14 {middle}) rotate(-90)"', y_label),
    ):
        parts.append(f'<text class="label" {place} text-anchor="middle">{escape(text)}</text>')
    return f'<g aria-hidden="true">{"".join(parts)}</g>'


def _line(line: dict[str, Any], position: int, x: Axis, y: Axis) -> str:
    def path(values: Sequence[float]) -> str:
        return " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(line["x"], values, strict=True))

    band = ""
    if line["low"] != line["high"]:
        back = " ".join(reversed(path(line["low"]).split(" ")))
        band = f'<polygon class="band" points="{path(line["high"])} {back}"/>'
    predicted = f'<polyline class="predicted" points="{path(line["predicted"])}"/>' if line.get("predicted") else ""
    # Rings grow from line to line, so that points that coincide stand around each other.
    radius = 1.5 if len(line["x"]) > DENSE else 3 + 1.6 * (position % 4)
    points = []
    for index, (a, b) in enumerate(zip(line["x"], line["y"], strict=True)):
        at = line["names"][index] if "names" in line else f"{a:.3g}"
        tip = f"{line['label']}, {at}: {b:.4g}"
        if line["low"][index] != line["high"][index]:
            tip += f" ({line['low'][index]:.4g} to {line['high'][index]:.4g})"
        points.append(f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="{radius:g}" data-tip="{escape(tip, quote=True)}"/>')
    label = escape(f"{line['label']}: " + ", ".join(f"{b:.3g}" for b in line["y"]), quote=True)
    return (
        f'<g class="series c{position % 10} d{position % 4}" role="img" aria-label="{label}">{band}{predicted}'
        f'<polyline points="{path(line["y"])}"/>{"".join(points)}</g>'
    )

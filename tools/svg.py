"""What the charts of ratios share: text, and bars that begin at 1x on a logarithmic axis."""

import math

# Of bars to the right of 1x, where the plugin is faster, and of those to its left.
FASTER, SLOWER = "#0072b2", "#c44e00"


def text(x, y, content, size=11, anchor="start", weight="normal", colour="#222222"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
            f'fill="{colour}">{content}</text>')


def document(width, height, lines):
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                      f'height="{height}" font-family="Helvetica, Arial, sans-serif">',
                      f'<rect width="{width}" height="{height}" fill="white"/>', *lines, "</svg>"]) + "\n"


class Axis:
    """A logarithmic axis of ratios. Ratios beyond its ends are drawn at the ends."""

    def __init__(self, left, width, ticks):
        self.left, self.width, self.ticks = left, width, ticks

    def position(self, value):
        least, most = self.ticks[0], self.ticks[-1]
        return self.left + math.log2(max(least, min(most, value)) / least) / math.log2(most / least) * self.width

    def grid(self, top, bottom):
        lines = []
        for tick in self.ticks:
            x, main = self.position(tick), tick == 1
            lines.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" '
                         f'stroke="{"#444444" if main else "#dddddd"}" stroke-width="{1.2 if main else 1}"/>')
            lines.append(text(x, bottom + 14, f"{tick:g}×", 10, "middle"))
        return lines

    def bar(self, value, top, height, colour):
        """Returns the bar from 1x to the value, and where it begins and ends."""
        begin, end = sorted((self.position(1), self.position(value)))
        return (f'<rect x="{begin:.1f}" y="{top}" width="{max(end - begin, 1):.1f}" height="{height}" fill="{colour}"/>',
                begin, end)

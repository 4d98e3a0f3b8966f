"""Summarises rows that were drawn at random: the distribution of the ratios to the fastest peer, as text and as a picture.

Stock tract is no peer here. It has a ratio of its own.
"""

import sys
from pathlib import Path

from ratios import DECONV, NAMES, figure, geometric_mean, median_us, microseconds, paired, rivals

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "tools"))
from svg import FASTER, SLOWER, Axis, document, text

GROUP = "random"
DIRECTIONS = {"t": "transposed", "f": "forward"}
WORST = 10
# An error is compared with onnxruntime's. Where few products are summed, onnxruntime is nearly exact, and an error below the
# second figure, as a share of the largest value, is as good.
MOST_ERROR, EXACT_ENOUGH = 1.5, 3e-7

TICKS = (0.25, 0.5, 1, 2, 4, 8)
LEFT, PANEL, GAP, TOP, BAR, FOOT = 20, 330, 40, 34, 4, 44


class Ratio:
    """The subject's speed over a rival's on one row: the median of paired rounds, with its quartiles."""

    def __init__(self, result, rival, subject):
        self.result, self.rival, self.subject = result, rival, subject
        self.value, self.low, self.high = paired(result["engines"][rival], result["engines"][subject])


def direction(result):
    return DIRECTIONS[result["row"].split("_")[1][0]]


def ratios_to_peers(results, subject):
    """Returns a ratio to the fastest peer for each row where the subject and a peer are right, the worst first."""
    ratios = []
    for result in measured(results, subject):
        peers = [label for label in rivals(result, subject) if label != "stock"]
        if peers:
            ratios.append(Ratio(result, peers[0], subject))
    return sorted(ratios, key=lambda ratio: ratio.value)


def ratios_to(label, results, subject):
    """Returns a ratio to one engine for each row where it and the subject are right, the worst first."""
    ratios = [Ratio(result, label, subject) for result in measured(results, subject) if label in rivals(result, subject)]
    return sorted(ratios, key=lambda ratio: ratio.value)


def measured(results, subject):
    return [result for result in results if (own := result["engines"].get(subject)) and median_us(own)]


def mean(ratios):
    return figure(geometric_mean([ratio.value for ratio in ratios]))


def behind(ratios, limit=1.0):
    return sum(ratio.value < limit for ratio in ratios)


def slower_beyond_noise(ratios):
    """Returns the ratios below 1 in three of four rounds."""
    return [ratio for ratio in ratios if ratio.high < 1]


def errors_beyond(results, subject):
    """Returns the rows on which the subject errs more than it should beside onnxruntime, with both errors."""
    rows = []
    for result in results:
        own, theirs = result["engines"].get(subject), result["engines"].get("onnxruntime")
        if own and theirs and own["right"] and theirs["right"]:
            if own["error"] > max(MOST_ERROR * theirs["error"], EXACT_ENOUGH):
                rows.append((result["row"], own["error"], theirs["error"]))
    return rows


def summary(results, subject):
    """Returns one line per direction."""
    lines = ["| rows | geometric mean | behind the fastest peer | by more than 5 % | below 0.85× | worst "
             "| × tract | slower than tract | beyond noise |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    parts = {name: [result for result in results if direction(result) == name] for name in DIRECTIONS.values()}
    for name, members in {**parts, "both": results}.items():
        peers, stock = ratios_to_peers(members, subject), ratios_to("stock", members, subject)
        if peers:
            lines.append(f"| {len(peers)} {name} | {mean(peers)}× | {behind(peers)} ({behind(peers) / len(peers):.0%}) "
                         f"| {behind(peers, 0.95)} | {behind(peers, 0.85)} | {peers[0].value:.2f}× "
                         f"| {mean(stock)} | {behind(stock)} | {len(slower_beyond_noise(stock))} |")
    return "\n".join(lines)


def worst(ratios):
    lines = ["| row | × fastest peer | quartiles | fastest peer | its µs | µs |", "|---|---:|---:|---|---:|---:|"]
    for ratio in ratios[:WORST]:
        engines = ratio.result["engines"]
        theirs, own = (microseconds(median_us(engines[label])) for label in (ratio.rival, ratio.subject))
        lines.append(f"| {ratio.result['row']} | {ratio.value:.2f} | {ratio.low:.2f}–{ratio.high:.2f} "
                     f"| {NAMES[ratio.rival]} | {theirs} | {own} |")
    return "\n".join(lines)


def peers_table(results, subject):
    """Returns one line per engine: on how many rows it is right, wrong and unable, and how often it is the fastest."""
    fastest = [ratio.rival for ratio in ratios_to_peers(results, subject)]
    lines = ["| engine | right | wrong | can't | fastest | × its speed |", "|---|---:|---:|---:|---:|---:|"]
    for label in NAMES:
        engines = [result["engines"][label] for result in results if label in result["engines"]]
        if engines and label != subject:
            unable = sum(bool(engine["failure"]) for engine in engines)
            right = sum(engine["right"] for engine in engines)
            lines.append(f"| {NAMES[label]} | {right} | {len(engines) - right - unable} | {unable} "
                         f"| {fastest.count(label)} | {mean(ratios_to(label, results, subject))} |")
    return "\n".join(lines)


def slower_with_more_threads(results, subject):
    """Returns the rows on which the subject takes longer with more threads, with both times in microseconds."""
    times = {}
    for result in measured(results, subject):
        times.setdefault(result["row"], {})[result["threads"]] = median_us(result["engines"][subject])
    rows = []
    for row, by_threads in times.items():
        fewest, most = min(by_threads), max(by_threads)
        if by_threads[most] > 1.05 * by_threads[fewest]:
            rows.append((row, by_threads[fewest], by_threads[most]))
    return rows


def section(results, drawn, subject):
    """Returns the report's part about the rows that were drawn, or nothing if there are none."""
    rows = [result for result in results if result["group"] == GROUP]
    if not rows:
        return ""
    counts = sorted({result["threads"] for result in rows})
    source = f"Seed {drawn[0]}, {drawn[1]} rows of each direction, from benches/distribution.json. " if drawn else ""
    lines = (f"## Rows drawn at random\n\n{source}Ratios are to the fastest peer whose answer is right; tract without the "
             "plugin is apart. Beyond noise: in three of four rounds.\n\n![](distribution.svg)\n\n")
    for threads in counts:
        members = [result for result in rows if result["threads"] == threads]
        lines += (f"### {threads} thread{'s' if threads > 1 else ''}: the distribution\n\n{summary(members, subject)}\n\n"
                 f"{peers_table(members, subject)}\n\nThe worst rows:\n\n{worst(ratios_to_peers(members, subject))}\n\n")
        beyond = errors_beyond(members, subject)
        lines += (f"Errors above {MOST_ERROR} times onnxruntime's and above {EXACT_ENOUGH:.0e}: {len(beyond)} of {len(members)} rows.\n\n")
        lines += "".join(f"- {row}: {own:.1e}, onnxruntime {theirs:.1e}\n" for row, own, theirs in beyond) + ("\n" if beyond else "")
    if len(counts) > 1:
        slower = slower_with_more_threads(rows, subject)
        lines += f"More than 5 % slower with {counts[-1]} threads than with {counts[0]} (not paired): {len(slower)} rows.\n\n"
        lines += "".join(f"- {row}: {few:.1f} µs, {many:.1f} µs\n" for row, few, many in slower) + ("\n" if slower else "")
    return lines


def chart(results, subject, path):
    """Draws one panel per thread count and direction: a bar for each row, sorted, from 1x to its ratio."""
    rows = [result for result in results if result["group"] == GROUP]
    if not rows:
        return
    counts, kinds = sorted({result["threads"] for result in rows}), sorted({direction(result) for result in rows}, reverse=True)
    panels = {(threads, kind): ratios_to_peers([result for result in rows if (result["threads"], direction(result)) == (threads, kind)],
                                               subject)
              for threads in counts for kind in kinds}
    height_of_panel = TOP + BAR * max(len(ratios) for ratios in panels.values()) + FOOT
    width = LEFT + len(counts) * (PANEL + GAP)
    lines = [text(LEFT, 24, f"{NAMES[subject]}: speed relative to the fastest peer, on layers drawn at random", 14, weight="bold")]
    for (threads, kind), ratios in panels.items():
        left, top = LEFT + counts.index(threads) * (PANEL + GAP), 40 + kinds.index(kind) * height_of_panel
        lines += panel(left, top, height_of_panel - FOOT, f"{kind}, {threads} thread{'s' if threads > 1 else ''}", ratios)
    height = 40 + height_of_panel * len(kinds) + 12
    lines.append(text(LEFT, height - 12, "One bar per layer. Blue: faster. Orange: slower. Peers: " + ", ".join(names(rows, subject)) + ".", 10))
    path.write_text(document(width, height, lines))


def names(results, subject):
    peers = [label for label in NAMES if label not in (subject, "stock", DECONV)]
    return [NAMES[label] for label in peers if any(label in result["engines"] for result in results)]


def panel(left, top, height, title, ratios):
    axis = Axis(left, PANEL, TICKS)
    share = f"{behind(ratios) / len(ratios):.0%}" if ratios else "–"
    lines = [text(left, top + 12, title[0].upper() + title[1:], 12, weight="bold"),
             text(left, top + 26, f"geometric mean {mean(ratios)}×; behind on {behind(ratios)} of {len(ratios)} ({share})", 10)]
    lines += axis.grid(top + TOP - 2, top + height)
    for at, ratio in enumerate(ratios):
        bar, _, _ = axis.bar(ratio.value, top + TOP + BAR * at, BAR - 1, FASTER if ratio.value >= 1 else SLOWER)
        lines.append(bar)
    if ratios and ratios[0].value < 1:
        x, anchor = axis.position(ratios[0].value) - 3, "end"
        if x < left + 30:
            x, anchor = axis.position(1) + 4, "start"
        lines.append(text(x, top + TOP + 8, f"{ratios[0].value:.2f}", 9, anchor, "bold", SLOWER))
    return lines

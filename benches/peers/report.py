"""Turns the measurements of run.py into a table, a chart and a verdict.

`report.py results.json` writes report.md and chart.svg next to the file again.
"""

import argparse
import json
import statistics
from pathlib import Path

import matplotlib

import distribution
from ratios import (DECONV, NAMES, NCX, figure, geometric_mean, median_us, microseconds, paired, rivals, subject_of)

matplotlib.use("svg")
import matplotlib.pyplot as plt

COLOURS = {"plugin": "#0072b2", "plugin-bf16": "#003f66", "plugin-f16": "#4d9fd6", DECONV: "#56b4e9", "stock": "#8c8c8c", "onnxruntime": "#e69f00", "openvino": "#009e73", "openvino-bf16": "#00594a", "mnn": "#cc79a7",
           "ncnn": "#d55e00", "onednn": "#b8a600"}
GROUPS = {"listed": "Listed shapes", "unlisted": "Unlisted shapes", "forward": "Forward convolutions", "models": "Whole models",
          "files": "Models from files", "random": "Rows drawn at random", "floor": "Cost of a call"}


def ratio_to_fastest(result, subject):
    """Returns (median, quartiles) against the fastest rival, or None if either engine is missing."""
    others = rivals(result, subject)
    own = result["engines"].get(subject)
    if not others or not own or median_us(own) is None:
        return None
    return paired(result["engines"][others[0]], own)


def peak_share(result, subject):
    own = result["engines"].get(subject)
    time = own and median_us(own)
    known = time and result["useful_flops"] and result["peak_flops"]
    return result["useful_flops"] / (time * 1e-6) / result["peak_flops"] if known else None


def cell(engine):
    if engine is None:
        return "–"
    if engine["failure"]:
        return "can't" if engine["failure"].startswith("unsupported") else "failed"
    if not engine["right"]:
        return f"wrong ({engine['error']:.0e})"
    time = median_us(engine)
    mode = f", {engine['mode']}" if "mode" in engine else ""
    return "–" if time is None else f"{microseconds(time)} ({engine['error']:.0e}{mode})"


def one_line(result):
    """Returns a line of progress for the terminal."""
    if "peak_flops" not in result:
        cells = [f"{label} {fresh(engine, cold)} ms {fresh(engine, peak)} MiB" for label, engine in result["engines"].items()]
        return f"{result['row']}  {result['threads']}T  " + "  ".join(cells)
    cells = [f"{label} {cell(engine)}" for label, engine in result["engines"].items()]
    return f"{result['row']}  {result['threads']}T  " + "  ".join(cells)


def table(results, subject):
    labels = [label for label in NAMES if any(label in result["engines"] for result in results)]
    head = ["row", *(NAMES[label] for label in labels), "fastest other", "× fastest other", "quartiles",
            "× tract", "of FMA peak"]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for result in results:
        engines, others = result["engines"], rivals(result, subject)
        ratio = ratio_to_fastest(result, subject)
        against_stock = paired(engines["stock"], engines[subject])[0] if ratio and "stock" in others else None
        share = peak_share(result, subject)
        lines.append([result["row"], *(cell(engines.get(label)) for label in labels),
                      NAMES[others[0]] if others else "–", figure(ratio and ratio[0]),
                      f"{ratio[1]:.2f}–{ratio[2]:.2f}" if ratio else "–", figure(against_stock),
                      "–" if share is None else f"{share:.0%}"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def summary(results, subject):
    """Returns one line per group with the geometric mean, the worst row and the number of rows behind."""
    lines = ["| rows | geometric mean | worst row | behind |", "|---|---:|---|---:|"]
    groups = {title: [r for r in results if r["group"] == group] for group, title in GROUPS.items()}
    groups["Grouped and depthwise shapes"] = [result for result in results if result["grouped"]]
    groups["All shapes"] = [result for result in results if result["group"] in ("listed", "unlisted")]
    for title, members in groups.items():
        ratios = {r["row"]: ratio[0] for r in members if (ratio := ratio_to_fastest(r, subject))}
        if ratios:
            worst = min(ratios, key=ratios.get)
            behind = sum(ratio < 1 for ratio in ratios.values())
            lines.append(f"| {title} | {geometric_mean(ratios.values()):.2f}× | {worst} {ratios[worst]:.2f}× "
                         f"| {behind} of {len(ratios)} |")
    return "\n".join(lines)


def channels_last(results):
    lines = []
    for result in results:
        ncx, nxc = result["engines"].get(NCX), result["engines"].get("plugin")
        if ncx and nxc and median_us(ncx) and median_us(nxc):
            lines.append(f"- {result['row']}: {paired(ncx, nxc)[0]:.2f}× its speed in NCX")
    return "Channels last against channels first, paired:\n\n" + "\n".join(lines) + "\n\n" if lines else ""


def remarks(results):
    """Returns each failure, and the rows that have it."""
    failures = {}
    for result in results:
        for label, engine in result["engines"].items():
            if engine["failure"]:
                failures.setdefault((NAMES.get(label, label), engine["failure"]), []).append(result["row"])
    lines = [f"- {name}: {failure}: {', '.join(rows)}" for (name, failure), rows in failures.items()]
    return "Failures:\n\n" + "\n".join(lines) + "\n\n" if lines else ""


def machine_table(results):
    lines = ["|  |  |", "|---|---|"]
    for key, value in results["machine"].items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {text}" for name, text in value.items())
        elif isinstance(value, list):
            value = ", ".join(value)
        lines.append(f"| {key} | {value} |")
    pinned = results["pinned_to"]
    lines.append(f"| pinned to CPUs | {', '.join(map(str, pinned)) if pinned else 'not pinned'} |")
    lines.append(f"| heaps keep freed pages | {'yes' if results.get('keep_pages') else 'no'} |")
    lines.append(f"| load average before | {results['load_average_before']:.2f} |")
    lines.append(f"| time stolen by the hypervisor | {results['stolen_ms']} ms |")
    return "\n".join(lines)


def write(results, folder):
    """Writes report.md and chart.svg. Returns false if the engine under test was wrong or failed anywhere."""
    rows = results["results"]
    subject = subject_of(rows)
    text = f"# {NAMES[subject]} against its peers\n\n{machine_table(results)}\n\n"
    text += ("Microseconds a run: the median of the rounds' medians. In brackets, the largest error as a share of the largest "
             "value. Ratios pair the two engines round by round; above 1 the subject is faster. Engines whose answer was wrong "
             "don't count.\n\n")
    text += distribution.section(rows, results.get("random"), subject)
    for threads in sorted({row["threads"] for row in rows}):
        chosen = [row for row in rows if row["threads"] == threads]
        text += f"## {threads} thread{'s' if threads > 1 else ''}\n\n"
        peaks = [row["peak_flops"] for row in chosen if row["peak_flops"]]
        if peaks:
            text += f"FMA peak: {statistics.median(peaks) / 1e9:.0f} GF/s (median over the rows; each row is compared with its own).\n\n"
        text += f"{summary(chosen, subject)}\n\n"
        for group, title in GROUPS.items():
            members = [row for row in chosen if row["group"] == group]
            if members:
                text += f"### {title}\n\n{table(members, subject)}\n\n"
        text += channels_last(chosen) + remarks(chosen)
    (folder / "report.md").write_text(text)
    distribution.chart(rows, subject, folder / "distribution.svg")
    chart(results, subject, folder / "chart.svg")
    return all(row["engines"].get(subject, {"right": True})["right"] for row in rows)


def chart(results, subject, path):
    """Draws every engine's speed on every row, relative to the subject's fastest rival, one panel per thread count."""
    rows = [row for row in results["results"] if row["group"] not in ("floor", distribution.GROUP)]
    if not rows:
        return
    counts = sorted({row["threads"] for row in rows})
    names = [row["row"] for row in rows if row["threads"] == counts[0]]
    matplotlib.rcParams.update({"svg.hashsalt": "peers", "font.size": 9, "axes.spines.top": False,
                                "axes.spines.right": False})
    size = (4.6 + 4.6 * len(counts), 1.6 + 0.22 * len(names))
    picture, panels = plt.subplots(1, len(counts), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for panel, threads in zip(panels[0], counts):
        chosen = {row["row"]: row for row in rows if row["threads"] == threads}
        draw(panel, [chosen.get(name) for name in names], subject)
        ratios = {name: ratio[0] for name in chosen if (ratio := ratio_to_fastest(chosen[name], subject))}
        title = f"{threads} thread{'s' if threads > 1 else ''}"
        if ratios:
            worst = min(ratios, key=ratios.get)
            title += f": geometric mean {geometric_mean(ratios.values()):.2f}×\nworst {worst} {ratios[worst]:.2f}×"
        panel.set_title(title, loc="left", fontsize=9)
    panels[0][0].set_yticks(range(len(names)), names)
    panels[0][0].set_ylim(len(names) - 0.4, -0.6)
    handles, labels = panels[0][0].get_legend_handles_labels()
    picture.legend(dict(zip(labels, handles)).values(), dict(zip(labels, handles)), loc="outside lower center",
                   ncols=len(NAMES), frameon=False)
    picture.suptitle(f"Speed relative to the fastest engine other than {NAMES[subject]}: right is faster. "
                     "At the edge: share of the FMA peak.", fontsize=9, x=0.01, ha="left")
    picture.savefig(path, metadata={"Date": None}, facecolor="white")
    plt.close(picture)


def draw(panel, results, subject):
    panel.axvline(1, color="#444444", linewidth=0.8, zorder=0)
    panel.set_axisbelow(True)
    panel.grid(axis="y", color="#eeeeee")
    for place, result in enumerate(results):
        others = result and rivals(result, subject)
        if not others:
            continue
        best = median_us(result["engines"][others[0]])
        for label, name in NAMES.items():
            time = median_us(result["engines"][label]) if label in result["engines"] else None
            if time:
                marker = {"marker": "D", "s": 34, "zorder": 3} if label == subject else {"marker": "o", "s": 16, "zorder": 2}
                panel.scatter(best / time, place, color=COLOURS[label], label=name, **marker)
        share = peak_share(result, subject)
        if share is not None:
            panel.annotate(f"{share:.0%}", (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=7)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    panel.margins(x=0.04)


def cold(engine):
    return f"{statistics.median(engine['cold_ms']):.0f} ({max(engine['cold_ms']):.0f})"


def peak(engine):
    in_all, on_top = (statistics.median(engine[key]) / 2**20 for key in ("peaks", "model_and_runs"))
    return f"{in_all:.0f} ({on_top:.0f})"


def fresh(engine, cell):
    if engine is None:
        return "–"
    return "failed" if engine["failure"] else cell(engine)


def fresh_tables(results):
    return (f"# Fresh processes\n\n{machine_table(results)}\n\n## Cold start\n\nMilliseconds that a fresh process takes to load the "
            "model, optimise it and run it once: the median of the processes, which take turns; in brackets, the slowest.\n\n"
            f"{fresh_table(results, cold)}\n\n## Peak memory\n\nMiB resident at the peak of a fresh process that loads the "
            "model and runs it three times; in brackets, what came on top of the process with its runtime's library "
            f"and the input.\n\n{fresh_table(results, peak)}\n")


def fresh_table(results, cell):
    rows = results["results"]
    labels = [label for label in NAMES if any(label in row["engines"] for row in rows)]
    lines = ["| row | threads | " + " | ".join(NAMES[label] for label in labels) + " |",
             "|---|---:" + "|---:" * len(labels) + "|"]
    for row in rows:
        cells = [fresh(row["engines"].get(label), cell) for label in labels]
        lines.append(f"| {row['row']} | {row['threads']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    file = parser.parse_args().results
    write(json.loads(file.read_text()), file.parent)

"""Draws docs/models.svg: whole-model speed against the fastest other engine, from records of `benches/peers/run.py --folders`.

    python3 tools/models_chart.py [TITLE=results.json ...]

One panel per record. Each model has one bar per thread count. A bar begins at 1x, the speed of the fastest other engine
(onnxruntime, OpenVINO, MNN or stock tract), and ends at the plugin's speed: to the right where the plugin is faster, to
the left where it is slower. A ratio is the median over the rounds, as in the record's report.md.
"""

import json
import statistics
import sys
from pathlib import Path

from svg import FASTER, SLOWER, Axis, document, text

ROOT = Path(__file__).resolve().parent.parent
RECORDS = [
    ("Zen 3 (AVX2)", ROOT / "benches/record/2026-11-30-tile-order/models/results.json"),
    ("Zen 4 (AVX-512)", ROOT / "benches/record/2026-12-01-zen4-phases/models/results.json"),
]
OUT = ROOT / "docs/models.svg"

# Engines that are no rivals: the plugin itself, and the plugin without forward convolutions.
OWN = {"plugin", "deconv"}
# Rows are named as in the record, except these.
NAMES = {
    "agllnet_256": "AGLLNet 256², light enhancement", "bodypix_s16": "BodyPix, poses", "burn_ct1d": "burn, one 1-D layer",
    "burn_ct2d": "burn, one 2-D layer", "burn_ct3d": "burn, one 3-D layer", "cae_mnist_dec": "autoencoder's decoder",
    "deeplab_v3_257": "DeepLab v3, segmentation", "dfn3_df_dec": "DeepFilterNet 3, df_dec",
    "dfn3_enc": "DeepFilterNet 3, enc", "dfn3_erb_dec": "DeepFilterNet 3, erb_dec",
    "dfn3_erb_dec_stream": "DeepFilterNet 3, streaming", "dnsmos_p808": "DNSMOS, speech quality",
    "fsanet_var": "FSA-Net, head pose", "gtcrn_stream_simple": "gtcrn, speech enhancement",
    "onnx_ct2d": "onnx, one 2-D layer", "pnsn_eqt": "EQTransformer, earthquakes",
    "pnsn_tele_global_20Hz": "tele global, earthquakes", "pnsn_unet": "PNSN U-Net, earthquakes",
    "ppocr_v3_det": "PP-OCRv3, text detection", "ppocr_v4_det": "PP-OCRv4, text detection",
    "road_seg_adas": "road segmentation", "seizure_a": "seizure detection", "selfie_seg": "selfie segmentation",
    "silero_vad_ifless": "Silero VAD, voice activity", "ssrnet": "SSR-Net, ages",
    "tbefn_180x320": "TBEFN, light enhancement", "ten_vad": "TEN VAD, voice activity",
    "tract_deconv_group": "tract, one 1-D layer", "ultraface_slim_320": "UltraFace slim, faces",
    "unet_sed": "unet_sed, U-Net 224²", "yolox_nano_416": "YOLOX nano, objects",
}
LABELS, PANEL, GAP, ROW, TOP, BOTTOM = 220, 420, 90, 22, 92, 40
TICKS = (0.25, 0.5, 1, 2, 4, 8, 16)
COLOURS = {True: (FASTER, "#7fb8d8"), False: (SLOWER, "#e8a77c")}


def ratio(result):
    """The plugin's speed over that of the fastest other engine, paired round by round; None where one has no answer."""
    right = {name: of for name, of in result["engines"].items() if of["right"] and of["rounds_us"]}
    rivals = [name for name in right if name not in OWN]
    if "plugin" not in right or not rivals:
        return None
    fastest = min(rivals, key=lambda name: statistics.median(right[name]["rounds_us"]))
    pairs = zip(right[fastest]["rounds_us"], right["plugin"]["rounds_us"])
    return statistics.median(other / own for other, own in pairs)


def bars(axis, y, of_model):
    lines = []
    for at, threads in enumerate(sorted(of_model)):
        value = of_model[threads]
        top = y + 2 + 10 * at
        bar, begin, end = axis.bar(value, top, 9, COLOURS[value >= 1][at % 2])
        lines.append(bar)
        if value >= 1:
            lines.append(text(end + 3, top + 8, f"{value:.2f}", 9))
        else:
            lines.append(text(begin - 3, top + 8, f"{value:.2f}", 9, "end", "bold", COLOURS[False][0]))
    return lines


def panel(left, bottom, title, rows, results):
    ratios, lines, axis = {}, [], Axis(left, PANEL, TICKS)
    for result in results:
        value = ratio(result)
        if value is not None:
            ratios.setdefault(result["row"], {})[result["threads"]] = value
    counts = sorted({threads for of_model in ratios.values() for threads in of_model})
    means = ", ".join(f"{statistics.geometric_mean(r[n] for r in ratios.values() if n in r):.2f}×" for n in counts)
    behind = ", ".join(str(sum(r[n] < 1 for r in ratios.values() if n in r)) for n in counts)
    lines.append(text(left, 52, title, 12, weight="bold"))
    words = " and ".join(map(str, counts))
    lines.append(text(left, 68, f"{words} threads: mean {means}; slower on {behind} of {len(ratios)}", 10))
    lines += axis.grid(TOP - 6, bottom)
    for at, row in enumerate(rows):
        lines += bars(axis, TOP + at * ROW, ratios.get(row, {}))
    return lines


def draw(records):
    panels = [(title, json.loads(Path(file).read_text())["results"]) for title, file in records]
    rows = sorted({result["row"] for _, results in panels for result in results if ratio(result) is not None},
                  key=lambda row: NAMES.get(row, row).lower())
    bottom = TOP + ROW * len(rows)
    width = max(LABELS + len(records) * (PANEL + GAP), 760)
    lines = [text(10, 22, "Speed of whole models relative to the fastest other engine of the record", 14, weight="bold")]
    lines += [text(10, TOP + at * ROW + 15, NAMES.get(row, row)) for at, row in enumerate(rows)]
    for at, (title, results) in enumerate(panels):
        lines += panel(LABELS + at * (PANEL + GAP), bottom, title, rows, results)
    lines.append(text(10, bottom + 32, "Blue: the plugin is faster. Orange: it is slower. Upper bar: one thread; lower bar: two. "
                      "Plugin: tract with with_deconv and with_conv.", 10))
    return document(width, bottom + BOTTOM, lines)


if __name__ == "__main__":
    given = [tuple(argument.split("=", 1)) for argument in sys.argv[1:]]
    OUT.write_text(draw(given or RECORDS))

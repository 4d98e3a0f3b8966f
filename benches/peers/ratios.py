"""Times and ratios of engines on a row, from the measurements of run.py, and how they are written."""

import statistics

# The plugin on the same shape in channels-first layout, measured in the same rounds as a channels-last row.
NCX = "plugin on NCX"
# The plugin without its forward convolutions, in whole models.
DECONV = "deconv"
# The plugin with operands rounded to bf16, and with the model turned to f16.
ROUNDED = ("plugin-bf16", "plugin-f16")
NAMES = {"plugin": "tract + plugin", "plugin-bf16": "plugin in bf16", "plugin-f16": "plugin, f16 model", DECONV: "tract + deconv only", "stock": "tract", "onnxruntime": "onnxruntime",
         "openvino": "OpenVINO f32", "openvino-bf16": "OpenVINO bf16", "mnn": "MNN",
         "ncnn": "ncnn", "onednn": "oneDNN"}


def median_us(engine):
    return statistics.median(engine["rounds_us"]) if engine["right"] and engine["rounds_us"] else None


def paired(slow, fast):
    """Returns median and quartiles, over the rounds, of the time of `slow` divided by that of `fast`."""
    ratios = [a / b for a, b in zip(slow["rounds_us"], fast["rounds_us"])]
    if len(ratios) < 2:
        return ratios[0], ratios[0], ratios[0]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return middle, low, high


def subject_of(results):
    """Returns the engine under test: the plugin, or stock tract in a run without the plugin."""
    return "plugin" if any("plugin" in result["engines"] for result in results) else "stock"


def rivals(result, subject):
    """Returns the other engines with right results, fastest first."""
    times = {label: median_us(engine) for label, engine in result["engines"].items() if label not in (subject, NCX, DECONV, *ROUNDED)}
    return sorted((label for label, time in times.items() if time), key=times.get)


def geometric_mean(ratios):
    return statistics.geometric_mean(ratios) if ratios else None


def figure(value, digits=2):
    return "–" if value is None else f"{value:.{digits}f}"


def microseconds(time):
    return f"{time:.1f}" if time < 100 else f"{time:,.0f}".replace(",", " ")

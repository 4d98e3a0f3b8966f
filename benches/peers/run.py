"""Benchmarks the plugin against stock tract and other engines, all held to f32, on the same files.

Every engine runs in a process of its own. For each row and thread count, all of them load the model and compute one
result. The results are compared with the float64 result, and an engine with a wrong result does not count. Then the
engines are timed in alternating rounds. While one runs, the others are stopped. See README.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import machine
import make_models
import random_rows
import ratios
import report
import workloads
from worker import EngineError, Worker

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
TRACT, PEERS = ("plugin", "deconv", "stock"), ("onnxruntime", "openvino", "mnn", "ncnn", "onednn")
# Only if they are asked for, as they round operands, or a whole model to f16.
ROUNDED_PLUGIN, ROUNDING = ratios.ROUNDED, ("openvino-bf16",)
# A slower mode of an engine, which is used where the answer of the fast one is wrong.
EXACT = {"mnn": "mnn-exact"}
# Engines whose number of threads is the number of CPUs that their process finds when it starts.
THREADS_BY_CPUS = ("onednn",)

# The largest error, as a share of the largest reference value. An engine that exceeds it is wrong. MNN's fast mode trades
# errors for time, so less is allowed to it.
TOLERANCE = 1e-4
TOLERANCES = {"mnn": 1e-5, "mnn-exact": 1e-5}
# The smallest reference value for relative errors. All values of a file's sigmoid may be near zero.
LEAST_REFERENCE = 1e-2

# Settings of glibc with which a process keeps the memory that it has freed.
KEEP_PAGES = "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592:glibc.malloc.top_pad=1073741824"

# One engine's turn in a round, and the untimed runs before it, which restore its caches and clocks.
TURN_NS, WARMUP_NS = 40_000_000, 5_000_000
PEAK_MS = 20
MAX_ROUNDS = 101


class Bench:
    def __init__(self, arguments, runner, scratch):
        self.arguments, self.runner, self.scratch = arguments, runner, Path(scratch)
        self.workers, self.threads = {}, None

    def use(self, threads):
        """Sets the number of threads of the rows that follow. Every engine gets a new process for it."""
        if threads != self.threads:
            self.close()
            self.workers, self.threads = {}, threads

    def worker(self, engine, label=None):
        """Returns the engine's running process. Starts one if there is none or if the last one died."""
        label = label or engine
        worker = self.workers.get(label)
        if worker is None or not worker.alive():
            command = [sys.executable, HERE / "peer.py", engine]
            if engine in (*TRACT, *ROUNDED_PLUGIN):
                command = [self.runner, "serve", engine]
            cpus = self.arguments.cpus
            if engine in THREADS_BY_CPUS:
                cpus = sorted(cpus or os.sched_getaffinity(0))[:self.threads]
            environment = {**os.environ, "GLIBC_TUNABLES": KEEP_PAGES} if self.arguments.keep_pages else None
            self.workers[label] = worker = Worker(command, self.scratch / f"{label}.log", cpus, environment)
        return worker

    def close(self):
        for worker in self.workers.values():
            worker.close()

    def measure(self, row, threads):
        """Measures one row at one thread count, in the form that report.py reads."""
        self.use(threads)
        # On a single operator, the plugin with forward convolutions equals the plugin without them.
        engines = [engine for engine in self.arguments.engines if engine != ratios.DECONV or "op" not in row]
        contenders = {engine: Contender(self, engine, engine, row) for engine in engines}
        if "ncx_row" in row and "plugin" in contenders:
            sibling = next(other for other in workloads.load() if other["name"] == row["ncx_row"])
            contenders[ratios.NCX] = Contender(self, ratios.NCX, "plugin", sibling)
        for contender in contenders.values():
            contender.guard(contender.prepare, threads)
            if contender.wrong and contender.engine in EXACT:
                contender.use_exact_mode()
                contender.guard(contender.prepare, threads)
        contenders = {label: contender for label, contender in contenders.items() if not absent(contender.failure)}
        live = [contender for contender in contenders.values() if contender.right]
        peak = self.worker("stock", "peak")
        peak.stop()
        peaks = []
        cost = sum(contender.turn_cost() for contender in live) + PEAK_MS * 1e6
        wanted = int(self.arguments.seconds * 1e9 / cost)
        for number in range(min(MAX_ROUNDS, max(self.arguments.min_rounds, wanted)) if live else 0):
            start = number % len(live)
            order = live[start:] + live[:start]
            for contender in order if number % 2 == 0 else reversed(order):
                contender.guard(contender.turn)
            peak.resume()
            peaks.append(float(peak.ask("peak", threads, PEAK_MS)[0]))
            peak.stop()
        return {
            "row": row["name"], "group": workloads.group_of(row), "threads": threads,
            "grouped": row.get("group", 1) > 1, "useful_flops": row["useful_flops"],
            "peak_flops": max(peaks, default=None),
            "engines": {label: contender.result() for label, contender in contenders.items()},
        }


class Contender:
    """One engine on one row."""

    def __init__(self, bench, label, engine, row):
        self.bench, self.label, self.engine, self.row = bench, label, engine, row
        self.failure, self.error, self.right, self.load_ms = None, None, False, None
        self.notes, self.error_of_fast_mode = None, None
        self.estimate_ns, self.rounds = None, []

    @property
    def wrong(self):
        return not self.failure and not self.right

    def use_exact_mode(self):
        self.error_of_fast_mode, self.engine = self.error, EXACT[self.engine]
        self.label = self.engine

    def guard(self, step, *arguments):
        """Runs one step while the engine's process is awake. A failure becomes the row's result."""
        if self.failure:
            return
        worker = self.bench.worker(self.engine, self.label)
        worker.resume()
        try:
            step(worker, *arguments)
        except (EngineError, OSError, ValueError) as failure:
            self.failure, self.right = str(failure), False
        worker.stop()

    def prepare(self, worker, threads):
        folder = make_models.prepare(self.row, self.engine)
        self.load_ms = load(worker, folder, self.engine, threads) / 1e6
        expected, answer = np.load(folder / "y.npy"), self.bench.scratch / "answer.npy"
        worker.ask("output", answer)
        self.error = worst_error(np.load(answer), expected)
        tolerance = self.bench.arguments.tolerance or TOLERANCES.get(self.engine, TOLERANCE)
        self.right = self.error <= tolerance
        if self.engine == "onednn":
            self.notes = " ".join(worker.ask("notes"))
        if self.right:
            self.estimate_ns = min(map(int, worker.ask("time", 1, 3)))

    def turn(self, worker):
        warmup, runs = self.turn_runs()
        times = list(map(int, worker.ask("time", warmup, runs)))
        self.rounds.append(statistics.median(times) / 1e3)

    def turn_runs(self):
        fit = lambda budget, most: max(1, min(most, budget // self.estimate_ns))
        return fit(WARMUP_NS, 1000), fit(TURN_NS, 5000)

    def turn_cost(self):
        return sum(self.turn_runs()) * self.estimate_ns

    def result(self):
        result = {"failure": self.failure, "error": self.error, "right": self.right, "load_ms": self.load_ms,
                  "rounds_us": [round(time, 3) for time in self.rounds]}
        if self.notes:
            result["notes"] = self.notes
        if self.error_of_fast_mode is not None:
            result |= {"mode": "exact", "error_of_fast_mode": self.error_of_fast_mode}
        return result


def load(worker, folder, engine, threads):
    """Loads the engine's form of the model with its input, and returns the load time in nanoseconds.

    MNN and ncnn have forms of their own. The plugin gets oneDNN's dialect, if there is one. The others get ONNX.
    """
    form, _ = make_models.FORMS.get(engine, ("model.onnx", None))
    path, refusal = folder / form, make_models.refusal(folder, form)
    if refusal.exists():
        raise EngineError(refusal.read_text())
    if engine == "plugin" and (folder / "onednn.onnx").exists():
        path = folder / "onednn.onnx"
    feed(worker, folder)
    (nanoseconds,) = worker.ask("load", threads, path)
    return int(nanoseconds)


def feed(worker, folder):
    """Sends the row's inputs, in the order of the graph's inputs."""
    worker.ask("inputs", *sorted(folder.glob("x*.npy")))


def absent(failure):
    """Returns whether the runner was built without the engine."""
    return (failure or "").endswith("not built in")


def worst_error(answer, expected):
    if answer.size != expected.size:
        raise EngineError(f"the answer's shape is {answer.shape}, expected {expected.shape}")
    largest = max(np.abs(expected).max(), LEAST_REFERENCE)
    # Differences of unsigned integers wrap.
    error = np.abs(answer.reshape(expected.shape).astype(np.float64) - expected).max() / largest
    return float(error) if np.isfinite(error) else float("inf")


def measure_fresh(arguments, runner, scratch, row, threads):
    """Measures fresh processes of each engine in turns: the time to load and run once, and the peak memory."""
    results = {}
    for _ in range(arguments.min_rounds):
        for engine in arguments.engines:
            if results.get(engine, {}).get("failure"):
                continue
            bench = Bench(arguments, runner, scratch)
            bench.use(threads)
            try:
                folder = make_models.prepare(row, engine)
                worker = bench.worker(engine)
                feed(worker, folder)
                worker.reset_peak_memory()
                before = worker.memory("VmRSS")
                load_ns = load(worker, folder, engine, threads)
                (first_ns,) = map(int, worker.ask("time", 0, 1))
                worker.ask("time", 0, 2)
                peak = worker.memory("VmHWM")
                result = results.setdefault(engine, {"failure": None, "cold_ms": [], "peaks": [], "model_and_runs": []})
                result["cold_ms"].append((load_ns + first_ns) / 1e6)
                result["peaks"].append(peak)
                result["model_and_runs"].append(peak - before)
            except (EngineError, OSError) as failure:
                if not absent(str(failure)):
                    results[engine] = {"failure": str(failure)}
            finally:
                bench.close()
    return {"row": row["name"], "threads": threads, "engines": results}


def build_runner():
    command = ["cargo", "bench", "--bench", "peers_runner", "--all-features", "--no-run",
               "--message-format", "json"]
    output = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True).stdout
    for message in map(json.loads, output.splitlines()):
        if message.get("executable") and message["target"]["name"] == "peers_runner":
            return message["executable"]
    raise SystemExit("cargo built no peers_runner")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="*", metavar="GLOB", help="rows by name, comma-separated globs")
    parser.add_argument("--set", default="all", choices=("all", *report.GROUPS))
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--folders", nargs="+", metavar="FOLDER", default=[],
                        help="models with an io.npz beside them instead of rows, as in models/, or folders of such models")
    source.add_argument("--random", nargs=2, type=int, metavar=("SEED", "N"),
                        help="N rows of each direction that are drawn from benches/distribution.json")
    parser.add_argument("--threads", default="1,2", type=numbers, help="thread counts, comma-separated (1,2)")
    parser.add_argument("--seconds", default=6.0, type=float, help="timed seconds for a row at one thread count (6)")
    parser.add_argument("--min-rounds", default=7, type=int, help="rounds of a row however slow it is (7)")
    parser.add_argument("--engines", default=",".join((*TRACT, *PEERS)), type=lambda text: text.split(","))
    parser.add_argument("--cpus", default=None, type=numbers, help="pin every engine to these CPUs")
    parser.add_argument("--keep-pages", action="store_true",
                        help="let every engine's heap keep what it has freed, so that large outputs take no fresh pages")
    parser.add_argument("--fresh", action="store_true",
                        help="measure fresh processes, as many as rounds: load and first run, peak memory")
    parser.add_argument("--tolerance", type=float, metavar="ERROR",
                        help="the error that is right, relative to the largest result, for all engines (1e-4; MNN 1e-5)")
    parser.add_argument("--runner", help="a built peers_runner, instead of building it")
    parser.add_argument("--out", default=HERE / "out", type=Path, help="folder of the results (benches/peers/out)")
    arguments = parser.parse_args()
    for engine in arguments.engines:
        known = (*TRACT, *ROUNDED_PLUGIN, *PEERS, *ROUNDING)
        if engine not in known:
            parser.error(f"engine={engine}, expected one of {', '.join(known)}")
    return arguments


def all_rows(arguments):
    if arguments.random:
        seed, count = arguments.random
        make_models.forget_rows_of_other_draws(seed)
        return random_rows.rows(seed, count)
    return workloads.of_folders(arguments.folders) or workloads.load()


def numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    arguments = parse_arguments()
    rows = workloads.select(all_rows(arguments), arguments.rows, arguments.set)
    if not rows:
        raise SystemExit(f"rows={arguments.rows}, set={arguments.set}: no row matches")
    runner = arguments.runner or build_runner()
    arguments.out.mkdir(parents=True, exist_ok=True)
    busy = os.getloadavg()[0]
    if busy > 0.5:
        print(f"load average {busy:.2f} before the first row: something else is running here", file=sys.stderr)
    results = {"format": 1, "machine": machine.describe(), "load_average_before": busy,
               "seconds": arguments.seconds, "pinned_to": arguments.cpus, "random": arguments.random,
               "keep_pages": arguments.keep_pages, "results": []}
    stolen = machine.stolen_ms()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(arguments, runner, scratch)
        try:
            for threads in arguments.threads:
                for row in rows:
                    if arguments.fresh:
                        result = measure_fresh(arguments, runner, scratch, row, threads)
                    else:
                        result = bench.measure(row, threads)
                    results["results"].append(result)
                    results["stolen_ms"] = machine.stolen_ms() - stolen
                    print(report.one_line(result), flush=True)
                    name = "fresh.json" if arguments.fresh else "results.json"
                    (arguments.out / name).write_text(json.dumps(results, indent=1))
        finally:
            bench.close()
    if arguments.fresh:
        (arguments.out / "fresh.md").write_text(report.fresh_tables(results))
    elif not report.write(results, arguments.out):
        sys.exit("the engine under test was wrong or failed on a row")


if __name__ == "__main__":
    main()

"""Times the plugin of two builds against each other, on the rows and models of run.py.

    compare.py BEFORE AFTER [--rows GLOB] [--set NAME] [--folders FOLDER ...] [--threads 1,2]

BEFORE and AFTER are two builds of the program `peers_runner`. The command `cargo bench --bench peers_runner
--all-features --no-run` prints the path of one. Each runs in a process of its own. The two take turns, and one is
stopped while the other runs. Both must give the row's result before they are timed.

For each row the script prints both medians, the median ratio of paired rounds (below 1: AFTER is faster), the minor
page faults per run, and the memory that a fresh process holds after the runs.
"""

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np

import make_models
import run
import workloads
from worker import EngineError, Worker


def processor():
    """Returns the CPU's name, family and model as the kernel reports them."""
    fields = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    return " ".join(f"{name}={fields[name]}" for name in ("model name", "cpu family", "model") if name in fields)


class Side:
    """One build on one row."""

    def __init__(self, runner, engine, row, threads, scratch, cpus):
        self.folder = make_models.prepare(row)
        self.worker = Worker([runner, "serve", engine], Path(scratch) / "log", cpus)
        self.load_ms = run.load(self.worker, self.folder, engine, threads) / 1e6
        answer = Path(scratch) / "answer.npy"
        self.worker.ask("output", answer)
        self.error = run.worst_error(np.load(answer), np.load(self.folder / "y.npy"))
        self.estimate_ns = min(map(int, self.worker.ask("time", 1, 3)))
        self.rounds, self.faults, self.runs = [], 0, 0
        self.worker.stop()

    def minor_faults(self):
        fields = Path(f"/proc/{self.worker.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[7])

    def turn(self, turn_ns):
        fit = lambda budget, most: max(1, min(most, int(budget // self.estimate_ns)))
        warmup, runs = fit(turn_ns / 8, 1000), fit(turn_ns, 5000)
        self.worker.resume()
        self.worker.ask("time", 0, warmup)
        before = self.minor_faults()
        self.rounds.append(statistics.median(map(int, self.worker.ask("time", 0, runs))) / 1e3)
        self.faults, self.runs = self.faults + self.minor_faults() - before, self.runs + runs
        self.worker.stop()

    def resident(self):
        """Returns the anonymous memory that the process holds between runs, in MiB."""
        return self.worker.memory("RssAnon") / 2**20


def measure(row, threads, arguments):
    with tempfile.TemporaryDirectory() as scratch:
        sides = {}
        try:
            for label, runner in (("before", arguments.before), ("after", arguments.after)):
                sides[label] = Side(runner, arguments.engine, row, threads, scratch, arguments.cpus)
            for number in range(arguments.rounds):
                order = list(sides.values())
                for side in order if number % 2 == 0 else reversed(order):
                    side.turn(arguments.turn_ms * 1e6)
            before, after = sides["before"], sides["after"]
            ratios = [b / a for a, b in zip(before.rounds, after.rounds)]
            result = {"row": row["name"], "threads": threads, "ratio": statistics.median(ratios),
                      "quartiles": statistics.quantiles(ratios, n=4, method="inclusive")}
            for label, side in sides.items():
                result[label] = {"us": statistics.median(side.rounds), "error": side.error, "load_ms": side.load_ms,
                                 "faults_per_run": side.faults / side.runs, "held_mib": side.resident(),
                                 "peak_mib": side.worker.memory("VmHWM") / 2**20}
            return result
        finally:
            for side in sides.values():
                side.worker.close()


def line(result):
    if "failure" in result:
        return f"{result['row']:<40} {result['threads']} {result['failure']}"
    before, after = result["before"], result["after"]
    low, _, high = result["quartiles"]
    wrong = " WRONG" if max(before["error"], after["error"]) > run.TOLERANCE else ""
    return (f"{result['row']:<40} {result['threads']} {before['us']:>11.1f} {after['us']:>11.1f} us  {result['ratio']:.3f} "
            f"({low:.3f}..{high:.3f})  faults {before['faults_per_run']:.0f} {after['faults_per_run']:.0f}  "
            f"held {before['held_mib']:.1f} {after['held_mib']:.1f}  peak {before['peak_mib']:.1f} {after['peak_mib']:.1f} MiB{wrong}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--engine", default="plugin", choices=("plugin", "deconv", "stock"))
    parser.add_argument("--rows", default="*")
    parser.add_argument("--set", default="all")
    parser.add_argument("--folders", nargs="+", default=[])
    parser.add_argument("--threads", default="1,2", type=run.numbers)
    parser.add_argument("--rounds", default=9, type=int)
    parser.add_argument("--turn-ms", default=40, type=float)
    parser.add_argument("--cpus", default=None, type=run.numbers)
    parser.add_argument("--out", type=Path, help="a file for the results as JSON")
    arguments = parser.parse_args()
    rows = workloads.of_folders(arguments.folders) or workloads.select(workloads.load(), arguments.rows, arguments.set)
    print(processor(), "load", os.getloadavg()[0])
    print(f"{'row':<40} threads, median before and after, after/before (quartiles), page faults a run, memory held, peak")
    results = []
    for threads in arguments.threads:
        for row in rows:
            try:
                result = measure(row, threads, arguments)
            except (EngineError, OSError, ValueError) as failure:
                result = {"row": row["name"], "threads": threads, "failure": str(failure)}
            results.append(result)
            print(line(result), flush=True)
            if arguments.out:
                arguments.out.write_text(json.dumps({"machine": processor(), "results": results}, indent=1))
        ratios = [result["ratio"] for result in results if result["threads"] == threads and "ratio" in result]
        if ratios:
            print(f"threads={threads}: geometric mean {statistics.geometric_mean(ratios):.3f}, "
                  f"best {min(ratios):.3f}, worst {max(ratios):.3f}, of {len(ratios)}")


if __name__ == "__main__":
    main()

"""The driver's handle of one engine's process (runner.rs or peer.py)."""

import ctypes
import os
import select
import signal
import subprocess
from pathlib import Path

# If an answer takes longer, the engine hangs.
ANSWER_LIMIT_S = 900
PR_SET_PDEATHSIG = 1


class EngineError(Exception):
    """The engine refused the command, or its process ended."""


class Worker:
    def __init__(self, command, log, cpus=None, environment=None):
        def prepare():
            # Otherwise a stopped process would outlive a killed driver.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if cpus:
                os.sched_setaffinity(0, cpus)

        self.log = Path(log)
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                            text=True, preexec_fn=prepare, env=environment)

    def ask(self, *words):
        """Sends a command and returns the words of its answer."""
        try:
            print(*words, file=self.process.stdin, flush=True)
            ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_LIMIT_S)
            answer = self.process.stdout.readline() if ready else ""
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise EngineError(self.end())
        status, *rest = answer.split()
        if status != "ok":
            raise EngineError(" ".join(rest))
        return rest

    def end(self):
        """Ends the process and returns how it ended."""
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return f"no answer in {ANSWER_LIMIT_S} s"
        code = self.process.returncode
        if code < 0:
            return f"crashed ({signal.Signals(-code).name})"
        last_words = self.log.read_text(errors="replace").strip().splitlines()
        return last_words[-1] if last_words else f"ended with status {code}"

    def alive(self):
        return self.process.poll() is None

    def stop(self):
        """Freezes every thread of the engine, so that a spinning pool takes no time from another engine's turn."""
        if self.alive():
            self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        if self.alive():
            self.process.send_signal(signal.SIGCONT)

    def close(self):
        self.process.kill()
        self.process.wait()

    def memory(self, field):
        """Returns VmRSS (now) or VmHWM (peak) in bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
        raise EngineError(f"no {field}")

    def reset_peak_memory(self):
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

#!/usr/bin/env python3
"""Mutation tests with all mutants in one build, chosen by the environment variable MUTANT.

    python3 tools/mutants.py build src/fuse.rs src/spec.rs -- --lib --test integration --test refusals
    python3 tools/mutants.py run src/fuse.rs -- integration/fusion::
    python3 tools/mutants.py run src/spec.rs -- lib/frontend:: refusals

`build` writes the mutants of `cargo mutants --list` into the sources, drops those that do not compile, builds the named
test targets and restores the sources. It adds mutants that cargo-mutants does not know: a function that returns a
TractResult returns its type's default. `run` runs the mutants of files that no earlier run caught, against one test
target after another until one fails. `lib/WORD` is the unit tests whose names contain the word. A run has ten times
the processor time of the unchanged tests, and 2 s. The results are in mutants.json of the target directory.

It needs cargo-mutants, and from PyPI tree-sitter and tree-sitter-rust. Commit first: `build` changes the working tree.
"""

import collections
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
STATE = TARGET / "mutants.json"
FACE = "src/lib.rs"
SWITCH = """
#[doc(hidden)]
#[allow(missing_docs)]
pub fn mutant(number: usize) -> bool {
    static CHOSEN: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| std::env::var("MUTANT").map_or(0, |text| text.parse().unwrap())) == number
}
"""
# The syntax node that a mutant of each genre changes.
CHANGED = {
    "FnValue": ["block"],
    "StructField": ["struct_expression"],
    "MatchArm": ["match_arm"],
    "MatchArmGuard": ["match_pattern"],
    "UnaryOperator": ["unary_expression"],
    "BinaryOperator": ["binary_expression", "compound_assignment_expr", "let_chain"],
}


class Source:
    """A file's text with the mutants that are to be written into it."""

    def __init__(self, text, mutants):
        import tree_sitter
        import tree_sitter_rust

        self.text = text
        self.root = tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language())).parse(text).root_node
        self.lines = [0] + [match.end() for match in re.finditer(b"\n", text)]
        # Numbers of mutants and their texts, by the range of the syntax node that changes.
        self.changes = collections.defaultdict(list)
        for mutant in mutants:
            if not mutant["outcome"]:
                self.place(mutant)

    def offset(self, at):
        line = self.lines[at["line"] - 1]
        return line + len(self.text[line:].split(b"\n", 1)[0].decode()[: at["column"] - 1].encode())

    def place(self, mutant):
        start, end = self.offset(mutant["span"]["start"]), self.offset(mutant["span"]["end"])
        node = self.root.named_descendant_for_byte_range(start, end)
        is_body = lambda node: node.type != "block" or node.parent.type == "function_item"
        while node.type not in CHANGED[mutant["genre"]] or not is_body(node):
            node = node.parent
        if node.type == "let_chain":
            mutant["outcome"] = "no build"
            return
        changed = self.text[node.start_byte : start] + mutant["replacement"].encode() + self.text[end : node.end_byte]
        if node.type == "match_pattern":
            node, changed = node.child_by_field_name("condition"), mutant["replacement"].encode()
        self.changes[node.byte_range, node.type == "block"].append((mutant["number"], changed))

    def written(self, node):
        """Returns a node's text, with an alternative for each mutant in it, between comments."""
        parts, at = [], node.start_byte
        for child in node.children:
            parts += [self.text[at : child.start_byte], self.written(child)]
            at = child.end_byte
        text = b"".join(parts) + self.text[at : node.end_byte]
        changes = self.changes.get((node.byte_range, node.type == "block"), []) if node.is_named else []
        marked = [(number, b"/*<%d*/%s/*>*/" % (number, changed)) for number, changed in changes]
        if node.type == "match_arm" and marked:
            pattern = node.child_by_field_name("pattern")
            guard = pattern.child_by_field_name("condition")
            head = self.text[pattern.start_byte : guard.start_byte] if guard else pattern.text + b" if "
            condition = b" && (%s)" % self.written(guard) if guard else b""
            return head + b"!crate::mutant(%d)" % marked[0][0] + condition + text[len(self.written(pattern)) :]
        if node.type == "block":
            return b"{ %s" % b"".join(b"if crate::mutant(%d) { return %s; } " % pair for pair in marked) + text[1:]
        alternatives = b"".join(b"if crate::mutant(%d) { %s } else " % pair for pair in marked)
        return b"(%s{ %s })" % (alternatives, text) if marked else text


def listed(files):
    """Returns the mutants of cargo-mutants, and those of functions that return a TractResult."""
    command = ["cargo", "mutants", "--list", "--json"] + [word for file in files for word in ("-f", file)]
    mutants = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    for file in files:
        source = Source((ROOT / file).read_bytes(), [])
        nodes = [source.root]
        for node in nodes:
            if re.search(rb"#\[(cfg\(test\)|test)\]\s*$", source.text[: node.start_byte]):
                continue
            nodes += node.children
            kind, body = node.child_by_field_name("return_type"), node.child_by_field_name("body")
            is_function = node.type == "function_item" and body and body.named_children
            if is_function and kind and re.match(rb"(TractResult<|InferenceResult)", kind.text):
                ends = {"start": body.children[1].start_point, "end": body.children[-2].end_point}
                span = {name: {"line": end.row + 1, "column": end.column + 1} for name, end in ends.items()}
                function = node.child_by_field_name("name").text.decode()
                value = "Ok(Default::default())"
                name = f"{file}:{node.start_point.row + 1}: replace {function} with {value}"
                mutants.append(dict(genre="FnValue", file=file, span=span, name=name, replacement=value))
    keys = ("file", "genre", "name", "span", "replacement")
    return [{key: mutant[key] for key in keys} | {"number": n, "outcome": ""} for n, mutant in enumerate(mutants, 1)]


def cargo(arguments):
    """Runs cargo and returns its exit code and messages."""
    command = ["cargo", *arguments, "--all-features", "--message-format=json"]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return run.returncode, [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def at_fault(error, texts):
    """Returns the mutants inside whose text a compiler's message points."""
    found = set()
    for span in [span for part in [error, *error["children"]] for span in part["spans"]]:
        before = texts.get(span["file_name"], b"")[: span["byte_start"] + 1]
        marks = re.findall(rb"/\*<(\d+)\*/|/\*>\*/", before)
        found |= {int(mark) for mark in marks[-1:] if mark}
    return found


def build(files, targets):
    mutants = listed(files)
    original = {file: (ROOT / file).read_bytes() for file in {FACE, *files}}
    try:
        while True:
            texts = {FACE: original[FACE]}
            for file in files:
                source = Source(original[file], [mutant for mutant in mutants if mutant["file"] == file])
                texts[file] = source.text[: source.root.start_byte] + source.written(source.root)
            texts[FACE] += SWITCH.encode()
            for file, text in texts.items():
                (ROOT / file).write_bytes(text)
            code, lines = cargo(["check", "--lib"])
            if code == 0:
                break
            errors = [line["message"] for line in lines if line.get("message", {}).get("level") == "error"]
            fault = {number: error["message"] for error in errors for number in at_fault(error, texts)}
            if not fault:
                sys.exit("\n".join(error["rendered"] for error in errors))
            for number, why in fault.items():
                mutants[number - 1] |= {"outcome": "constant" if "in constant" in why else "no build", "why": why}
        code, lines = cargo(["test", "--no-run", *targets])
    finally:
        for file, text in original.items():
            (ROOT / file).write_bytes(text)
    built = [line for line in lines if line.get("profile", {}).get("test") and line["executable"]]
    names = ["lib" if "lib" in line["target"]["kind"] else line["target"]["name"] for line in built]
    tests = dict(zip(names, [line["executable"] for line in built]))
    STATE.write_text(json.dumps({"tests": tests, "mutants": mutants}, indent=1))
    sys.exit(code)


def outcome(executables, test, number, seconds):
    """Runs a test target. Returns what caught the mutant, if anything, and the processor time."""
    name, _, word = test.partition("/")
    chosen = {"MUTANT": str(number), "PROPTEST_MAX_SHRINK_ITERS": "0", "CARGO_MANIFEST_DIR": str(ROOT)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.Popen(
        [executables[name]] + [word] * bool(word),
        cwd=ROOT,
        env=os.environ | chosen,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5)),
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )
    failed = next((line.split()[1] for line in run.stdout if re.match(r"test .*FAILED$", line)), "")
    if failed:
        os.killpg(run.pid, signal.SIGKILL)
    run.stdout.close()
    code = run.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    late = "out of time" if code == -signal.SIGXCPU and not failed else "caught"
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (f"{late}: {test} {failed}" if code or failed else ""), spent


def run(files, tests):
    state = json.loads(STATE.read_text())
    bounds = {}
    for test in tests:
        caught, spent = outcome(state["tests"], test, 0, 3600)
        assert not caught, f"without a mutant: {caught}"
        bounds[test] = 10 * spent + 2
    for mutant in [mutant for mutant in state["mutants"] if mutant["file"] in files and not mutant["outcome"]]:
        caught = (outcome(state["tests"], test, mutant["number"], bounds[test])[0] for test in tests)
        mutant["outcome"] = next(filter(None, caught), "")
        print(f"{mutant['number']} {mutant['name']}: {mutant['outcome'] or 'survived'}", flush=True)
        STATE.write_text(json.dumps(state, indent=1))
    for file in files:
        of_file = [mutant["outcome"] for mutant in state["mutants"] if mutant["file"] == file]
        print(file, dict(collections.Counter(outcome.split(":")[0] or "survived" for outcome in of_file)))


if __name__ == "__main__":
    if len(sys.argv) < 5 or sys.argv[1] not in ("build", "run") or "--" not in sys.argv:
        sys.exit(__doc__)
    split = sys.argv.index("--")
    {"build": build, "run": run}[sys.argv[1]](sys.argv[2:split], sys.argv[split + 1 :])

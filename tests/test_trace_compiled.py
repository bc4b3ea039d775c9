"""Without TRACE, STAMP and PERSISTENT the machine code is that of a source in which none of them was ever written.

And every GPU can compile the traced variant.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernels.architecture import ARCHITECTURES
from kernels.launch import CompileOnly
from kernels.problem import AttentionProblem, Precision
from kernels.registry import default_tiles, load, version
from kernels.trace import TraceBuffers
from profiling.compile_report import read_cubin

KINDS = {
    "v1": ("v1", "query", False),
    "v1 key-outer": ("v1", "key", False),
    "v2": ("v2", "query", False),
    "v3": ("v3", "query", False),
    "v3 FP8": ("v3", "query", True),
    "v3-hopper": ("v3-hopper", "query", False),
}
OFF_FOR = (90, 80, 89)
VARIANTS = {"trace", "TRACE", "stamps", "STAMP", "PERSISTENT"}
# What only their blocks use: a name for a loop's variable and the argument that it is, and functions that store.
ONLY_FOR_VARIANTS = {"_stamp_start", "_stamp_end", "_store_tile", "_always", "_is_rescaled"}
POSSIBLE = [
    (kind, capability)
    for capability, arch in ARCHITECTURES.items()
    for kind, (name, _, fp8) in KINDS.items()
    if (arch.fp8 or not fp8) and (name != "v3-hopper" or capability == 90)
]


class WithoutVariants(ast.NodeTransformer):
    """Takes out what tracing, stamping and persistent grids added: blocks, parameters, arguments, and frames().

    Of `if PERSISTENT:` only its else is left.
    """

    def __init__(self) -> None:
        self.taken = Counter()

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt] | None:
        if not (isinstance(node.test, ast.Name) and node.test.id in VARIANTS):
            return self.generic_visit(node)
        assert bool(node.orelse) == (node.test.id == "PERSISTENT")
        self.taken[node.test.id] += 1
        return [self.visit(statement) for statement in node.orelse] or None

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        if node.name == "frames" or node.name in ONLY_FOR_VARIANTS:
            return None
        self._drop_parameters(node.args)
        return self.generic_visit(node)

    @staticmethod
    def _drop_parameters(parameters: ast.arguments) -> None:
        places = [place for place, argument in enumerate(parameters.args) if argument.arg in VARIANTS]
        without_default = len(parameters.args) - len(parameters.defaults)
        for place in reversed(places):
            del parameters.args[place]
            if place >= without_default:
                del parameters.defaults[place - without_default]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [argument for argument in node.args if not self._is_variant(argument)]
        node.keywords = [
            keyword for keyword in node.keywords if keyword.arg not in VARIANTS and not self._is_variant(keyword.value)
        ]
        return self.generic_visit(node)

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        node.elts = [element for element in node.elts if not self._is_variant(element)]
        return self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        kept = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if not self._is_variant(value)]
        node.keys, node.values = [key for key, _ in kept], [value for _, value in kept]
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        return None if self._is_variant(node.value) else self.generic_visit(node)

    @staticmethod
    def _is_variant(node: ast.expr) -> bool:
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Name) and node.func.id == "watched"
        return isinstance(node, ast.Name) and node.id in VARIANTS | {"of_program"}


@pytest.fixture(scope="module")
def stripped(tmp_path_factory) -> dict[str, ModuleType]:
    """The versions' modules as if their variants had never been written."""
    folder = tmp_path_factory.mktemp("stripped")
    found = {}
    for name in ("v1", "v2", "v3", "v3-hopper"):
        transformer = WithoutVariants()
        source = Path(load(name).__file__).read_text()
        tree = ast.fix_missing_locations(transformer.visit(ast.parse(source)))
        assert transformer.taken["TRACE"] >= 2
        assert transformer.taken["STAMP"] >= 2
        assert transformer.taken["PERSISTENT"] == (name in ("v2", "v3"))
        text = re.sub(r"from kernels.(trace|stamps|hopper_watch) import .*\n", "", ast.unparse(tree))
        left = re.search(r"trace|stamp|watched|persistent", re.sub(r'""".*?"""', "", text, flags=re.S), re.IGNORECASE)
        assert not left, f"{left} left in {name}"
        path = folder / f"stripped_{name.replace('-', '_')}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        found[name] = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = found[name]  # Triton reads a kernel's source through its module
        spec.loader.exec_module(found[name])
    return found


def compiled(
    kind: str, capability: int, module: ModuleType | None = None, traced: bool = False, tiles: dict | None = None, **fields
):
    """What Triton compiles of a version's attention, by default of the version as it stands, in its own tiles and order."""
    name, order, fp8 = KINDS[kind]
    problem = AttentionProblem(**{"seq_len_q": 1000, "seq_len_kv": 1000, "head_dim": 64, "causal": True, **fields})
    precision, kernel, entry = Precision(fp8=fp8), module or load(name), version(name)
    own = default_tiles(name, problem, precision, ARCHITECTURES[capability], order)
    tiles = own.model_copy(update=tiles or {})
    launch = CompileOnly(capability)
    q, k, v = (
        torch.empty((1, heads, 1000, problem.head_dim), dtype=torch.bfloat16, device="meta")
        for heads in (problem.num_heads, problem.num_kv_heads, problem.num_kv_heads)
    )
    trace = {}
    if traced:
        buffers = TraceBuffers.on(
            "meta", problem, tiles, batch_index=0, head=0, query_block=0, stored=4, with_maxima=entry.lag_log2 > 0
        )
        trace = {"trace": buffers}
    kernel.forward(kernel.prepare(q, k, v, precision, launch), problem, tiles, launch, **trace)
    return list(launch.compiled.values())[-1]


def instructions(kernel) -> str:
    """The PTX without what only names source lines."""
    lines = []
    for line in kernel.asm["ptx"].splitlines():
        if re.match(r"\s*\.section\s+\.debug", line):
            break
        line = re.sub(r"\s*//.*", "", line)
        if line.strip() and not re.match(r"\s*\.(loc|file)\b", line) and not re.match(r"\$L__(tmp|func_)\w*:$", line):
            lines.append(line)
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("kind", "capability"),
    [
        pytest.param(*pair, marks=() if pair[1] == 90 or pair == ("v2", 80) else pytest.mark.long)
        for pair in POSSIBLE
        if pair[1] in OFF_FOR
    ],
)
def test_off_is_the_same_machine_code(stripped, kind, capability):
    as_it_stands = instructions(compiled(kind, capability))
    assert as_it_stands.count("\n") > 200
    assert as_it_stands == instructions(compiled(kind, capability, stripped[KINDS[kind][0]]))


@pytest.mark.long
@pytest.mark.parametrize("fields", [{"causal": False}, {"head_dim": 128}, {"head_dim": 80, "num_kv_heads": 4}])
@pytest.mark.parametrize("capability", OFF_FOR)
@pytest.mark.parametrize("kind", KINDS)
def test_off_is_the_same_machine_code_everywhere(stripped, kind, capability, fields):
    if (kind, capability) not in POSSIBLE:
        pytest.skip("this GPU has no such units")
    assert instructions(compiled(kind, capability, **fields)) == instructions(
        compiled(kind, capability, stripped[KINDS[kind][0]], **fields)
    )


def test_what_tracing_adds_would_be_seen(stripped):
    assert instructions(compiled("v2", 90, traced=True)) != instructions(compiled("v2", 90, stripped["v2"]))


def test_what_a_persistent_grid_adds_would_be_seen(stripped):
    persistent = instructions(compiled("v2", 90, tiles={"num_programs": 132}))
    assert "%nctaid.x" in persistent
    assert "%nctaid.x" not in instructions(compiled("v2", 90, stripped["v2"]))


def assert_traced_compiles(kind: str, capability: int, head_dim: int, **tiles) -> None:
    # As profiling.tile_trace.launch_traced does: where the version's own stages do not fit, fewer are tried.
    for fewer in ({}, {"num_stages": 2}, {"num_stages": 1}):
        kernel = compiled(kind, capability, traced=True, head_dim=head_dim, tiles={**tiles, **fewer})
        if kernel.metadata.shared <= ARCHITECTURES[capability].shared_memory_per_block_bytes:
            break
    registers, _, counts = read_cubin(kernel.asm["cubin"])
    assert counts["matrix products"] > 0
    assert registers <= 255
    assert kernel.metadata.shared <= ARCHITECTURES[capability].shared_memory_per_block_bytes
    assert "atom" in kernel.asm["ptx"] or "red." in kernel.asm["ptx"]


# sm_100 is where a trace is hardest to compile: its accumulators live in a memory of their own.
@pytest.mark.parametrize(("kind", "capability"), [("v2", 90), ("v1", 100), ("v2", 100), ("v3-hopper", 90)])
def test_traced_variant_compiles(kind, capability):
    assert_traced_compiles(kind, capability, 64)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "capability"), [pair for pair in POSSIBLE if pair[0].startswith(("v2", "v3")) and pair[0] != "v3-hopper"]
)
def test_traced_variant_compiles_in_a_persistent_grid(kind, capability):
    assert_traced_compiles(kind, capability, 64, num_programs=132, block_order="zigzag")


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 256])
@pytest.mark.parametrize(("kind", "capability"), POSSIBLE)
def test_traced_variant_compiles_everywhere(kind, capability, head_dim):
    if KINDS[kind][2] and head_dim == 16:
        pytest.skip("refused, as tested elsewhere")
    assert_traced_compiles(kind, capability, head_dim)

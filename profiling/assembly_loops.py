"""SASS as blocks and loops, and what its instructions are for, counted. Pure.

Instructions are counted as they stand in the text: one of a loop is issued once a trip by each warp that goes round.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from profiling.assembly_text import Place, Row


@dataclass(frozen=True)
class Class:
    """A kind of instruction: its name, which opcodes it has, and what it means in one sentence."""

    name: str
    opcodes: str
    meaning: str


CLASSES = (
    Class("wgmma", r"[HIQB]GMMA", "Matrix products that a warpgroup of 128 threads issues together and that run beside it."),
    Class("mma", r"[HIQOD]MMA", "Matrix products that one warp issues, with operands in registers."),
    Class("tcgen05.mma", r"UTC\w*MMA", "Matrix products that one thread issues, with the result in tensor memory."),
    Class("waits for wgmma", r"WARPGROUP\.DEPBAR", "The warpgroup waits until earlier products are done: one after each "
          "product means that they are serialised, and nothing runs under them."),
    Class("wgmma begins", r"WARPGROUP", "The warpgroup's registers are ready for products to read."),
    Class("tensor memory", r"(LDTM|STTM|UTCCP)", "Moves between registers and tensor memory."),
    Class("TMA loads", r"UTMALDG|UBLKCP", "One thread asks the copy engine for a whole tile."),
    Class("TMA stores", r"UTMASTG|UTMAREDG|UTMACMDFLUSH", "One thread hands a whole tile to the copy engine."),
    Class("cp.async", r"LDGSTS", "Each thread copies 4 to 16 bytes to shared memory, past its registers."),
    Class("waits for copies", r"LDGDEPBAR|DEPBAR", "The warp waits for its own asynchronous copies."),
    Class("global loads", r"LDG", "Loads into registers: the warp waits for memory when it needs them."),
    Class("global stores", r"STG|RED|ATOMG?", "Stores to memory."),
    Class("ldmatrix", r"LDSM", "Operands of mma from shared memory, four 8 × 8 tiles at once."),
    Class("shared loads", r"LDS|ATOMS", "Loads from shared memory by each thread for itself."),
    Class("shared stores", r"STS|STSM", "Stores to shared memory: in a loop over tiles, operands that change their layout."),
    Class("spills", r"LDL|STL", "Registers that did not fit, kept in local memory: each is a trip through the L1 cache."),
    Class("exp2", r"MUFU\.EX2", "Powers of two by the special-function unit, 16 a clock and SM: the "
          "softmax's bottleneck."),
    Class("other special functions", r"MUFU", "Reciprocals, logarithms and the like, by the special-function unit."),
    Class("shuffles", r"SHFL", "Numbers that pass between lanes of a warp: row maxima and sums."),
    Class("F2FP", r"F2FP", "Two fp32 numbers rounded to bf16, fp16 or FP8: P, or a backward’s dS, before a product."),
    Class("other conversions", r"I2F\w*|F2I\w*|F2F|I2I\w*", "Between number formats."),
    Class("PRMT", r"PRMT", "Bytes rearranged: usually packing 8- or 16-bit operands into registers."),
    Class("fp32 arithmetic", r"FFMA2?|FMUL2?|FADD2?|FMNMX3?|HFMA2\w*|HMUL2\w*|HADD2\w*|FCHK|FSWZADD",
          "Multiply-adds, maxima and sums of scores, and the rescaling of O; in a backward dS of P and dP."),
    Class("selects and compares", r"FSEL|SEL|FSETP|FSET|ISETP|PLOP3|P2R|R2P|PSETP|HSETP2\w*|FCMP",
          "Masks: what is outside or above the diagonal is set aside."),
    Class("barriers", r"BAR|B2R", "Warps of a program wait for each other."),
    Class("mbarriers", r"SYNCS|UTCBAR|UTCATOMSWS|ELECT", "Arrivals and waits at barriers in shared memory, as TMA has them."),
    Class("fences", r"MEMBAR|FENCE|ERRBAR|CCTL\w*", "Writes are made visible to others before going on."),
    Class("register hand-over", r"USETMAXREG", "A warpgroup takes registers from the pool or gives them back."),
    Class("moves", r"MOV|IMAD\.MOV|CS2R|S2R|S2UR|R2UR|UMOV|U?LDCU?|UR2\w+|MOVM", "Registers copied or filled, constants read."),
    Class("uniform integer", r"U[A-Z0-9]+|R2UR|VOTEU", "Addresses and counters that are the same for the whole warp, on a path "
          "of their own."),
    Class("integer", r"IMAD|IADD3?|IABS|LEA|LOP3|LOP|SHF|SHL|SHR|VIADD\w*|VIMNMX\w*|IMNMX|SGXT|BMSK|POPC|FLO|VOTE|REDUX|IDP",
          "Addresses, counters and mask positions, by each thread."),
    Class("control", r"BRA|BRX|JMP|CALL|RET|EXIT|BSSY|BSYNC|BREAK|WARPSYNC|NOP|YIELD|NANOSLEEP|BPT|BMOV|ACQBULK|PREEXIT|RPCMOV",
          "Branches, and where diverged threads meet again."),
)  # fmt: skip
OTHER = Class("other", "", "What is in none of the classes above.")
_PATTERNS = tuple((one.name, re.compile(rf"(?:{one.opcodes})(?:\.|$)")) for one in CLASSES)
PRODUCTS = ("wgmma", "mma", "tcgen05.mma")
_LOADS = frozenset({"TMA loads", "cp.async"})
_COPIES = _LOADS | {"TMA stores", "global loads", "global stores", "exp2"}

_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*)")
_TARGETS = re.compile(r"\.L_\w+")


@dataclass(frozen=True)
class Instruction:
    """One instruction: the row it stands in, its address, predicate ('' for none), opcode with modifiers, operands, class."""

    row: int
    address: int
    predicate: str
    opcode: str
    operands: str
    kind: str
    targets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loop:
    """A loop that does the work: its instructions in the text's order, where it begins, and the source's for or while."""

    instructions: tuple[Instruction, ...]
    begins: int
    statement: Place | None = None
    words: str = ""

    @property
    def name(self) -> str:
        """'flash_v2.py:81 for first_key in …', or only its address where no source line can be told."""
        at = f"0x{self.begins:x}"
        if self.statement is None:
            return f"loop at {at}"
        return f"{self.statement.file.rpartition('/')[2]}:{self.statement.line} {self.words}"


@dataclass(frozen=True)
class Code:
    """The SASS of one kernel: all instructions, and the innermost loops that do the work, by address."""

    instructions: tuple[Instruction, ...]
    loops: tuple[Loop, ...]


@lru_cache(maxsize=4096)
def kind_of(opcode: str) -> str:
    """The class of an opcode with its modifiers: the first of CLASSES that has it."""
    return next((name for name, pattern in _PATTERNS if pattern.match(opcode)), OTHER.name)


def counts(instructions: Sequence[Instruction]) -> dict[str, int]:
    """How many of each class there are, in CLASSES' order; they add up to all."""
    found = Counter(one.kind for one in instructions)
    return {one.name: found[one.name] for one in (*CLASSES, OTHER) if found[one.name]}


def meanings() -> dict[str, str]:
    """What each class means, by its name."""
    return {one.name: one.meaning for one in (*CLASSES, OTHER)}


def code_of(rows: Sequence[Row], sources: dict[str, str]) -> Code:
    """The instructions of rows_of('sass', …), and their innermost loops: those that hold matrix products, or copies or exp2
    where a loop has no products, and no other such loop in them. A loop that only waits does no work.
    """
    instructions, labels = _read(rows)
    loops = _loops(instructions, labels)
    return Code(instructions, tuple(_named(one, rows, sources) for one in _innermost(loops, instructions)))


def _read(rows: Sequence[Row]) -> tuple[tuple[Instruction, ...], dict[str, int]]:
    """The instructions, and of each label the place among them that it stands before."""
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    for place, row in enumerate(rows):
        matched = _INSTRUCTION.match(row.text)
        if matched:
            address, predicate, opcode, operands = matched.groups()
            targets = _TARGETS.findall(operands) if opcode.startswith(("BRA", "BRX")) else ()
            found.append(
                Instruction(place, int(address, 16), predicate or "", opcode, operands.strip(), kind_of(opcode), tuple(targets))
            )
        elif row.text.endswith(":") and not row.text[:1].isspace():
            labels[row.text[:-1]] = len(found)
    return tuple(found), labels


def _successors(code: Sequence[Instruction], labels: dict[str, int]) -> dict[int, tuple[int, ...]]:
    """Of each block, by its first instruction, the blocks that follow it."""
    jumps = {
        place: one for place, one in enumerate(code) if one.opcode.partition(".")[0] in ("BRA", "BRX", "EXIT", "RET", "JMP")
    }
    firsts = {0, *(place + 1 for place in jumps), *labels.values()} - {len(code)}
    order = sorted(firsts)
    after = dict(zip(order, (*order[1:], len(code)), strict=True))
    found = {}
    for first, end in after.items():
        last = jumps.get(end - 1)
        goes_on = last is None or bool(last.predicate) or (last.opcode.startswith("BRA") and "," in last.operands)
        reached = [labels[name] for name in (last.targets if last else ()) if name in labels]
        found[first] = tuple(one for one in (*reached, *([end] if goes_on else [])) if one < len(code))
    return found


def _loops(code: Sequence[Instruction], labels: dict[str, int]) -> dict[int, frozenset[int]]:
    """Natural loops: of each first instruction of a loop, the places of all its instructions."""
    if not code:
        return {}
    follow = _successors(code, labels)
    order = _in_order(follow)
    before: dict[int, list[int]] = {one: [] for one in order}
    for one in order:
        for then in follow[one]:
            before[then].append(one)
    above = _dominators(order, before)
    ends = dict(zip(sorted(follow), (*sorted(follow)[1:], len(code)), strict=True))
    bodies: dict[int, set[int]] = {}
    for one in order:
        for head in follow[one]:
            if above[one] >> order.index(head) & 1:
                bodies.setdefault(head, {head}).update(_body(head, one, before))
    return {
        head: frozenset(place for block in blocks for place in range(block, ends[block])) for head, blocks in bodies.items()
    }


def _in_order(follow: dict[int, tuple[int, ...]]) -> list[int]:
    """The blocks that can be reached, in reverse postorder."""
    seen, done, waiting = {0}, [], [(0, iter(follow[0]))]
    while waiting:
        one, rest = waiting[-1]
        then = next(rest, None)
        if then is None:
            done.append(one)
            waiting.pop()
        elif then not in seen:
            seen.add(then)
            waiting.append((then, iter(follow[then])))
    return done[::-1]


def _dominators(order: list[int], before: dict[int, list[int]]) -> dict[int, int]:
    """Of each block, the blocks that every way to it goes through, as bits by their place in the order."""
    places = {one: place for place, one in enumerate(order)}
    every = (1 << len(order)) - 1
    found = dict.fromkeys(order, every) | {order[0]: 1}
    changing = True
    while changing:
        changing = False
        for one in order[1:]:
            common = every
            for earlier in before[one]:
                common &= found[earlier]
            common |= 1 << places[one]
            changing = changing or common != found[one]
            found[one] = common
    return found


def _body(head: int, end: int, before: dict[int, list[int]]) -> set[int]:
    """The blocks from which a loop's end is reached without passing its head."""
    found, waiting = {end}, [end]
    while waiting:
        one = waiting.pop()
        for earlier in before[one] if one != head else ():
            if earlier not in found:
                found.add(earlier)
                waiting.append(earlier)
    return found


def _innermost(loops: dict[int, frozenset[int]], code: Sequence[Instruction]) -> list[Loop]:
    """Of the loops that hold products those with no other such in them; of the others those that load for them, likewise.

    In a kernel without products in loops, those that load, store or take powers.
    """
    products = _without_inner({head: body for head, body in loops.items() if _holds(body, code, frozenset(PRODUCTS))})
    apart = {
        head: body for head, body in loops.items() if not any(body & other for other in products.values())
    }  # what surrounds a loop with products meets it
    others = _without_inner({head: body for head, body in apart.items() if _holds(body, code, _LOADS if products else _COPIES)})
    found = sorted((products | others).items())
    return [Loop(tuple(code[place] for place in sorted(body)), code[head].address) for head, body in found]


def _holds(body: frozenset[int], code: Sequence[Instruction], kinds: frozenset[str]) -> bool:
    return any(code[place].kind in kinds for place in body)


def _without_inner(loops: dict[int, frozenset[int]]) -> dict[int, frozenset[int]]:
    return {head: body for head, body in loops.items() if not any(other < body for other in loops.values())}


def _named(loop: Loop, rows: Sequence[Row], sources: dict[str, str]) -> Loop:
    """The loop with the source's for or while: of those its instructions are in, by most of them, the innermost there is."""
    votes: Counter[Place] = Counter()
    depths: dict[Place, int] = {}
    statements = {file: _statements(text) for file, text in sources.items()}
    for one in loop.instructions:
        chain = rows[one.row].chain
        for called, place in enumerate(chain):
            inside = [first for first, last in statements.get(place.file, ()) if first <= place.line <= last]
            if inside:
                statement = Place(place.file, max(inside))
                votes[statement] += 1
                depths[statement] = max(depths.get(statement, 0), len(chain) - called)
                break
    if not votes:
        return loop
    statement = max(votes, key=lambda one: (depths[one], votes[one]))
    words = sources[statement.file].splitlines()[statement.line - 1].strip().rstrip(":")
    return Loop(loop.instructions, loop.begins, statement, words)


@lru_cache(maxsize=64)
def _statements(text: str) -> tuple[tuple[int, int], ...]:
    """The first and last line of every for and while of a source file; those that are unrolled are no loops of the code."""
    found = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.For | ast.While))
    return tuple(
        (node.lineno, node.end_lineno or node.lineno)
        for node in found
        if not (isinstance(node, ast.For) and "static_range" in ast.unparse(node.iter))
    )

"""What in a snapshot tells of a person or a machine, and the same snapshot without it.

Author and host are fields, there only when their owner put them in. The rest hides in texts: a traceback's paths name
whose home they are in. A path keeps its file's name, which is what helps to read a traceback.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic_core import from_json

from profiling.snapshot import AnySnapshot, Snapshot, canonical

Kind = Literal["author", "host name", "user name", "path", "GPU UUID"]
GONE = "…"

# Values that are one of a few words, numbers as text, or the identity of what ran: no person writes them.
_NO_TEXT = {
    "schema_version", "created_at", "started_at", "kernel", "device", "id", "data", "dtype", "fp8_scale", "loop_order",
    "block_order", "direction", "inputs", "probes", "kind", "mode", "provenance", "phase", "severity", "limited_by", "stopped",
    "ceilings_measured_at",
}  # fmt: skip
# Objects whose fields are named by what ran, not by the schema.
_FREE_NAMES = {"missing", "counts"}
_MOST_NAMES = 50
_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b")

_POSIX_PART = r"[^\s/\\\"'<>|:,;()\[\]{}…]+"
_WINDOWS_PART = r"[^\\/\n\"'<>|:*?…]+"
_PATH = re.compile(
    rf"""
    (?<quote>["'])(?:file:/*)?(?:/|~[\w.-]*/|[A-Za-z]:[\\/]|\\\\)[^"'\n]+(?P=quote)     # quoted, spaces and all
    | file:/+(?:{_POSIX_PART}/+)*(?:{_POSIX_PART})?
    | (?<![\w./\\…])/(?!/)(?:{_POSIX_PART}/+)+(?:{_POSIX_PART})?                                    # /home/ada/x.py
    | (?<![\w./\\…])~[\w.-]*/(?:{_POSIX_PART}/+)*(?:{_POSIX_PART})?                                 # ~ada/x.py
    | (?<![\w])[A-Za-z]:\\+(?:{_WINDOWS_PART}\\+)*[^\s\\/"'<>|:*?,;…]*                              # C:\Users\Ada L\x.py
    | (?<![\w])[A-Za-z]:/(?!/)(?:{_POSIX_PART}/+)+(?:{_POSIX_PART})?                                # C:/Users/ada/x.py
    | (?<![\w\\])\\\\[\w.$-]+(?:\\+{_WINDOWS_PART})*\\+[^\s\\/"'<>|:*?,;…]*                         # \\server\share\x.py
    """.replace("(?<quote>", "(?P<quote>"),
    re.VERBOSE,
)
_HOME = re.compile(r"(?:^|[\\/])(?:home|Users)[\\/]+([^\\/\n\"']+)|^~([\w.-]+)/", re.IGNORECASE)
_IN_HOMES = re.compile(r"^(?:[A-Za-z]:)?[\\/]+(?:mnt[\\/]+\w[\\/]+)?(?:home|Users)[\\/]+[^\\/]+[\\/]*$", re.IGNORECASE)
_LOGIN = re.compile(r"(?<![\w.+-])([A-Za-z_][\w.+-]{0,63})@([A-Za-z0-9][\w.-]*\w|[A-Za-z0-9])")
_LOCAL_HOST = re.compile(r"\b[A-Za-z0-9][\w-]{0,62}(?:\.[\w-]{1,63}){0,4}\.(?:local|lan|internal|intranet|corp|localdomain)\b")
# Names that tell nothing, and would take words out of sentences.
_NOBODY = {
    "root", "user", "users", "home", "admin", "administrator", "guest", "default", "public", "shared", "test", "tests", "work",
    "worker", "runner", "build", "gpu", "cuda", "torch", "triton", "native", "kernel", "flash", "python", "ubuntu", "debian",
    "localhost", "local", "host", "server", "node", "docker", "container", "app", "data", "the", "and", "not",
}  # fmt: skip


@dataclass(frozen=True)
class Personal:
    """Something that tells of a person or a machine: what it is, where it was found first, the text itself.

    where: 'author', 'note', 'error.raw of measurement 1'.
    """

    kind: Kind
    where: str
    text: str


def found(snapshot: AnySnapshot) -> tuple[Personal, ...]:
    """Everything personal, each once. A GPU's UUID stays when the rest goes: two snapshots are told to be of one GPU by it."""
    value = from_json(snapshot.document)
    names = _names_in(value)
    seen: dict[tuple[Kind, str], Personal] = {}
    for path, text in _texts(value):
        where = _where(path)

        def note(kind: Kind, part: str, where: str = where) -> None:
            seen.setdefault((kind, part), Personal(kind, where, part))

        if path in (("author",), ("host",)):
            if text:
                note("author" if path == ("author",) else "host name", text)
        elif _is_text(path):
            _replaced(text, names, note)
        for uuid in _UUID.findall(text):
            note("GPU UUID", uuid)
    return tuple(seen.values())


def personal(snapshot: AnySnapshot) -> tuple[str, ...]:
    """A sentence for each kind of thing that without_personal() would take out; () when there is none."""
    by_kind: dict[Kind, list[str]] = {}
    for one in found(snapshot):
        if one.kind != "GPU UUID":
            by_kind.setdefault(one.kind, []).append(one.text)
    return tuple(_sentence(kind, texts) for kind, texts in by_kind.items())


def without_personal(snapshot: Snapshot) -> Snapshot:
    """The snapshot without author, host, and the user names, host names and absolute paths in its texts."""
    value = plain(snapshot.model_dump(mode="json")) | {"author": "", "host": ""}
    return _SNAPSHOT.validate_json(canonical(value))


def plain(value: Any) -> Any:
    """A record's JSON value without the user names, host names and absolute paths in its texts."""
    names = _names_in(value)
    return _mapped(value, "", lambda text: _replaced(text, names))


_SNAPSHOT = TypeAdapter(Snapshot)


def _sentence(kind: Kind, texts: list[str]) -> str:
    shown = ", ".join(text if len(text) <= 80 else f"{text[:79]}…" for text in texts[:3])
    more = f" and {len(texts) - 3:,} more" if len(texts) > 3 else ""
    one = "An author is" if kind == "author" else f"A {kind} is"
    return f"{one if len(texts) == 1 else f'{len(texts):,} {kind}s are'} in it: {shown}{more}."


def _is_text(path: tuple[str, ...]) -> bool:
    return next((name for name in reversed(path) if not name.isdecimal()), "") not in _NO_TEXT


def _where(path: tuple[str, ...]) -> str:
    if path[0] == "measurements" and len(path) > 2 and path[1].isdecimal():
        return f"{'.'.join(path[2:])} of measurement {int(path[1]) + 1}"
    return path[0]


def _replaced(text: str, names: re.Pattern[str] | None, note: Callable[[Kind, str], None] = lambda kind, text: None) -> str:
    """The text without paths, logins, host names and the names; note is told of each."""

    def path(match: re.Match[str]) -> str:
        whole, quote = match[0], match["quote"] or ""
        inner = whole[len(quote) : len(whole) - len(quote)] if quote else whole.rstrip(".,;")
        note("path", inner)
        last = "" if _IN_HOMES.match(inner) else re.split(r"[\\/]", inner)[-1]
        return f"{quote}{GONE}{'/' + last if last else ''}{quote}" + ("" if quote else whole[len(inner) :])

    def login(match: re.Match[str]) -> str:
        note("user name", match[1])
        note("host name", match[2])
        return f"{GONE}@{GONE}"

    def gone(kind: Kind) -> Callable[[re.Match[str]], str]:
        return lambda match: note(kind, match[0]) or GONE

    text = _LOGIN.sub(login, _PATH.sub(path, text))
    text = _LOCAL_HOST.sub(gone("host name"), text)
    return text if names is None else names.sub(lambda match: gone(_kind_of(match[0]))(match), text)


def _kind_of(name: str) -> Kind:
    return "host name" if name.casefold() in {one.casefold() for one in _own_hosts()} else "user name"


def _names_in(value: Any) -> re.Pattern[str] | None:
    """What finds the names: those whose homes the texts' paths lie in, and this machine's own user and host."""
    homes: set[str] = set()
    for path, text in _texts(value):
        if _is_text(path) and len(homes) < _MOST_NAMES and ("/" in text or "\\" in text):
            homes |= {(match[1] or match[2]).strip() for match in _HOME.finditer(text)}
    known = sorted(homes)[:_MOST_NAMES] + sorted(_own_hosts() | _own_users())
    names = {name for name in known if len(name) > 2 and name.casefold() not in _NOBODY}
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)", re.IGNORECASE) if names else None


@cache
def _own_hosts() -> frozenset[str]:
    host = socket.gethostname()
    return frozenset(filter(None, {host, host.split(".")[0]}))


@cache
def _own_users() -> frozenset[str]:
    try:
        return frozenset({getpass.getuser()})
    except (OSError, KeyError, ImportError):  # a container's user without a name
        return frozenset()


def _texts(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text in an object, and every field's name that is one: the path of fields and places to it, and the text."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            if path and path[-1] in _FREE_NAMES:
                yield (*path, "a field's name"), name
            yield from _texts(inner, (*path, name))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _texts(inner, (*path, str(place)))


def _mapped(value: Any, key: str, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return value if key in _NO_TEXT else change(value)
    if isinstance(value, dict):
        free = key in _FREE_NAMES
        return {change(name) if free else name: _mapped(inner, name, change) for name, inner in value.items()}
    if isinstance(value, list):
        return [_mapped(inner, key, change) for inner in value]
    return value

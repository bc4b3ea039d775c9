"""Processes that use a store as others would: many writers, and ones that are killed. `python -m tests.store_child <command>`.

Each prints a line for what the store acknowledged, and nothing that it did not.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

from profiling.store import Store, StoreProblem
from tests.varied_snapshots import varied


def write(url: str, first: str, count: str) -> None:
    """Say ready, wait for a line, open the store and save."""
    snapshots = [varied(number) for number in range(int(first), int(first) + int(count))]
    import profiling.store_contents  # noqa: F401  (before the start: the writers should meet in the store)

    print("ready", flush=True)
    sys.stdin.readline()
    try:
        store = Store(url)
        for snapshot in snapshots:
            print(store.save(snapshot, "writer"), flush=True)
        store.close()
    except StoreProblem as problem:
        print(f"problem: {problem}", flush=True)


def killed_while_saving(url: str, kills: str, longest_s: str) -> None:
    """Again and again: a child opens the store and saves, and is killed at a random moment."""
    Store(url).close()
    rng, number = random.Random(5), 0
    for kill in range(int(kills)):
        first_saved, saved = os.pipe()
        child = os.fork()
        if child == 0:
            store = Store(url)
            while True:
                print(store.save(varied(number), "someone"), flush=True)
                os.write(saved, b".")
                number += 1
        if kill % 4:  # every fourth may be killed while it opens the store
            os.read(first_saved, 1)
        time.sleep(rng.uniform(0, float(longest_s)))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(first_saved)
        os.close(saved)
        number += 1000
    print("finished", flush=True)


def killed_while_migrating(source: str, target: str, after_s: str) -> None:
    """A child migrates, and is killed after a time; says how the child ended."""
    import alembic.command  # noqa: F401
    import psycopg  # noqa: F401

    import profiling.store_contents  # noqa: F401  (the kill is to meet the migration)

    child = os.fork()
    if child == 0:
        try:
            Store(source).migrate_to(target, "someone")
        except StoreProblem as problem:
            print(f"problem: {problem}", flush=True)
        os._exit(0)
    deadline = time.monotonic() + float(after_s)
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            print("ended" if status == 0 else f"status {status}", flush=True)
            return
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("killed", flush=True)


if __name__ == "__main__":
    command = {"write": write, "killed-while-saving": killed_while_saving, "killed-while-migrating": killed_while_migrating}
    command[sys.argv[1]](*sys.argv[2:])

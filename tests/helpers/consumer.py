"""A program that trains on a loader and can be killed: ``python consumer.py '{"method": "fork", ...}'``.

It goes through epochs until its standard input ends, and prints ``working`` when it has its first batch. Options:

    method   how workers are started
    workers  number of workers
    deed     a name in `hazards.DEEDS`: what happens at row 16, in the third batch
    second   there is another loader, whose workers are forked later
    end      a name in `ENDS`: what happens at the first batch, once its standard input has ended
    handler  it has a handler of its own for SIGTERM
    thread   the loader is used in a thread, and the thread that started the workers ends
"""

from __future__ import annotations

import json
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from helpers.hazards import Numbered

from packtrain import Loader

ENDS: dict[str, Callable[[], object]] = {
    "return": lambda: None,
    "sys.exit": lambda: sys.exit(3),
    "raise": lambda: 1 // 0,
}


def main(method: str, workers: int = 2, deed: str = "", second: bool = False, end: str = "", **rest: Any) -> None:
    # A program that is started in the background ignores Ctrl-C. A signal mask is inherited, too: a parent that blocks
    # Ctrl-C would keep it from this program for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if rest.get("handler"):
        signal.signal(signal.SIGTERM, lambda number, frame: print("not now", file=sys.stderr))
    dataset = Numbered(64, {16: deed} if deed else None)
    loader = Loader(dataset, 8, shuffle=False, num_workers=workers, multiprocessing_context=method)
    other = Loader(Numbered(64), 8, num_workers=1, multiprocessing_context="fork") if second else ()
    if rest.get("thread"):
        # It starts the workers, and ends.
        starter = threading.Thread(target=lambda: next(iter(loader)))
        starter.start()
        starter.join()
        time.sleep(0.1)
    for epoch in count():
        for step, (images, labels) in enumerate(loader):
            wanted = torch.stack([Numbered.image(label) for label in labels.tolist()])
            assert torch.equal(images, wanted), "a batch is not what it should be"
            if step == 0:
                next(iter(other), None)
            if epoch == step == 0:
                print("working", flush=True)
            if end:
                sys.stdin.read()
                ENDS[end]()
                return
            if select.select([sys.stdin], [], [], 0)[0]:
                return


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))

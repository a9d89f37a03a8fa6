"""Prefetch the items of an iterator in one background thread."""

import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _End:
    """The last item of the thread: the error that stopped it, or None if the source ended."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Prefetch(Generic[Item]):
    """Iterate over `source` in a thread, at most `ahead` items before the consumer.

    An error of the source is raised in place of its item, and at every call after that. `close` stops the thread and
    waits for it; so do the end of a `with` block, garbage collection of the object and process exit.
    """

    def __init__(self, source: Iterator[Item], ahead: int) -> None:
        # two queues written in C: a bounded one is of Python, and its locks cost a fast loader some 4 % of its time
        self._items: queue.SimpleQueue[Item | _End] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(max(1, ahead)):
            self._room.put(None)
        self._end: _End | None = None
        stop = threading.Event()
        # the thread must not reference self or its methods, or self would never be collected
        thread = threading.Thread(
            target=_produce,
            args=(source, self._items, self._room, stop),
            name="maskmill-loader",
            daemon=True,
        )
        self._finalize = weakref.finalize(self, _shut_down, thread, self._room, stop)
        thread.start()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._end is None:
            if not self._finalize.alive:
                raise RuntimeError("the loader was closed")
            item = self._items.get()
            if not isinstance(item, _End):
                self._room.put(None)
                return item
            self._end = item
        raise self._end.error or StopIteration

    def __enter__(self) -> "Prefetch[Item]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread; no items can be taken afterwards."""
        self._finalize()


def _produce(
    source: Iterator[Item],
    items: "queue.SimpleQueue[Item | _End]",
    room: "queue.SimpleQueue[None]",
    stop: threading.Event,
) -> None:
    try:
        for item in source:
            room.get()  # `_shut_down` makes some
            if stop.is_set():
                return
            items.put(item)
            del item
        items.put(_End(None))
    except BaseException as error:
        items.put(_End(error))


def _shut_down(thread: threading.Thread, room: "queue.SimpleQueue[None]", stop: threading.Event) -> None:
    stop.set()
    room.put(None)
    thread.join()

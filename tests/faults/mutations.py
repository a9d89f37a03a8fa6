"""Whole files in; files that were changed at random, as bytes or as JSON values, out. All draws come from the generator
that is handed in, so that a case can be made again from its seed."""

import json
import random
from copy import deepcopy
from typing import Any

BAD_BYTES = b'\0\xff\n"\\{}[]<>&= :,-0e.'


def changed(rng: random.Random, data: bytes) -> bytes:
    """Bytes taken away, put in, overwritten, doubled, moved; the file cut off."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 30))):
        at, size = rng.randrange(len(out) + 1), rng.choice((1, 1, 2, 4, 40, 400))
        match rng.randrange(7):
            case 0:
                out[at : at + size] = b""
            case 1:
                out[at:at] = rng.randbytes(size)
            case 2:
                out[at : at + size] = rng.randbytes(size)
            case 3:
                out[at:at] = out[rng.randrange(len(out) + 1) :][:size]
            case 4:
                out[at:] = b""
            case 5:
                out[at : at + size] = bytes([rng.choice(BAD_BYTES)]) * size
            case 6 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
    return bytes(out)


class Object(list):
    """A JSON object as pairs, so that a key may come twice."""


class Raw(str):
    """JSON text that stands for itself."""


DEEP = 60_000
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 2**31, 2**32 - 1, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, Raw("1e999"),
    Raw("NaN"), Raw("-Infinity"), Raw("1" * 5000), "", "a", "0", "\0", "\ud800", "../x", "/etc/passwd", "x" * 5000,
    "${oc.env:HOME}", "${data.out}", "???", "\x1b[2J", Raw("9" * 400),
    "0" * 64, [], Object(), [[]], [Object()], [0] * 1000,
    Raw("[" * DEEP + "]" * DEEP), Raw('{"a":' * DEEP + "0" + "}" * DEEP),
]  # fmt: skip


def changed_json(rng: random.Random, data: bytes) -> bytes:
    """The JSON value in `data` with values of other kinds and sizes, keys lost, renamed or there twice."""
    value = json.loads(data, object_pairs_hook=Object)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(value))
        if not places:
            break
        container, at = rng.choice(places)
        pair = isinstance(container, Object)
        now = container[at][1] if pair else container[at]
        match rng.randrange(7):
            case 0 | 1 | 2:
                new = deepcopy(rng.choice(VALUES))
            case 3:
                new = _near(rng, now)
            case 4:
                del container[at]
                continue
            case 5:
                container.insert(rng.randrange(len(container) + 1), container[at])
                if pair and rng.random() < 0.5:
                    container[at] = (container[at][0], deepcopy(rng.choice(VALUES)))
                continue
            case _:
                other, there = rng.choice(places)
                new = other[there][1] if isinstance(other, Object) else other[there]
                if new is now or isinstance(new, list):
                    new = 7
        if pair:
            key = container[at][0]
            container[at] = (_near(rng, key) if rng.random() < 0.1 else key, new)
        else:
            container[at] = new
    return text_of(value).encode("utf-8", "surrogatepass")


def _places(value: Any) -> Any:
    if isinstance(value, list):
        for at, one in enumerate(value):
            yield value, at
            yield from _places(one[1] if isinstance(value, Object) else one)


def _near(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return rng.choice((value + 1, value - 1, -value, value * 2, value * 1000, float(value), str(value)))
    if isinstance(value, str):
        text = bytearray(value.encode("utf-8", "surrogatepass") or b"?")
        text[rng.randrange(len(text))] ^= 1 << rng.randrange(7)
        return text.decode("utf-8", "replace")
    return rng.choice((value[:-1], value + value[:1])) if not isinstance(value, Object) else 3


def text_of(value: Any) -> str:
    """`value` as JSON."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Object):
        return "{" + ",".join(f"{json.dumps(key)}:{text_of(one)}" for key, one in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    return json.dumps(value)

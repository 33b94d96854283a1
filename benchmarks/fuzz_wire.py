"""Throw damaged bytes at every decoder of the wire; nothing but UnpackError may come out.

    python benchmarks/fuzz_wire.py --seconds 60 [--seed 1] [--atheris]

Prints how many inputs were tried and the largest resident size seen; exits 1 with the input on a finding.
With ``--atheris`` coverage guides the mutation (needs the package `atheris`).
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import resource
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/unit/wire"))

import samples

from lakeshore.errors import UnpackError
from lakeshore.wire import Assembler, Envelope, Frame, FrameReader, pack, unpack, value_frames

SLOW = 2.0  # seconds that no input of a few KiB may take


def corpus() -> list[bytes]:
    """Return the bytes of every sample, of envelopes and of frames."""
    seeds = [pack(value) for value in samples.ALL]
    seeds += [frame for value in samples.ALL[::5] for frame in value_frames(value, 3)]
    seeds.append(
        Envelope("id", {"kind": "ref", "module": "m"}, pack([1]), pack({}), cfg={"retries": 2}).to_bytes()
    )
    return seeds


def decode_all(data: bytes) -> None:
    """Decode `data` in every way there is."""
    reader, assembler = FrameReader(), Assembler()
    for decode in (unpack, Envelope.from_bytes, Frame.from_bytes, reader.feed, assembler.feed):
        try:
            decode(data)
        except UnpackError:
            continue


def mutate(data: bytes, seeds: list[bytes], dice: random.Random) -> bytes:
    """Return `data` with a few bytes changed, cut, repeated or replaced by another seed's."""
    out = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(out) + 1)
        match dice.randrange(7):
            case 0 | 1 | 2 if out:
                out[min(at, len(out) - 1)] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
            case 3:
                del out[at : at + dice.randint(1, 8)]
            case 4:
                out[at:at] = dice.randbytes(dice.randint(1, 4))
            case 5:
                out[at:at] = out[at : at + dice.randint(1, 32)]
            case _:
                other = dice.choice(seeds)
                start = dice.randrange(len(other))
                out[at : at + 8] = other[start : start + dice.randint(1, 32)]
    return bytes(out)


def main() -> int:
    """Run the fuzzer; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--atheris", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("error")
    faulthandler.enable()
    seeds = corpus()
    if options.atheris:
        return run_atheris(seeds, options)
    dice = random.Random(options.seed)
    tried, end = 0, time.monotonic() + options.seconds
    last = Path("fuzz_wire_last.bin")
    slowest = 0.0
    while time.monotonic() < end:
        data = mutate(dice.choice(seeds), seeds, dice)
        last.write_bytes(data)  # what is here after a crash did it
        start = time.monotonic()
        try:
            decode_all(data)
        except BaseException:
            print(f"finding after {tried} inputs: {data.hex()}")
            raise
        took = time.monotonic() - start
        slowest = max(slowest, took)
        if took > SLOW:
            print(f"slow: {took:.1f} s for {data.hex()}")
            return 1
        tried += 1
    last.unlink()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{tried} inputs from {len(seeds)} seeds, only UnpackError; {peak:.0f} MiB; slowest {slowest:.3f} s"
    )
    return 0


def run_atheris(seeds: list[bytes], options: argparse.Namespace) -> int:
    """Let atheris guide the mutation; it ends the process itself."""
    import tempfile

    import atheris

    with tempfile.TemporaryDirectory() as folder:
        for n, seed in enumerate(seeds):
            (Path(folder) / f"{n}").write_bytes(seed)
        atheris.instrument_all()
        flags = [
            f"-max_total_time={int(options.seconds)}",
            f"-seed={options.seed}",
            "-rss_limit_mb=2048",
            folder,
        ]
        atheris.Setup([sys.argv[0], *flags], decode_all)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())

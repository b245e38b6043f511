"""Compare the armd on PYTHONPATH with the golden record: packed weights to the last bit, plain ones
up to rounding. Usage: compare.py [golden.json]; exit code 1 on any difference."""

import sys
from pathlib import Path

from record import ROUTES, WEIGHTS, differences, golden, machine

import armd


def main() -> int:
    file = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).with_name("decoding.json")
    kept, count = golden(file), 0
    print(f"armd of {Path(armd.__file__).parent}")
    if kept["machine"] != machine():
        print("recorded on another machine, compiler or torch: bits may differ for that reason")
    for route in ROUTES:
        for weights in WEIGHTS:
            found = differences(kept, route, weights, within=1e-5, bits=weights != "plain")
            print(f"{route} {weights}: {len(found)} differences", flush=True)
            for line in found:
                print("  " + line[:300])
            count += len(found)
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main())

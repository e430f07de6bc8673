"""`python -m kvark.serve MODEL`: replicas of kvark behind one OpenAI address."""

import argparse

import ray
from ray import serve

from .app import application


def main() -> None:
    """Starts Ray, or joins a cluster, and serves until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m kvark.serve",
        description="Serve a model on many replicas behind one OpenAI-compatible address, by Ray Serve.",
        epilog="Further flags go to every replica's `kvark serve`, for instance --ctx-size 8192 --threads 4.",
    )
    parser.add_argument("model", nargs="?", help="what `kvark serve` takes; the default model without it")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--max-replicas", type=int, help="start more replicas under load, up to this number")
    parser.add_argument("--cpus", type=float, default=1.0, help="cores that Ray reserves for a replica")
    parser.add_argument("--slots", type=int, default=8, help="requests that a replica runs at once")
    parser.add_argument("--routing", choices=["prefix", "round-robin"], default="prefix")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--address", help="a running Ray cluster (ray start), instead of one on this machine")
    args, rest = parser.parse_known_args()
    ray.init(address=args.address)
    serve.start(http_options={"host": args.host, "port": args.port})
    app = application(
        [*([args.model] if args.model else []), *rest],
        replicas=args.replicas,
        max_replicas=args.max_replicas,
        cpus=args.cpus,
        slots=args.slots,
        routing=args.routing,
    )
    serve.run(app, name="kvark", blocking=True)


if __name__ == "__main__":
    main()

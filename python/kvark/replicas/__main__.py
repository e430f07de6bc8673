"""`python -m kvark.replicas MODEL`: replicas of kvark behind one OpenAI address."""

import argparse
import signal
import sys
import threading

import ray
from ray import serve

from .app import application
from .resources import cpus_of, shortage


def main() -> None:
    """Starts Ray, or joins a cluster, and serves until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m kvark.replicas",
        description="Serve a model on many replicas behind one OpenAI-compatible address, by Ray Serve.",
        epilog="Further flags go to every replica's `kvark serve`, for instance --ctx-size 8192 --threads 4.",
    )
    parser.add_argument("model", nargs="?", help="what `kvark serve` takes; the default model without it")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--max-replicas", type=int, help="start more replicas under load, up to this number")
    parser.add_argument("--cpus", type=float, help="cores that Ray reserves for a replica; as many as --threads, or else 1")
    parser.add_argument("--slots", type=int, default=8, help="requests that a replica runs at once")
    parser.add_argument("--routing", choices=["prefix", "round-robin"], default="prefix")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--address", help="a running Ray cluster (ray start), instead of one on this machine")
    args, rest = parser.parse_known_args()
    _stop_at_signals()
    try:
        _run(args, rest)
    except KeyboardInterrupt:
        print("kvark stops.", flush=True)
    finally:
        # The processes of Ray would outlive this one for a while; a second Ctrl-C must not leave half of them.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if ray.is_initialized():
            _stop(shared=args.address is not None)


def _stop_at_signals() -> None:
    # A process that was started in the background may ignore Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def _stop(shared: bool) -> None:
    # A cluster that was there before may serve others.
    if shared:
        serve.delete("kvark")
    else:
        serve.shutdown()
    ray.shutdown()


def _run(args: argparse.Namespace, rest: list[str]) -> None:
    cpus = cpus_of(rest, args.cpus)
    ray.init(address=args.address)
    # Ray has a handler of its own, which ends the process at once.
    _stop_at_signals()
    nodes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    missing = shortage(args.replicas, cpus, nodes)
    if missing:
        sys.exit(f"error: {missing}")
    serve.start(http_options={"host": args.host, "port": args.port})
    app = application(
        [*([args.model] if args.model else []), *rest],
        replicas=args.replicas,
        max_replicas=args.max_replicas,
        cpus=cpus,
        slots=args.slots,
        routing=args.routing,
    )
    serve.run(app, name="kvark")
    print(f"kvark serves http://{args.host}:{args.port} with {args.replicas} replicas. Ctrl-C stops it.", flush=True)
    # A replica that dies is started again by Ray and must not end this process.
    threading.Event().wait()


if __name__ == "__main__":
    main()

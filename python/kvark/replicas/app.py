"""The Ray Serve application: replicas of `kvark serve`, and an ingress that hands requests to them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from .resources import cpus_of, option
from .routing import BLOCK_TOKENS, PrefixPolicy, prompt_text

#: How often a request that has sent nothing yet is tried again when its replica dies.
RETRIES = 5
_CONVERSATIONS = "/v1/kvark/conversations"


class PrefixRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Sends a request to the replica that holds most of its prompt and has little to do, or to the one that it names."""

    def initialize_state(self, **options: Any) -> None:
        """Takes the options of `PrefixPolicy`."""
        self._policy = PrefixPolicy(**options)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """All replicas, the best one first."""
        request = pending_request.kwargs if pending_request else {}
        by_id = {replica.replica_id: replica for replica in candidate_replicas}
        pinned = [id for id in by_id if id.unique_id == request.get("replica")]
        if pinned:
            return [[by_id[pinned[0]]]]
        loads = {id: self.replica_queue_len_cache.get(id) or 0 for id in by_id}
        return [[by_id[id]] for id in self._policy.order(request.get("text", ""), loads)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Remembers who computes the prompt."""
        request = pending_request.kwargs
        self._policy.routed(request.get("text", ""), replica_id, request.get("answer_tokens", 64))


class Replica:
    """One `kvark serve` process on this node, and a way to it."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "kvark", "serve", *arguments, "--host", "127.0.0.1", "--port", "0"]
        self._server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._server.stderr is not None
        said = []
        for line in self._server.stderr:
            said.append(line)
            if "kvark serves http://" in line:
                address = next(word for word in line.split() if word.startswith("http://"))
                break
        else:
            raise RuntimeError(f"kvark serve did not start: {''.join(said)[-2000:]}")
        threading.Thread(target=self._watch, daemon=True).start()
        self._client = httpx.AsyncClient(base_url=address, timeout=None)
        self._id = serve.get_replica_context().replica_id.unique_id

    def _watch(self) -> None:
        """Ends this actor with its server: Ray sends it no more requests and starts another one."""
        assert self._server.stderr is not None
        # A full pipe would block the server.
        for _ in self._server.stderr:
            pass
        self._server.wait()
        os._exit(1)

    def pid(self) -> int:
        """The process that serves."""
        return self._server.pid

    async def request(self, method: str, path: str, body: bytes, **routing: Any) -> AsyncIterator[Any]:
        """Status, content type and this replica's id; then the body as it comes. `routing` is read by the router."""
        del routing
        async with self._client.stream(method, path, content=body) as answer:
            headers = {name: answer.headers[name] for name in ("content-type", "x-kvark-cache") if name in answer.headers}
            yield answer.status_code, headers, self._id
            async for chunk in answer.aiter_raw():
                yield chunk

    def __del__(self) -> None:
        self._server.terminate()


class Ingress:
    """The HTTP side: any path goes to a replica. A request is tried again while nothing of its answer was sent."""

    def __init__(self, replicas: Any) -> None:
        self._replicas = replicas.options(stream=True)
        #: The replica of every conversation: only that one has its tokens.
        self._homes: dict[str, str] = {}

    async def __call__(self, request: Request) -> Response:
        content = await request.body()
        try:
            fields = json.loads(content) if content else {}
        except ValueError:
            fields = {}
        fields = fields if isinstance(fields, dict) else {}
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        home = self._homes.get(self._conversation(request.url.path, fields) or "")
        tokens = fields.get("max_completion_tokens") or fields.get("max_tokens")
        tokens = min(tokens, 256) if isinstance(tokens, int) else 64
        call = {"text": prompt_text(fields) or path, "replica": home, "answer_tokens": tokens}
        streamed = bool(fields.get("stream")) or path.endswith("/events")
        last: Exception | None = None
        for attempt in range(RETRIES):
            answer = self._replicas.request.remote(request.method, path, content, **call)
            try:
                status, headers, replica = await anext(answer)
                if streamed and status == 200:
                    first = await anext(answer)
                    return StreamingResponse(self._rest(first, answer), status, headers)
                chunks = [chunk async for chunk in answer]
            except StopAsyncIteration:
                return Response(b"", status, headers)
            except (RayError, httpx.HTTPError) as error:
                last = error
                if home:
                    break
                await asyncio.sleep(0.2 * attempt)
                continue
            answered = b"".join(chunks)
            self._remember(request.method, request.url.path, status, answered, replica)
            return Response(answered, status, headers)
        message = f"the replica of this conversation is gone: {last}" if home else f"no replica answers: {last}"
        body = {"message": message, "type": "server_error", "param": None, "code": "replica_lost"}
        return JSONResponse({"error": body}, 410 if home else 503)

    @staticmethod
    async def _rest(first: bytes, answer: Any) -> AsyncIterator[bytes]:
        """The rest of a stream. If the replica dies, the stream ends with an event that says so."""
        yield first
        try:
            async for chunk in answer:
                yield chunk
        except (RayError, httpx.HTTPError) as error:
            body = {"error": {"message": f"the replica died: {error}", "type": "server_error", "code": "replica_lost"}}
            yield f"data: {json.dumps(body)}\n\n".encode()

    @staticmethod
    def _conversation(path: str, fields: dict[str, Any]) -> str | None:
        if path.startswith(_CONVERSATIONS + "/"):
            return path.removeprefix(_CONVERSATIONS + "/").split("/")[0]
        return fields.get("conversation")

    def _remember(self, method: str, path: str, status: int, content: bytes, replica: str) -> None:
        if status == 200 and method == "POST" and path.startswith(_CONVERSATIONS):
            created = json.loads(content)
            if isinstance(created, dict) and "id" in created:
                self._homes[created["id"]] = replica


def application(
    arguments: list[str], *, replicas: int = 1, max_replicas: int | None = None, cpus: float | None = None, slots: int = 8,
    routing: str = "prefix",
) -> Any:
    """The application: `replicas` processes of `kvark serve ARGUMENTS`, up to `max_replicas` under load.

    `routing` is `prefix` or `round-robin`; `cpus` are the cores that Ray reserves for a replica, by default its threads.
    """
    options: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": cpus_of(arguments, cpus)},
        "max_ongoing_requests": slots,
        "health_check_period_s": 2,
        "health_check_timeout_s": 30,
    }
    if routing == "prefix":
        router = RequestRouterConfig(
            request_router_class="kvark.replicas.app.PrefixRouter", request_router_kwargs=cache_size(arguments, slots)
        )
    else:
        router = RequestRouterConfig(request_router_class="kvark.replicas.app.RoundRobinRouter")
    options["request_router_config"] = router
    if max_replicas and max_replicas > replicas:
        options["autoscaling_config"] = {"min_replicas": replicas, "max_replicas": max_replicas, "target_ongoing_requests": 4}
    else:
        options["num_replicas"] = replicas
    deployment = serve.deployment(Replica, name="Replica").options(**options)
    ingress = serve.deployment(Ingress, name="Ingress").options(
        max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0}
    )
    return ingress.bind(deployment.bind([*arguments, "--parallel", str(slots)]))


def cache_size(arguments: list[str], slots: int) -> dict[str, int]:
    """The router's option for the size of a replica's cache: `--ctx-size` tokens for every slot. Empty without that flag."""
    size = option(arguments, "-c", "--ctx-size")
    if size is None or not size.isdigit():
        return {}
    return {"blocks_per_replica": max(1, int(size) * slots // BLOCK_TOKENS)}


class RoundRobinRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Sends requests to all replicas in turn, for comparison."""

    _turn = 0

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """All replicas, beginning with another one each time."""
        if not candidate_replicas:
            return []
        replicas = sorted(candidate_replicas, key=lambda replica: str(replica.replica_id))
        self._turn += 1
        start = self._turn % len(replicas)
        return [[replica] for replica in replicas[start:] + replicas[:start]]

"""Measures ik_llama.cpp on request, over ik-llama-cpp-python's low-level calls. `driver.py` has the protocol.

"repack" in the first request asks for its run-time repacking.
"""

import ctypes
import importlib.metadata
import platform
import time

import driver

import ik_llama_cpp._ctypes_api as lib

BATCH = 512
CACHE_TYPES = {"f32": 0, "f16": 1, "q8": 8, "q4": 2}

# Calls that the package does not declare.
LIBRARY = lib._lib
LIBRARY.llama_kv_cache_seq_rm.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]
LIBRARY.llama_kv_cache_seq_rm.restype = ctypes.c_bool
LIBRARY.llama_set_n_threads.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]
LIBRARY.llama_synchronize.argtypes = [ctypes.c_void_p]
LIBRARY.llama_print_system_info.restype = ctypes.c_char_p
LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
QUIET = LOG(lambda level, text, data: None)
LIBRARY.llama_log_set.argtypes = [LOG, ctypes.c_void_p]


def system_info():
    """The instruction sets it was built for."""
    entries = LIBRARY.llama_print_system_info().decode().split(":", 1)[-1].split("|")
    return ", ".join(name.strip() for name, _, value in (e.partition("=") for e in entries) if value.strip() == "1")


class Peer:
    keeps_depth = True

    def __init__(self, load):
        LIBRARY.llama_log_set(QUIET, None)
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.repack_tensors = load["repack"]
        # Repacking writes the weights.
        params.use_mmap = not load["repack"]
        self.model = lib.llama_model_load_from_file(load["model"].encode(), params)
        if not self.model:
            raise RuntimeError("the file cannot be loaded")
        params = lib.llama_context_default_params()
        params.n_ctx = load["context"]
        params.n_batch = params.n_ubatch = BATCH
        params.type_k = params.type_v = CACHE_TYPES[load["cache"]]
        params.flash_attn = True
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"no context of {load['context']} tokens")
        vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        # The very ids that `kvark bench` feeds.
        self.tokens = [i * 2654435761 % 2**32 % vocab for i in range(load["context"])]
        self.batch = lib.llama_batch_init(BATCH, 0, 1)
        self.depth = 0
        text = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self.model, text, len(text))
        # Architecture, size, storage; the size is a guess by the number of layers.
        self.weights = text.value.decode().split(" ", 2)[-1]
        self.version = f"ik-llama-cpp-python {importlib.metadata.version('ik-llama-cpp-python')}"
        self.build = system_info() or platform.machine()

    def rewind(self, length):
        """Forgets everything from position `length` on."""
        if length == 0:
            lib.llama_kv_cache_clear(self.context)
        elif not LIBRARY.llama_kv_cache_seq_rm(self.context, 0, length, -1):
            raise RuntimeError(f"it cannot go back to {length} tokens")

    def feed(self, start, end, step):
        """Runs the tokens of some positions in batches, with logits of the last of each, and waits for them."""
        for first in range(start, end, step):
            count = min(step, end - first)
            self.batch.n_tokens = count
            for i in range(count):
                self.batch.token[i] = self.tokens[first + i]
                self.batch.pos[i] = first + i
                self.batch.n_seq_id[i] = 1
                self.batch.seq_id[i][0] = 0
                self.batch.logits[i] = i == count - 1
            status = lib.llama_decode(self.context, self.batch)
            if status != 0:
                raise RuntimeError(f"llama_decode answers {status}")
            LIBRARY.llama_synchronize(self.context)

    def speed(self, kind, n, depth, threads):
        LIBRARY.llama_set_n_threads(self.context, threads, threads)
        if depth != self.depth:
            self.rewind(0)
            self.depth = 0
            self.feed(0, depth, BATCH)
            self.depth = depth
        self.rewind(depth)
        start = time.perf_counter()
        self.feed(depth, depth + n, BATCH if kind == "pp" else 1)
        return n / (time.perf_counter() - start)


driver.run(Peer)

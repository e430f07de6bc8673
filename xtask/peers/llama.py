"""The little of llama.cpp that the comparisons need, over llama-cpp-python's low-level calls."""

import ctypes

import llama_cpp as lib
import numpy as np

BATCH = 512
CACHE_TYPES = {
    "f32": lib.GGML_TYPE_F32,
    "f16": lib.GGML_TYPE_F16,
    "q8": lib.GGML_TYPE_Q8_0,
    "q4": lib.GGML_TYPE_Q4_0,
}

# Warnings of the library would otherwise mix with the drivers' output.
QUIET = lib.llama_log_callback(lambda level, text, data: None)


class Llama:
    """A model and one context with the library's defaults: flash attention by its choice, KV in f16 unless asked for."""

    def __init__(self, path, context, threads=1, cache="f16"):
        lib.llama_log_set(QUIET, None)
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        params = lib.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = params.n_ubatch = BATCH
        params.type_k = params.type_v = CACHE_TYPES[cache]
        params.n_threads = params.n_threads_batch = threads
        params.n_outputs_max = params.n_outputs_max_per_seq = BATCH
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit(f"llama.cpp makes no context of {context} tokens")
        self.memory = lib.llama_get_memory(self.context)
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.vocab_size = lib.llama_vocab_n_tokens(self.vocab)

    def weights(self):
        """How the file's weights are stored, such as Q4_1."""
        text = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self.model, text, len(text))
        # Architecture, size, storage; the size is a guess by the number of layers.
        return text.value.decode().split(" ", 2)[-1]

    def set_threads(self, threads):
        lib.llama_set_n_threads(self.context, threads, threads)

    def rewind(self, length):
        """Forgets everything from position `length` on."""
        if length == 0:
            lib.llama_memory_clear(self.memory, True)
        elif not lib.llama_memory_seq_rm(self.memory, 0, length, -1):
            raise SystemExit(f"llama.cpp cannot go back to {length} tokens")

    def tokenize(self, text):
        """The ids of a text, with the BOS of models that want one."""
        data = text.encode()
        ids = (lib.llama_token * (len(data) + 8))()
        count = lib.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, False)
        return list(ids[:count])

    def feed(self, tokens):
        """Runs tokens in batches, with logits of the last of each, and waits for them."""
        for start in range(0, len(tokens), BATCH):
            part = tokens[start : start + BATCH]
            array = (lib.llama_token * len(part))(*part)
            self._decode(lib.llama_batch_get_one(array, len(part)))
            lib.llama_synchronize(self.context)

    def log_probs(self, tokens):
        """The natural log-probability of every token but the first, given those before it."""
        self.rewind(0)
        batch = lib.llama_batch_init(BATCH, 0, 1)
        found = []
        for start in range(0, len(tokens), BATCH):
            part = tokens[start : start + BATCH]
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i] = token
                batch.pos[i] = start + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = True
            self._decode(batch)
            for i, target in enumerate(tokens[start + 1 : start + 1 + len(part)]):
                row = lib.llama_get_logits_ith(self.context, i)
                row = np.ctypeslib.as_array(row, (self.vocab_size,)).astype(np.float64)
                top = row.max()
                found.append(float(row[target] - top - np.log(np.exp(row - top).sum())))
        lib.llama_batch_free(batch)
        return found

    def _decode(self, batch):
        status = lib.llama_decode(self.context, batch)
        if status != 0:
            raise SystemExit(f"llama_decode answers {status}")


def version():
    return f"llama-cpp-python {lib.__version__}"


def system_info():
    """The instruction sets it was built for."""
    entries = lib.llama_print_system_info().decode().split(":", 1)[-1].split("|")
    return ", ".join(name.strip() for name, _, value in (e.partition("=") for e in entries) if value.strip() == "1")

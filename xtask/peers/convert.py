"""Converts a GGUF file to another format with llama.cpp.

    convert.py MODEL.gguf FORMAT OUT.gguf

FORMAT is one of FORMATS below. Formats of fewer bits than the model's lose what they must; F16 and BF16 hold the model's own
numbers, rounded. The file is written beside OUT.gguf first and then renamed, so a file with that name is complete.
"""

import ctypes
import os
import sys

import llama_cpp

FORMATS = {
    "F16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
    "BF16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16,
    "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "Q4_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "Q5_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_K_M,
    "Q6_K": llama_cpp.LLAMA_FTYPE_MOSTLY_Q6_K,
    "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
}

# llama.cpp logs every tensor; only errors are of use here.
ERROR = 4


@llama_cpp.llama_log_callback
def log(level, text, _):
    if level == ERROR:
        sys.stderr.write(text.decode("utf-8", "replace"))


def main(model, name, out):
    if name not in FORMATS:
        sys.exit(f"{name} is none of the formats {', '.join(FORMATS)}")
    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.allow_requantize = True
    parameters.ftype = FORMATS[name]
    partial = f"{out}.partial"
    if llama_cpp.llama_model_quantize(model.encode(), partial.encode(), ctypes.byref(parameters)) != 0:
        sys.exit(f"llama.cpp could not convert {model} to {name}")
    os.replace(partial, out)


main(*sys.argv[1:])

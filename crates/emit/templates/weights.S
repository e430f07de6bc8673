#if defined(__APPLE__)
.const_data
.globl _model_weights
.p2align 6
_model_weights:
#else
.section .rodata
.globl model_weights
.p2align 6
model_weights:
#endif
.incbin "weights.bin"
@tokenizer@#if defined(__linux__) && defined(__ELF__)
.section .note.GNU-stack, "", %progbits
#endif

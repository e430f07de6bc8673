#if defined(__APPLE__)
.globl _tokenizer_tables
.p2align 6
_tokenizer_tables:
#else
.globl tokenizer_tables
.p2align 6
tokenizer_tables:
#endif
.incbin "tokenizer.bin"

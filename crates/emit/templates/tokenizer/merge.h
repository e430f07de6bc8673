/* A part of a word: its bytes, its token, and its neighbours. */
struct tokenizer_symbol {
    uint32_t start, end, id, before, after;
};

/* Two symbols that could merge, and the ends they had when that was found. */
struct tokenizer_merge {
    uint32_t rank, left, left_end, right_end, id;
};


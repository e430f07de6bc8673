    uint32_t whole = find_string(t, U32(T_WHOLE), TOKENIZER_WHOLE_MASK, word, len);
    if (whole != NONE) {
        push(t, whole);
        return;
    }

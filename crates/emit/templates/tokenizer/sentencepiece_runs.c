    /* A run of newlines is a word of its own, and one token if it is a piece. */
    for (size_t at = 0, end; at < size; at = end) {
        int newline = t->plain[at] == '\n';
        for (end = at; end < size && (t->plain[end] == '\n') == newline; end++)
            ;
        uint32_t id = newline ? find_string(t, U32(T_PIECES), TOKENIZER_PIECES_MASK, t->plain + at, end - at) : NONE;
        if (id != NONE)
            push(t, id);
        else
            encode_run(t, t->plain + at, end - at);
    }

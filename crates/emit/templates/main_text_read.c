    if (prompt) {
        size_t table_bytes = 0;
        const void *tables = load_tables(tables_path, &table_bytes);
        if (!tables)
            return fail(tables_path, "cannot be read");
        if (tokenizer_open(&tokenizer, tables, table_bytes) != TOKENIZER_OK)
            return fail(tables_path, "the tables are not those of this program");
        const char *wrong = read_text(prompt, TOKENIZER_ADDS | special, &count);
        if (wrong)
            return fail("the text", wrong);
    }

static void print_token(int32_t id)
{
    size_t len;
    const char *bytes = tokenizer_token(&tokenizer, id, &len);
    if (bytes && !tokenizer_is_hidden(&tokenizer, id))
        fwrite(bytes, 1, len, stdout);
}


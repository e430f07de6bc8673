    encode_run(t, t->plain, size);

        } else if (strcmp(argv[i], "-s") == 0) {
            special = TOKENIZER_SPECIAL;
        } else if (strcmp(argv[i], "-t") == 0 && has_value) {
            tables_path = argv[++i];
        } else if (strcmp(argv[i], "-p") == 0 && has_value) {
            prompt = argv[++i];

    const int32_t *const tokens = (const int32_t *)(state + A_TOKEN_IDS) + position;
    const int32_t *const positions = (const int32_t *)(state + A_POSITIONS) + position;
    const int32_t *const rows = (const int32_t *)(state + A_ROWS);
    (void)tokens, (void)positions, (void)rows;

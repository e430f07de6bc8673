    for (int32_t i = 0; i < MODEL_CONTEXT; i++)
        memcpy(m->state + A_POSITIONS + (size_t)i * sizeof i, &i, sizeof i);

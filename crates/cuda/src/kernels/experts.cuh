
// The rows of each expert.
//
// A pair is a row and one of its experts; pair `row * slots + i` is the row's i-th expert. What is computed of a pair lies in the
// pair's row of a matrix. Pairs of one expert are listed together, in chunks that read its weights once.

// The expert of a pair that a row does not have.
#define NO_EXPERT 0xffffffffu

// Pairs of one expert: `count` of the list, from `first` on.
struct ExpertChunk {
    u32 expert, first, count, unused;
};

struct ExpertLists {
    u32* chunk_count;
    ExpertChunk* chunks;
    // Pairs by expert.
    u32* pairs;
    // The expert of each pair; a row's experts ascend, and NO_EXPERT follows them.
    u32* experts;
};

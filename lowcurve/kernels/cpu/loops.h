/* What the compiled loops share. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORIZED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORIZED
#endif

#define INLINE static inline __attribute__((always_inline))

#define BLOCK 4096 /* elements that a thread works on at a time; also how far a float32 sum may run */
#define SIZE(start) ((n) - (start) < BLOCK ? (n) - (start) : BLOCK) /* of the block of n values that begins at start */

/* Tables of one address per layer. */
typedef const float *const *Given;
typedef float *const *Found;

static inline long lesser(long a, long b) { return a < b ? a : b; }

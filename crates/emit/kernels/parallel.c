/* The threads of the process work for one call at a time: `calls` is held by the thread that they work for. */
static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    size_t generation, running;
    void (*task)(const void *context, size_t begin, size_t end);
    const void *context;
    size_t count;
} pool = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, NULL, NULL, 0};

static void *worker(void *argument)
{
    size_t thread = (size_t)(uintptr_t)argument, seen = 0;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (pool.generation == seen)
            pthread_cond_wait(&pool.work, &pool.lock);
        seen = pool.generation;
        size_t begin = pool.count * thread / MODEL_THREADS, end = pool.count * (thread + 1) / MODEL_THREADS;
        pthread_mutex_unlock(&pool.lock);
        pool.task(pool.context, begin, end);
        pthread_mutex_lock(&pool.lock);
        if (--pool.running == 0)
            pthread_cond_signal(&pool.done);
    }
    return NULL;
}

static void start_threads(void)
{
    for (size_t thread = 1; thread < MODEL_THREADS; thread++) {
        pthread_t handle;
        if (pthread_create(&handle, NULL, worker, (void *)(uintptr_t)thread) != 0)
            abort();
        pthread_detach(handle);
    }
}

/* Starts the threads of the process, once. */
void k_start_threads(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_threads);
}

HELPER void parallel(void (*task)(const void *context, size_t begin, size_t end), const void *context, size_t count)
{
    pthread_mutex_lock(&calls);
    pthread_mutex_lock(&pool.lock);
    pool.task = task;
    pool.context = context;
    pool.count = count;
    pool.running = MODEL_THREADS - 1;
    pool.generation++;
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.lock);
    task(context, 0, count / MODEL_THREADS);
    pthread_mutex_lock(&pool.lock);
    while (pool.running > 0)
        pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&calls);
}

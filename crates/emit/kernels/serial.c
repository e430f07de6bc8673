HELPER void parallel(void (*task)(const void *context, size_t begin, size_t end), const void *context, size_t count)
{
    task(context, 0, count);
}

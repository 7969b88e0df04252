// Behind the kernel: calls ENTRY with arguments by address, as GPU drivers take them.
static void** given;
template <class... Arguments, std::size_t... Index>
static void call(void (*kernel)(Arguments...), std::index_sequence<Index...>) {
    kernel(*(typename std::remove_reference<Arguments>::type*)given[Index]...);
}
template <class... Arguments>
static void call(void (*kernel)(Arguments...)) {
    call(kernel, std::index_sequence_for<Arguments...>{});
}
static void body() {
    call(ENTRY);
    done[now.thread] = true;
    pass_control();
}
static void resume(int thread) {
    now.thread = thread;
    if (_setjmp(scheduler) != 0) return;
    if (started[thread]) _longjmp(paused[thread], 1);
    started[thread] = true;
    getcontext(&contexts[thread]);
    contexts[thread].uc_stack.ss_sp = stacks + thread * stack_bytes;
    contexts[thread].uc_stack.ss_size = stack_bytes;
    contexts[thread].uc_link = nullptr;
    makecontext(&contexts[thread], body, 0);
    setcontext(&contexts[thread]);
}
static void run_group(int threads) {
    for (int t = 0; t < threads; ++t) started[t] = done[t] = false;
    resume(0);
    // Whether a kernel has barriers shows in its first thread: without any, the others need no coroutine.
    if (done[0]) {
        for (int t = 1; t < threads; ++t) {
            now.thread = t;
            call(ENTRY);
        }
        return;
    }
    for (int t = 1; t < threads; ++t) resume(t);
    for (bool running = true; running;) {
        running = false;
        for (int t = 0; t < threads; ++t)
            if (!done[t]) {
                resume(t);
                running = running || !done[t];
            }
    }
}
extern "C" void unhang_host_launch(const unsigned* grid, unsigned threads, void** arguments) {
    given = arguments;
    if (!stacks) stacks = (char*)std::malloc(1024 * stack_bytes);
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; ++y)
            for (unsigned x = 0; x < grid[0]; ++x) {
                now = {0, {(int)x, (int)y, (int)z}};
                run_group((int)threads);
            }
}

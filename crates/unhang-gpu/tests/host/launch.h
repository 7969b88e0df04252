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
extern "C" void unhang_host_launch(const unsigned* grid, unsigned threads, void** arguments) {
    given = arguments;
    if (!stacks) stacks = (char*)std::malloc(1024 * stack_bytes);
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; ++y)
            for (unsigned x = 0; x < grid[0]; ++x) {
                for (unsigned t = 0; t < threads; ++t) {
                    done[t] = false;
                    getcontext(&contexts[t]);
                    contexts[t].uc_stack.ss_sp = stacks + t * stack_bytes;
                    contexts[t].uc_stack.ss_size = stack_bytes;
                    contexts[t].uc_link = &scheduler;
                    makecontext(&contexts[t], body, 0);
                }
                for (bool running = true; running;) {
                    running = false;
                    for (unsigned t = 0; t < threads; ++t)
                        if (!done[t]) {
                            now = {(int)t, {(int)x, (int)y, (int)z}};
                            swapcontext(&scheduler, &contexts[t]);
                            running = running || !done[t];
                        }
                }
            }
}

// The CUDA keywords for a host compiler: a workgroup's threads are coroutines that a barrier passes control between,
// workgroups run one after the other, LDS is static memory. Slow, and enough to see whether a kernel is right.
#pragma once
#include <setjmp.h>
#include <ucontext.h>
#include <cstdlib>
#include <cstring>
#include <utility>

#define UNHANG_HOST 1
#define __global__
#define __shared__ static
#define __launch_bounds__(...)

struct Position {
    int thread, block[3];
};
static Position now;
// A coroutine is started by setcontext and from then on switched by longjmp, which asks nothing of the kernel.
static ucontext_t contexts[1024];
static jmp_buf scheduler, paused[1024];
static bool started[1024], done[1024];
static char* stacks = nullptr;
static constexpr std::size_t stack_bytes = 64 << 10;

static void pass_control() {
    if (_setjmp(paused[now.thread]) == 0) _longjmp(scheduler, 1);
}

#define THREAD_X (now.thread)
#define BLOCK_X (now.block[0])
#define BLOCK_Y (now.block[1])
#define BLOCK_Z (now.block[2])
#define BARRIER() pass_control()

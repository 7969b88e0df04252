// The driver's interface as a careless program uses it: every call must be refused as the kernel refuses it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/kfd_ioctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define REFUSED(call, expected)                                                                              \
    do {                                                                                                     \
        errno = 0;                                                                                           \
        long result_ = (long)(call);                                                                         \
        if (result_ != -1 || errno != (expected)) {                                                          \
            fprintf(stderr, "line %d: %s gave %ld, errno %d\n", __LINE__, #call, result_, errno);             \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)
#define WORKS(call)                                                                                  \
    do {                                                                                             \
        errno = 0;                                                                                   \
        if ((call) != 0) {                                                                           \
            fprintf(stderr, "line %d: %s failed, errno %d\n", __LINE__, #call, errno);                \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

int main(void) {
    unsigned gpu_id = 0;
    FILE* file = fopen("/sys/class/kfd/kfd/topology/nodes/1/gpu_id", "r");
    if (!file || fscanf(file, "%u", &gpu_id) != 1) return 1;
    fclose(file);
    struct stat status;
    WORKS(stat("/dev/kfd", &status));
    WORKS(!S_ISCHR(status.st_mode));
    WORKS(access("/dev/dri/renderD128", R_OK | W_OK));
    REFUSED(access("/dev/dri/renderD200", R_OK), ENOENT);
    REFUSED(open("/dev/dri/renderD200", O_RDWR), ENOENT);
    REFUSED(open("/sys/class/kfd/kfd/topology/nodes/9/gpu_id", O_RDONLY), ENOENT);

    int kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC), render = open("/dev/dri/renderD128", O_RDWR | O_CLOEXEC);
    if (kfd < 0 || render < 0) return 1;
    struct kfd_ioctl_get_version_args version = {0};
    WORKS(ioctl(kfd, AMDKFD_IOC_GET_VERSION, &version));
    int copy = dup(kfd);
    WORKS(ioctl(copy, AMDKFD_IOC_GET_VERSION, &version));
    WORKS(close(copy));
    REFUSED(ioctl(copy, AMDKFD_IOC_GET_VERSION, &version), EBADF);

    // Invalid requests and invalid arguments.
    REFUSED(ioctl(kfd, _IOWR('X', 0x01, long), &version), ENOTTY);
    for (int i = 0; i < 3; i++) REFUSED(ioctl(kfd, _IOWR('K', 0x7b, long[4]), &version), EINVAL);
    REFUSED(ioctl(kfd, _IOWR('K', 0x00, long[4]), &version), EINVAL);
    REFUSED(ioctl(kfd, AMDKFD_IOC_GET_VERSION, NULL), EFAULT);
    REFUSED(ioctl(kfd, AMDKFD_IOC_CREATE_EVENT, (void*)0x10000), EFAULT);
    REFUSED(ioctl(kfd, _IOR('K', 0x01, char), &version), EINVAL);
    REFUSED(ioctl(render, _IOWR('d', 0x40, long), &version), EINVAL);

    // Memory.
    struct kfd_ioctl_acquire_vm_args vm = {render, gpu_id};
    WORKS(ioctl(kfd, AMDKFD_IOC_ACQUIRE_VM, &vm));
    vm.drm_fd = 0;
    REFUSED(ioctl(kfd, AMDKFD_IOC_ACQUIRE_VM, &vm), EINVAL);
    struct kfd_ioctl_alloc_memory_of_gpu_args memory = {
        .va_addr = 0x200000000, .size = 0, .gpu_id = gpu_id, .flags = KFD_IOC_ALLOC_MEM_FLAGS_VRAM};
    REFUSED(ioctl(kfd, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &memory), EINVAL);
    memory.size = 1ull << 46;
    REFUSED(ioctl(kfd, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &memory), ENOMEM);
    memory.size = ~0ull;
    REFUSED(ioctl(kfd, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &memory), EINVAL);
    memory.size = 8192, memory.gpu_id = gpu_id + 1;
    REFUSED(ioctl(kfd, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &memory), EINVAL);
    memory.gpu_id = gpu_id, memory.flags = 0;
    REFUSED(ioctl(kfd, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &memory), EINVAL);
    memory.flags = KFD_IOC_ALLOC_MEM_FLAGS_USERPTR, memory.mmap_offset = 0x10000;
    REFUSED(ioctl(kfd, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &memory), EFAULT);
    memory.flags = KFD_IOC_ALLOC_MEM_FLAGS_VRAM;
    WORKS(ioctl(kfd, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &memory));
    char* mapped = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, render, memory.mmap_offset);
    if (mapped == MAP_FAILED || mapped[0] != 0) return 1;
    mapped[8191] = 1;
    unsigned devices[1] = {gpu_id};
    struct kfd_ioctl_map_memory_to_gpu_args map = {memory.handle, (unsigned long)devices, 1, 0};
    WORKS(ioctl(kfd, AMDKFD_IOC_MAP_MEMORY_TO_GPU, &map));
    struct kfd_ioctl_free_memory_of_gpu_args release = {memory.handle};
    REFUSED(ioctl(kfd, AMDKFD_IOC_FREE_MEMORY_OF_GPU, &release), EBUSY);
    struct kfd_ioctl_unmap_memory_from_gpu_args unmap = {memory.handle, (unsigned long)devices, 1, 0};
    WORKS(ioctl(kfd, AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU, &unmap));
    WORKS(ioctl(kfd, AMDKFD_IOC_FREE_MEMORY_OF_GPU, &release));
    REFUSED(ioctl(kfd, AMDKFD_IOC_FREE_MEMORY_OF_GPU, &release), EINVAL);
    map.handle = 12345;
    map.n_success = 0;
    REFUSED(ioctl(kfd, AMDKFD_IOC_MAP_MEMORY_TO_GPU, &map), EINVAL);

    // Events.
    struct kfd_ioctl_set_event_args nobody = {4000, 0};
    REFUSED(ioctl(kfd, AMDKFD_IOC_SET_EVENT, &nobody), EINVAL);
    struct kfd_ioctl_create_event_args event = {.event_type = 99};
    REFUSED(ioctl(kfd, AMDKFD_IOC_CREATE_EVENT, &event), EINVAL);
    event.event_type = KFD_IOC_EVENT_SIGNAL;
    WORKS(ioctl(kfd, AMDKFD_IOC_CREATE_EVENT, &event));
    struct kfd_event_data data = {.event_id = event.event_id};
    struct kfd_ioctl_wait_events_args wait_for = {(unsigned long)&data, 1, 1, 10, 77};
    WORKS(ioctl(kfd, AMDKFD_IOC_WAIT_EVENTS, &wait_for));
    if (wait_for.wait_result != KFD_IOC_WAIT_RESULT_TIMEOUT) return 1;
    wait_for.events_ptr = 0x10000;
    REFUSED(ioctl(kfd, AMDKFD_IOC_WAIT_EVENTS, &wait_for), EFAULT);

    // Queues.
    struct kfd_ioctl_create_queue_args queue = {
        .ring_size = 4096, .gpu_id = gpu_id, .queue_type = KFD_IOC_QUEUE_TYPE_COMPUTE_AQL, .queue_percentage = 100};
    REFUSED(ioctl(kfd, AMDKFD_IOC_CREATE_QUEUE, &queue), EINVAL);
    queue.ring_base_address = queue.read_pointer_address = queue.write_pointer_address = 0x10000;
    REFUSED(ioctl(kfd, AMDKFD_IOC_CREATE_QUEUE, &queue), EFAULT);
    queue.ring_size = 5000;
    REFUSED(ioctl(kfd, AMDKFD_IOC_CREATE_QUEUE, &queue), EINVAL);
    struct kfd_ioctl_destroy_queue_args destroy = {77, 0};
    REFUSED(ioctl(kfd, AMDKFD_IOC_DESTROY_QUEUE, &destroy), EINVAL);

    // A child may not use what it inherited; what it opens itself is its own.
    pid_t child = fork();
    if (child == 0) {
        REFUSED(ioctl(kfd, AMDKFD_IOC_GET_VERSION, &version), EBADF);
        int own = open("/dev/kfd", O_RDWR | O_CLOEXEC);
        WORKS(ioctl(own, AMDKFD_IOC_GET_VERSION, &version));
        _exit(0);
    }
    int ended = 1;
    waitpid(child, &ended, 0);
    WORKS(ended);
    printf("right: driver\n");
    return 0;
}

// Loads a client as Python loads a framework, and runs a part of it: program LIBRARY PART [LIBRARY PART …]. With the part "global" a
// library is only loaded, for everybody, as ctypes does it with RTLD_GLOBAL.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words) {
    for (int i = 1; i + 1 < count; i += 2) {
        int is_global = !strcmp(words[i + 1], "global");
        void *library = dlopen(words[i], RTLD_NOW | (is_global ? RTLD_GLOBAL : RTLD_LOCAL));
        if (!library) { fprintf(stderr, "%s\n", dlerror()); return 2; }
        if (is_global) continue;
        int (*run)(const char *) = (int (*)(const char *))dlsym(library, "run");
        int line = run(words[i + 1]);
        if (line) { fprintf(stderr, "%s of %s: line %d\n", words[i + 1], words[i], line); return 1; }
    }
    puts("right");
    return 0;
}

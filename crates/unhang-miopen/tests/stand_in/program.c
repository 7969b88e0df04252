// Loads a client as Python loads a framework, and runs a part of it: program LIBRARY PART [LIBRARY PART …]. With the part "global" a
// library is only loaded, for everybody, as ctypes does it with RTLD_GLOBAL. A part after "deep:" is run in a client that is loaded with
// RTLD_DEEPBIND, one after "apart:" in a client with a separate namespace.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words) {
    for (int i = 1; i + 1 < count; i += 2) {
        const char *part = words[i + 1];
        int flags = RTLD_NOW;
        Lmid_t space = LM_ID_BASE;
        if (!strcmp(part, "global")) flags |= RTLD_GLOBAL;
        if (!strncmp(part, "deep:", 5)) flags |= RTLD_DEEPBIND, part += 5;
        if (!strncmp(part, "apart:", 6)) space = LM_ID_NEWLM, part += 6;
        void *library = space == LM_ID_BASE ? dlopen(words[i], flags) : dlmopen(space, words[i], flags);
        if (!library) { fprintf(stderr, "%s\n", dlerror()); return 2; }
        if (flags & RTLD_GLOBAL) continue;
        int (*run)(const char *) = (int (*)(const char *))dlsym(library, "run");
        int line = run(part);
        if (line) { fprintf(stderr, "%s of %s: line %d\n", part, words[i], line); return 1; }
    }
    puts("right");
    return 0;
}

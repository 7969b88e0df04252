// Loads a client as Python loads a framework, and runs a part of it: program LIBRARY PART [LIBRARY PART …].
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **words) {
    for (int i = 1; i + 1 < count; i += 2) {
        void *library = dlopen(words[i], RTLD_NOW | RTLD_LOCAL);
        if (!library) { fprintf(stderr, "%s\n", dlerror()); return 2; }
        int (*run)(const char *) = (int (*)(const char *))dlsym(library, "run");
        int line = run(words[i + 1]);
        if (line) { fprintf(stderr, "%s of %s: line %d\n", words[i + 1], words[i], line); return 1; }
    }
    puts("right");
    return 0;
}

// Asks the whole program for a function of MIOpen's, as programs do that want to know whether MIOpen is there. With an argument that
// library is loaded first.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **words) {
    if (count > 1 && !dlopen(words[1], RTLD_NOW | RTLD_GLOBAL)) {
        fputs(dlerror(), stderr);
        return 2;
    }
    dlerror();
    void *found = dlsym(RTLD_DEFAULT, "miopenCreate");
    const char *error = dlerror();
    puts(found ? "found" : error ? "none" : "none, and no reason");
    return 0;
}

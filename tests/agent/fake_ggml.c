// A ggml registry of made-up devices, in the two libraries that the agent loads; FAKE_GGML says how it misbehaves.
// Compiled twice: with -DBASE as libggml-base.so, without as libggml.so.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct device { const char *name, *description; int type; size_t free, total; const char *id, *registry; };
struct props  { const char *name, *description; size_t free, total; int type; const char *id; _Bool caps[5]; };

static int mode(const char *name) {
    const char *given = getenv("FAKE_GGML");
    return given && !strcmp(given, name);
}

#ifdef BASE

const char *ggml_version(void) { return "9.8.7"; }
const char *ggml_commit(void) { return "abcdef"; }
const char *ggml_backend_dev_name(struct device *d) { return d->name; }
int ggml_backend_dev_type(struct device *d) { return d->type; }
const char *ggml_backend_dev_backend_reg(struct device *d) { return d->registry; }
const char *ggml_backend_reg_name(const char *registry) { return registry; }
void ggml_backend_dev_get_props(struct device *d, struct props *p) {
    memset(p, 0, mode("grown") ? 200 : sizeof *p);  // a later version may write more than 56 bytes
    *p = (struct props) {d->name, d->description, d->free, d->total, mode("layout") ? 77 : d->type, d->id, {0}};
}

#else

static struct device devices[] = {
    {"CUDA0", "NVIDIA GeForce GTX 1060 6GB", 1, 5000ull << 20, 6144ull << 20, "0000:01:00.0", "CUDA"},
    {"BLAS", "OpenBLAS", 3, 0, 0, NULL, "BLAS"},
    {"Vulkan0", "NVIDIA GeForce GTX 1060 6GB", 1, 5000ull << 20, 6144ull << 20, "0000:01:00.0", "Vulkan"},
    {"CPU", "A processor", 0, 1, 1, NULL, "CPU"},
};

static void say_pid(void) {
    const char *path = getenv("FAKE_PID");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "%d\n", (int) getpid());
    fclose(file);
}

void ggml_backend_load_all_from_path(const char *folder) {
    say_pid();
    fprintf(stderr, "load_backend: looked in %s at %p\n", folder, (void *) devices);
    if (mode("chatty")) { printf("{\"entries\": []}\n"); fflush(stdout); }
    if (mode("abort")) { fprintf(stderr, "ggml_abort: boom\n"); abort(); }
    if (mode("segfault")) *(volatile int *) 8 = 1;
    if (mode("exit")) exit(3);
    if (mode("hang")) for (;;) pause();
    if (mode("none")) fprintf(stderr, "ggml_cuda_init: failed to initialize CUDA: no device\n");
}
size_t ggml_backend_dev_count(void) { return mode("none") ? 0 : sizeof devices / sizeof *devices; }
struct device *ggml_backend_dev_get(size_t n) { return &devices[n]; }

#endif

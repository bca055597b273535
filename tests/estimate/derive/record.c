// Records each graph that llama.cpp's scheduler hands to its allocator when it only asks for sizes.
//
// Built against ggml's headers and loaded with LD_PRELOAD; writes one JSON object per call to the file that the
// environment variable RECORD names. A tensor is
// [name, op, type, bytes, ne, nb, flags, external, view source, view offset, sources], sources by number.
// With the environment variable GIVE_UP it says of every FlashAttention that no device computes it: llama.cpp then
// gives it up after the cache was laid out for it, as where a layer's would be computed on another device.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-impl.h"
#include "ggml.h"

struct table {
    const struct ggml_tensor ** keys;
    int * numbers;
    size_t size;
    const struct ggml_tensor ** order;
    int count;
};

static int number_of(struct table * table, const struct ggml_tensor * tensor) {
    if (tensor == NULL) {
        return -1;
    }
    size_t slot = ((size_t) tensor >> 4) % table->size;
    while (table->keys[slot] != NULL && table->keys[slot] != tensor) {
        slot = (slot + 1) % table->size;
    }
    if (table->keys[slot] == NULL) {
        table->keys[slot] = tensor;
        table->numbers[slot] = table->count;
        table->order[table->count++] = tensor;
    }
    return table->numbers[slot];
}

static void write_tensor(FILE * file, struct table * table, const struct ggml_tensor * t) {
    const int external = t->data != NULL || t->buffer != NULL;
    fprintf(file, "[\"%s\",\"%s\",%d,%zu,[%lld,%lld,%lld,%lld],[%zu,%zu,%zu,%zu],%d,%d,%d,%zu,[", t->name,
            ggml_op_desc(t), (int) t->type, ggml_nbytes(t), (long long) t->ne[0], (long long) t->ne[1],
            (long long) t->ne[2], (long long) t->ne[3], t->nb[0], t->nb[1], t->nb[2], t->nb[3], t->flags, external,
            number_of(table, t->view_src), t->view_offs);
    const char * comma = "";
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        if (t->src[i] != NULL) {
            fprintf(file, "%s%d", comma, number_of(table, t->src[i]));
            comma = ",";
        }
    }
    fprintf(file, "]]");
}

static void write_numbers(FILE * file, const char * name, struct table * table, struct ggml_tensor ** tensors,
                          const int * places, int count) {
    fprintf(file, "\"%s\":[", name);
    for (int i = 0; i < count; i++) {
        fprintf(file, "%s[%d,%d]", i ? "," : "", number_of(table, tensors[i]), places ? places[i] : 0);
    }
    fprintf(file, "],");
}

static void record(const struct ggml_cgraph * graph, const int * node_places, const int * leaf_places,
                   const size_t * sizes) {
    const char * path = getenv("RECORD");
    FILE * file = path ? fopen(path, "a") : NULL;
    if (file == NULL) {
        return;
    }
    const size_t most = 16 * (size_t) (graph->n_nodes + graph->n_leafs + 16);
    struct table table = {calloc(most, sizeof(void *)), calloc(most, sizeof(int)), most,
                          calloc(most, sizeof(void *)), 0};
    fprintf(file, "{\"sizes\":[%zu,%zu],", sizes[0], sizes[1]);
    write_numbers(file, "leafs", &table, graph->leafs, leaf_places, graph->n_leafs);
    write_numbers(file, "nodes", &table, graph->nodes, node_places, graph->n_nodes);
    fprintf(file, "\"tensors\":[");
    for (int i = 0; i < table.count; i++) {  // grows while sources are met
        fprintf(file, i ? "," : "");
        write_tensor(file, &table, table.order[i]);
    }
    fprintf(file, "]}\n");
    fclose(file);
    free(table.keys);
    free(table.numbers);
    free(table.order);
}

void ggml_gallocr_reserve_n_size(ggml_gallocr_t allocator, struct ggml_cgraph * graph, const int * node_places,
                                 const int * leaf_places, size_t * sizes) {
    void (*next)(ggml_gallocr_t, struct ggml_cgraph *, const int *, const int *, size_t *) =
        dlsym(RTLD_NEXT, "ggml_gallocr_reserve_n_size");
    size_t found[16] = {0};
    next(allocator, graph, node_places, leaf_places, sizes ? sizes : found);
    record(graph, node_places, leaf_places, sizes ? sizes : found);
}

ggml_backend_t ggml_backend_sched_get_tensor_backend(ggml_backend_sched_t scheduler, struct ggml_tensor * tensor) {
    if (tensor->op == GGML_OP_FLASH_ATTN_EXT && getenv("GIVE_UP") != NULL) {
        return NULL;
    }
    ggml_backend_t (*next)(ggml_backend_sched_t, struct ggml_tensor *) =
        dlsym(RTLD_NEXT, "ggml_backend_sched_get_tensor_backend");
    return next(scheduler, tensor);
}

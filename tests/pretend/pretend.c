#include "pretend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t) 1 << 20)
#define TEXT_MAX 16384

// --- reading

static char *read_file(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return NULL;
    char  *text = calloc(1, TEXT_MAX);
    size_t got  = text ? fread(text, 1, TEXT_MAX - 1, file) : 0;
    fclose(file);
    if (text) text[got] = 0;
    return text;
}

static char *trim(char *text) {
    while (*text == ' ' || *text == '\t') text++;
    char *end = text + strlen(text);
    while (end > text && strchr(" \t\r\n", end[-1])) *--end = 0;
    return text;
}

static void set_text(char *target, size_t size, const char *value) {
    snprintf(target, size, "%s", value);
}

static void set_lie(struct pretend_card *card, char *word) {
    static const struct { const char *word; unsigned lie; } known[] = {
        {"other", LIE_OTHER}, {"cpu", LIE_CPU},   {"oom", LIE_OOM},   {"hang", LIE_HANG},
        {"crash", LIE_CRASH}, {"lost", LIE_LOST}, {"nvml", LIE_NVML}, {"stray", LIE_STRAY},
    };
    char *value = strchr(word, '=');
    if (value) {
        *value++ = 0;
        if (!strcmp(word, "free")) card->free = strtoull(value, NULL, 10) * MIB;
        else if (!strcmp(word, "slow")) card->slow_seconds = (unsigned) strtoul(value, NULL, 10);
        else if (!strcmp(word, "xid")) card->xid = (unsigned) strtoul(value, NULL, 10);
        else if (!strcmp(word, "ecc")) card->ecc = (unsigned) strtoul(value, NULL, 10), card->counts_ecc = true;
        else fprintf(stderr, "pretend: unknown lie %s\n", word);
        return;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(word, known[i].word)) { card->lies |= known[i].lie; return; }
    fprintf(stderr, "pretend: unknown lie %s\n", word);
}

static void set_field(struct pretend_machine *machine, struct pretend_card *card, const char *key, const char *value) {
    if (!strcmp(key, "driver")) set_text(machine->driver, sizeof machine->driver, value);
    else if (!strcmp(key, "cuda")) {
        int major = 0, minor = 0;
        sscanf(value, "%d.%d", &major, &minor);
        machine->cuda_version = 1000 * major + 10 * minor;
    }
    else if (!strcmp(key, "name")) set_text(card->name, sizeof card->name, value);
    else if (!strcmp(key, "uuid")) set_text(card->uuid, sizeof card->uuid, value);
    else if (!strcmp(key, "pci")) set_text(card->pci, sizeof card->pci, value);
    else if (!strcmp(key, "type")) card->integrated = !strcmp(value, "igpu");
    else if (!strcmp(key, "total")) card->total = strtoull(value, NULL, 10) * MIB;
    else if (!strcmp(key, "free")) card->free = strtoull(value, NULL, 10) * MIB;
    else if (!strcmp(key, "cc")) sscanf(value, "%d.%d", &card->cc_major, &card->cc_minor);
    else if (!strcmp(key, "bus")) card->bus_bits = (unsigned) strtoul(value, NULL, 10);
    else if (!strcmp(key, "clock")) card->memory_mhz = (unsigned) strtoul(value, NULL, 10);
    else if (!strcmp(key, "pcie"))
        sscanf(value, "%ux%u/%ux%u", &card->link[0], &card->link[1], &card->link[2], &card->link[3]);
    else if (!strcmp(key, "switch")) card->switch_ = (unsigned) strtoul(value, NULL, 10);
    else if (!strcmp(key, "backends")) {
        card->cuda   = strstr(value, "cuda") != NULL;
        card->vulkan = strstr(value, "vulkan") != NULL;
    }
    else fprintf(stderr, "pretend: unknown key %s\n", key);
}

// One card a line: "name=NVIDIA X; uuid=GPU-...; pci=0000:01:00.0; ..."; a line without a name describes the machine.
static void read_cards(struct pretend_machine *machine, char *text) {
    char *next_line = NULL;
    for (char *line = strtok_r(text, "\n", &next_line); line; line = strtok_r(NULL, "\n", &next_line)) {
        line = trim(line);
        if (!*line || *line == '#') continue;
        struct pretend_card card = {0};
        char *next_field = NULL;
        for (char *field = strtok_r(line, ";", &next_field); field; field = strtok_r(NULL, ";", &next_field)) {
            char *value = strchr(field, '=');
            if (!value) continue;
            *value++ = 0;
            set_field(machine, &card, trim(field), trim(value));
        }
        if (card.name[0] && machine->cards < PRETEND_MAX) machine->card[machine->cards++] = card;
    }
}

// One rule a line: "<uuid, pci address or *> <lie> <lie> ...".
static void read_lies(struct pretend_machine *machine, char *text) {
    char *next_line = NULL;
    for (char *line = strtok_r(text, "\n", &next_line); line; line = strtok_r(NULL, "\n", &next_line)) {
        char *next_word = NULL, *selector = strtok_r(line, " \t\r", &next_word);
        if (!selector || *selector == '#') continue;
        for (char *word = strtok_r(NULL, " \t\r", &next_word); word; word = strtok_r(NULL, " \t\r", &next_word))
            for (size_t i = 0; i < machine->cards; i++) {
                struct pretend_card *card = &machine->card[i];
                if (strcmp(selector, "*") && strcmp(selector, card->uuid) && strcmp(selector, card->pci)) continue;
                char copy[64];
                set_text(copy, sizeof copy, word);
                set_lie(card, copy);
            }
    }
}

void pretend_read(struct pretend_machine *machine) {
    memset(machine, 0, sizeof *machine);
    const char *given = getenv("PADDOCK_PRETEND_GPUS");
    char *text = given && strchr(given, '=') ? strdup(given) : read_file(given && *given ? given : "/etc/pretend-gpus");
    machine->toolkit = given || !access("/run/pretend-toolkit", F_OK);
    if (text) read_cards(machine, text);
    free(text);
    const char *path = getenv("PADDOCK_PRETEND_LIES");
    text = read_file(path && *path ? path : "/models/.pretend-lies");
    if (text) read_lies(machine, text);
    free(text);
}

// --- seeing

static int by_pci(const struct pretend_machine *machine, size_t a, size_t b) {
    return strcmp(machine->card[a].pci, machine->card[b].pci);
}

static int by_speed(const struct pretend_machine *machine, size_t a, size_t b) {
    const struct pretend_card *x = &machine->card[a], *y = &machine->card[b];
    const size_t left = (size_t) x->bus_bits * x->memory_mhz, right = (size_t) y->bus_bits * y->memory_mhz;
    return left == right ? by_pci(machine, a, b) : left > right ? -1 : 1;
}

static void sort(const struct pretend_machine *machine, size_t *order, int count,
                 int (*compare)(const struct pretend_machine *, size_t, size_t)) {
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0 && compare(machine, order[j - 1], order[j]) > 0; j--) {
            const size_t kept = order[j];
            order[j] = order[j - 1];
            order[j - 1] = kept;
        }
}

static bool taken(const size_t *order, int count, size_t card) {
    for (int i = 0; i < count; i++)
        if (order[i] == card) return true;
    return false;
}

static bool number(const char *text, unsigned long *value) {
    char *end = NULL;
    *value = strtoul(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end;
}

int pretend_injected(const struct pretend_machine *machine, size_t order[PRETEND_MAX]) {
    const char *asked = getenv("NVIDIA_VISIBLE_DEVICES");
    if (!asked || !*asked || !strcmp(asked, "void") || !machine->toolkit) return -1;
    if (!strcmp(asked, "none")) return 0;
    size_t all[PRETEND_MAX];
    int have = 0, count = 0;
    for (size_t i = 0; i < machine->cards; i++)
        if (machine->card[i].uuid[0]) all[have++] = i;
    sort(machine, all, have, by_pci);
    char *copy = strdup(asked), *next = NULL;
    for (char *entry = strtok_r(copy, ",", &next); entry; entry = strtok_r(NULL, ",", &next)) {
        static const char kind[] = "runtime.nvidia.com/gpu=";
        if (!strncmp(entry, kind, sizeof kind - 1)) entry += sizeof kind - 1;
        unsigned long index;
        int found = 0;
        for (int i = 0; i < have; i++) {
            const bool wanted = !strcmp(entry, "all") || !strcmp(entry, machine->card[all[i]].uuid)
                             || (number(entry, &index) && index == (unsigned long) i);
            if (!wanted) continue;
            found = 1;
            if (!taken(order, count, all[i])) order[count++] = all[i];
        }
        if (!found && strcmp(entry, "all")) {  // the real one refuses to start the container
            fprintf(stderr, "pretend: no such device: %s\n", entry);
            count = -1;
            break;
        }
    }
    free(copy);
    if (count > 0) sort(machine, order, count, by_pci);
    return count;
}

// The entry's card among those in `all`, or -1: an index, or a UUID cut short as long as only one card fits.
static int cuda_entry(const struct pretend_machine *machine, const size_t *all, int have, const char *entry) {
    unsigned long index;
    if (number(entry, &index)) return index < (unsigned long) have ? (int) index : -1;
    int found = -1;
    if (strncmp(entry, "GPU-", 4)) return -1;
    for (int i = 0; i < have; i++)
        if (!strncmp(machine->card[all[i]].uuid, entry, strlen(entry))) {
            if (found >= 0) return -1;
            found = i;
        }
    return found;
}

int pretend_cuda(const struct pretend_machine *machine, size_t order[PRETEND_MAX]) {
    size_t injected[PRETEND_MAX], all[PRETEND_MAX];
    const int given = pretend_injected(machine, injected);
    if (given < 0) return -1;
    int have = 0, count = 0;
    for (int i = 0; i < given; i++)
        if (machine->card[injected[i]].cuda && !(machine->card[injected[i]].lies & LIE_LOST)) all[have++] = injected[i];
    const char *sorting = getenv("CUDA_DEVICE_ORDER"), *asked = getenv("CUDA_VISIBLE_DEVICES");
    sort(machine, all, have, sorting && !strcmp(sorting, "PCI_BUS_ID") ? by_pci : by_speed);
    if (!asked) {
        memcpy(order, all, sizeof all[0] * (size_t) have);
        return have;
    }
    char *copy = strdup(asked), *next = NULL;
    for (char *entry = strtok_r(copy, ",", &next); entry; entry = strtok_r(NULL, ",", &next)) {
        const int found = cuda_entry(machine, all, have, trim(entry));
        // The driver hides whatever comes after an entry that it can't use.
        if (found < 0 || taken(order, count, all[found])) break;
        order[count++] = all[found];
    }
    free(copy);
    return count;
}

int pretend_vulkan(const struct pretend_machine *machine, size_t order[PRETEND_MAX]) {
    size_t injected[PRETEND_MAX], all[PRETEND_MAX];
    const int given = pretend_injected(machine, injected);
    int have = 0, count = 0;
    for (size_t i = 0; i < machine->cards; i++) {
        const struct pretend_card *card = &machine->card[i];
        const bool there = !card->uuid[0] || taken(injected, given, i);
        if (card->vulkan && there && !(card->lies & LIE_LOST)) all[have++] = i;
    }
    const char *asked = getenv("GGML_VK_VISIBLE_DEVICES");
    if (!asked) {
        memcpy(order, all, sizeof all[0] * (size_t) have);
        return have;
    }
    char *copy = strdup(asked), *next = NULL;
    for (char *entry = strtok_r(copy, ", ", &next); entry; entry = strtok_r(NULL, ", ", &next)) {
        unsigned long index;
        if (!number(entry, &index)) break;  // the real one stops reading here
        if (index >= (unsigned long) have) {
            fprintf(stderr, "ggml_vulkan: Invalid device index %lu in GGML_VK_VISIBLE_DEVICES.\n", index);
            count = -1;
            break;
        }
        if (count < PRETEND_MAX) order[count++] = all[index];
    }
    free(copy);
    return count;
}

// libnvidia-ml.so.1 for the cards of pretend.h: the calls that nvidia-ml-py makes for an inventory, with the real layouts.
//
// It shows the NVIDIA cards that the container toolkit gave to the container, whatever CUDA_VISIBLE_DEVICES says.
#include "pretend.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, LIBRARY_NOT_FOUND = 12, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

#define EXPORT __attribute__((visibility("default")))
#define MEMORY_VERSION_2 0x02000028u
#define CLOCK_MEMORY 2

struct pci_info {
    char     bus_id_short[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char     bus_id[32];
};
struct memory_1 { unsigned long long total, free, used; };
struct memory_2 { unsigned version; unsigned long long total, reserved, free, used; };

typedef const struct pretend_card *handle;

static struct pretend_machine machine;
static size_t order[PRETEND_MAX];
static int    count;
static int    users;

// Every call but a few starts with this: the card must be one of ours, and still on the bus.
#define CHECK(card)                                          \
    do {                                                     \
        if (!users) return UNINITIALIZED;                    \
        if (!known(card)) return INVALID_ARGUMENT;           \
        if ((card)->lies & LIE_LOST) return GPU_IS_LOST;     \
        if ((card)->lies & LIE_NVML) return UNKNOWN;         \
    } while (0)

static int known(handle card) {
    for (int i = 0; i < count; i++)
        if (card == &machine.card[order[i]]) return 1;
    return 0;
}

static int text(char *target, unsigned size, const char *value) {
    if (!target) return INVALID_ARGUMENT;
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(target, value);
    return SUCCESS;
}

static void long_bus_id(handle card, char target[32]) {
    snprintf(target, 32, "0000%s", card->pci);  // the domain has eight digits here, four in ggml
    for (char *at = target; *at; at++) *at = (char) toupper((unsigned char) *at);
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void) flags;
    if (users) return users++, SUCCESS;
    pretend_read(&machine);
    for (size_t i = 0; i < machine.cards; i++)
        if (machine.card[i].lies & LIE_NVML) return DRIVER_NOT_LOADED;
    count = pretend_injected(&machine, order);
    if (count <= 0) return count = 0, DRIVER_NOT_LOADED;
    users = 1;
    return SUCCESS;
}

EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT int nvmlShutdown(void) {
    if (!users) return UNINITIALIZED;
    users--;
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(int error) {
    switch (error) {
        case SUCCESS: return "Success";
        case UNINITIALIZED: return "Uninitialized";
        case INVALID_ARGUMENT: return "Invalid Argument";
        case NOT_SUPPORTED: return "Not Supported";
        case NOT_FOUND: return "Not Found";
        case INSUFFICIENT_SIZE: return "Insufficient Size";
        case DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case TIMEOUT: return "Timeout";
        case LIBRARY_NOT_FOUND: return "NVML Shared Library Not Found";
        case FUNCTION_NOT_FOUND: return "Function Not Found";
        case GPU_IS_LOST: return "GPU is lost";
        case VERSION_MISMATCH: return "Argument Version Mismatch";
        default: return "Unknown Error";
    }
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    return users ? text(version, size, machine.driver) : UNINITIALIZED;
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned size) {
    char full[64];
    snprintf(full, sizeof full, "%d.%s", machine.cuda_version / 1000, machine.driver);
    return users ? text(version, size, full) : UNINITIALIZED;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (!users) return UNINITIALIZED;
    *version = machine.cuda_version;
    return SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

EXPORT int nvmlDeviceGetCount_v2(unsigned *devices) {
    if (!users) return UNINITIALIZED;
    *devices = (unsigned) count;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *card) {
    if (!users) return UNINITIALIZED;
    if (index >= (unsigned) count) return INVALID_ARGUMENT;
    *card = &machine.card[order[index]];
    return (*card)->lies & LIE_LOST ? GPU_IS_LOST : SUCCESS;
}

static int find(int (*matches)(handle, const char *), const char *wanted, handle *card) {
    if (!users) return UNINITIALIZED;
    for (int i = 0; i < count; i++) {
        *card = &machine.card[order[i]];
        if (matches(*card, wanted)) return (*card)->lies & LIE_LOST ? GPU_IS_LOST : SUCCESS;
    }
    return NOT_FOUND;
}

static int has_uuid(handle card, const char *uuid) { return !strcmp(card->uuid, uuid); }

static int has_bus_id(handle card, const char *bus_id) {
    char own[32], upper[32];
    long_bus_id(card, own);
    size_t i = 0;
    for (; bus_id[i] && i < sizeof upper - 1; i++) upper[i] = (char) toupper((unsigned char) bus_id[i]);
    upper[i] = 0;
    return !strcmp(own, upper) || !strcmp(own + 4, upper);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, handle *card) { return find(has_uuid, uuid, card); }

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, handle *card) { return find(has_bus_id, bus_id, card); }

EXPORT int nvmlDeviceGetName(handle card, char *name, unsigned size) {
    CHECK(card);
    return text(name, size, card->name);
}

EXPORT int nvmlDeviceGetUUID(handle card, char *uuid, unsigned size) {
    CHECK(card);
    return text(uuid, size, card->uuid);
}

EXPORT int nvmlDeviceGetIndex(handle card, unsigned *index) {
    CHECK(card);
    for (int i = 0; i < count; i++)
        if (card == &machine.card[order[i]]) *index = (unsigned) i;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMinorNumber(handle card, unsigned *minor) { return nvmlDeviceGetIndex(card, minor); }

EXPORT int nvmlDeviceGetPciInfo_v3(handle card, struct pci_info *info) {
    CHECK(card);
    memset(info, 0, sizeof *info);
    long_bus_id(card, info->bus_id);
    for (size_t i = 0; info->bus_id[i + 4] && i < sizeof info->bus_id_short - 1; i++)
        info->bus_id_short[i] = info->bus_id[i + 4];
    sscanf(info->bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    return SUCCESS;
}

// Who has what, read anew after a while: a look at all cards asks for it dozens of times.
static const struct pretend_user *who(int *there) {
    static struct pretend_user seen[PRETEND_USERS];
    static int                 entries;
    static struct timespec     read_at;
    struct timespec            now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const long long age_ms = (now.tv_sec - read_at.tv_sec) * 1000ll + (now.tv_nsec - read_at.tv_nsec) / 1000000;
    if (!read_at.tv_sec || age_ms > 50) entries = pretend_users(seen, PRETEND_USERS), read_at = now;
    *there = entries;
    return seen;
}

static size_t left(handle card) {
    int                        entries;
    const struct pretend_user *users = who(&entries);
    size_t                     used  = 0;
    for (int i = 0; i < entries; i++) used += strcmp(users[i].pci, card->pci) ? 0 : users[i].bytes;
    return card->free > used ? card->free - used : 0;
}

EXPORT int nvmlDeviceGetMemoryInfo(handle card, struct memory_1 *memory) {
    CHECK(card);
    const size_t free = left(card);
    *memory = (struct memory_1) {card->total, free, card->total - free};
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(handle card, struct memory_2 *memory) {
    CHECK(card);
    if (memory->version != MEMORY_VERSION_2) return VERSION_MISMATCH;
    // The second version tells apart what the driver keeps for itself; on an idle card that is all.
    const size_t free = left(card);
    *memory = (struct memory_2) {memory->version, card->total, card->total - card->free, free, card->free - free};
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(handle card, int *major, int *minor) {
    CHECK(card);
    *major = card->cc_major;
    *minor = card->cc_minor;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryBusWidth(handle card, unsigned *bits) {
    CHECK(card);
    *bits = card->bus_bits;
    return card->bus_bits ? SUCCESS : NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetMaxClockInfo(handle card, int clock, unsigned *mhz) {
    CHECK(card);
    if (clock != CLOCK_MEMORY || !card->memory_mhz) return NOT_SUPPORTED;
    *mhz = card->memory_mhz;
    return SUCCESS;
}

static int told(handle card, int part, unsigned *value) {
    CHECK(card);
    *value = card->link[part];
    return *value ? SUCCESS : NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(handle card, unsigned *value) { return told(card, 0, value); }
EXPORT int nvmlDeviceGetCurrPcieLinkWidth(handle card, unsigned *value) { return told(card, 1, value); }
EXPORT int nvmlDeviceGetMaxPcieLinkGeneration(handle card, unsigned *value) { return told(card, 2, value); }
EXPORT int nvmlDeviceGetMaxPcieLinkWidth(handle card, unsigned *value) { return told(card, 3, value); }

// Cards behind one switch read each other's memory; the way between others goes through the host bridge.
static int together(handle a, handle b) { return a->switch_ && a->switch_ == b->switch_; }

EXPORT int nvmlDeviceGetTopologyCommonAncestor(handle a, handle b, int *level) {
    CHECK(a);
    CHECK(b);
    *level = together(a, b) ? 10 : 30;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetP2PStatus(handle a, handle b, int way, int *status) {
    CHECK(a);
    CHECK(b);
    *status = way == 2 ? 5 : together(a, b) ? 0 : 1;  // NVLink is not supported by any of these
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMigMode(handle card, unsigned *current, unsigned *pending) {
    (void) current, (void) pending;
    CHECK(card);
    return NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetDisplayActive(handle card, int *active) {
    CHECK(card);
    *active = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetDisplayMode(handle card, int *mode) { return nvmlDeviceGetDisplayActive(card, mode); }

struct process {
    unsigned           pid;
    unsigned long long bytes;
    unsigned           gpu_instance, compute_instance;
};

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(handle card, unsigned *processes, struct process *list) {
    CHECK(card);
    int                        entries;
    const struct pretend_user *users = who(&entries);
    unsigned                   there = 0;
    const unsigned             room  = list ? *processes : 0;
    for (int i = 0; i < entries; i++) {
        if (strcmp(users[i].pci, card->pci)) continue;
        if (there < room) list[there] = (struct process) {(unsigned) users[i].pid, users[i].bytes, ~0u, ~0u};
        there++;
    }
    *processes = there;
    return there > room ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(handle card, unsigned *processes, struct process *list) {
    (void) list;
    CHECK(card);
    *processes = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTotalEccErrors(handle card, int kind, int counter, unsigned long long *errors) {
    (void) kind, (void) counter;
    CHECK(card);
    *errors = card->ecc;
    return card->counts_ecc ? SUCCESS : NOT_SUPPORTED;
}

// --- events

#define XID 8ull
#define SLICE_US 200000

struct event {
    handle             device;
    unsigned long long type, data;
    unsigned           gpu_instance, compute_instance;
};

static int listeners;

EXPORT int nvmlEventSetCreate(void **set) {
    if (!users) return UNINITIALIZED;
    *set = &listeners;
    return SUCCESS;
}

EXPORT int nvmlEventSetFree(void *set) { return set == &listeners ? SUCCESS : INVALID_ARGUMENT; }

EXPORT int nvmlDeviceGetSupportedEventTypes(handle card, unsigned long long *types) {
    CHECK(card);
    *types = XID;
    return SUCCESS;
}

EXPORT int nvmlDeviceRegisterEvents(handle card, unsigned long long types, void *set) {
    CHECK(card);
    return types == XID && set == &listeners ? SUCCESS : INVALID_ARGUMENT;
}

// Lies may change while a process watches: take over the new ones, and give the card with an error that is new, if any.
static handle read_again(void) {
    struct pretend_machine now;
    pretend_read(&now);
    handle failed = NULL;
    for (int i = 0; i < count; i++) {
        struct pretend_card *card = &machine.card[order[i]];
        for (size_t j = 0; j < now.cards; j++) {
            const struct pretend_card *other = &now.card[j];
            if (strcmp(card->uuid, other->uuid)) continue;
            if (other->xid && other->xid != card->xid) failed = card;
            card->lies = other->lies, card->free = other->free, card->xid = other->xid, card->ecc = other->ecc;
            card->counts_ecc = other->counts_ecc;
        }
    }
    return failed;
}

EXPORT int nvmlEventSetWait_v2(void *set, struct event *event, unsigned milliseconds) {
    if (!users) return UNINITIALIZED;
    if (set != &listeners) return INVALID_ARGUMENT;
    for (unsigned long long left_us = milliseconds * 1000ull;;) {
        handle failed = read_again();
        if (failed) {
            *event = (struct event) {failed, XID, failed->xid, 0, 0};
            return SUCCESS;
        }
        if (!left_us) return TIMEOUT;
        const unsigned long long slice = left_us < SLICE_US ? left_us : SLICE_US;
        usleep((useconds_t) slice);
        left_us -= slice;
    }
}

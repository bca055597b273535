// A ggml backend that has the cards of pretend.h and computes on the CPU. Built twice: as CUDA and as Vulkan.
//
// Devices are renumbered after the visibility variables are applied, as the real backends do. A buffer is host memory that is
// marked with the card's own buffer type, so that llama.cpp accounts it to the card.
#include "pretend.h"

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml-impl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef PRETEND_VULKAN
#define REGISTRY "Vulkan"
#define COUNT pretend_vulkan
#define OUT_OF_MEMORY "ggml_vulkan: Device memory allocation of %.2f MiB failed on device %d\n"
#else
#define REGISTRY "CUDA"
#define COUNT pretend_cuda
// Worded as the real backend words it: logs are read for it.
#define OUT_OF_MEMORY \
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating %.2f MiB on device %d: cudaMalloc failed: out of memory\n"
#endif

#define CONTEXT ((size_t) 448 << 20)  // bytes of a card that whoever uses it takes, about as of a real one

struct seat {  // one device as this process sees it
    char                            label[32];
    int                             index;
    const struct pretend_card      *asked;   // whose behaviour it has
    const struct pretend_card      *shown;   // whom it says to be; another one only when it lies
    const struct pretend_card      *holder;  // whose memory it takes
    char                            pci[32];
    _Atomic size_t                  used;
    atomic_flag                     waited;
    struct ggml_backend_buffer_type buffers;
    struct ggml_backend_device      device;
};

static struct pretend_machine machine;
static struct ggml_backend_reg registry;
static struct seat seats[PRETEND_MAX];
static size_t      seat_count;

static ggml_backend_dev_t cpu(void) {
    static ggml_backend_dev_t found;
    if (!found) found = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    return found;
}

// --- buffers

static void (*free_host_buffer)(ggml_backend_buffer_t);

// What the driver shows: buffers, and from the first use of the card on a context.
static void tell_driver(struct seat *seat) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one_at_a_time);
    pretend_account(seat->holder->pci, CONTEXT + atomic_load(&seat->used));
    pthread_mutex_unlock(&one_at_a_time);
}

static void give_back(struct seat *seat, size_t size) {
    atomic_fetch_sub(&seat->used, size);
    tell_driver(seat);
}

static void free_buffer(ggml_backend_buffer_t buffer) {
    give_back(buffer->buft->context, buffer->size);
    free_host_buffer(buffer);
}

static const char *buffers_name(ggml_backend_buffer_type_t type) {
    return ((struct seat *) type->context)->label;
}

// What is free beside other processes' memory and what this one has already.
static size_t left(const struct seat *seat, size_t used) {
    const size_t taken = used + pretend_used_by_others(seat->holder->pci);
    return seat->shown->free > taken ? seat->shown->free - taken : 0;
}

static bool reserve(struct seat *seat, size_t size) {
    size_t used = atomic_load(&seat->used);
    do {
        if (size > left(seat, used)) return false;
    } while (!atomic_compare_exchange_weak(&seat->used, &used, used + size));
    tell_driver(seat);
    return true;
}

static ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t size) {
    struct seat *seat = type->context;
    if (seat->asked->slow_seconds && !atomic_flag_test_and_set(&seat->waited)) sleep(seat->asked->slow_seconds);
    if (seat->asked->lies & LIE_OOM || !reserve(seat, size)) {
        GGML_LOG_ERROR(OUT_OF_MEMORY, (double) size / (1 << 20), seat->index);
        return NULL;
    }
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_type()->iface.alloc_buffer(type, size);
    if (!buffer) {
        give_back(seat, size);
        return NULL;
    }
    free_host_buffer = buffer->iface.free_buffer;
    buffer->iface.free_buffer = free_buffer;
    return buffer;
}

static size_t alignment(ggml_backend_buffer_type_t type) {
    (void) type;  // that of the memory below
    return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
}

// --- device

static struct seat *seat_of(ggml_backend_dev_t device) {
    return device->context;
}

static const char *device_name(ggml_backend_dev_t device) {
    return seat_of(device)->label;
}

static const char *device_description(ggml_backend_dev_t device) {
    return seat_of(device)->shown->name;
}

static void device_memory(ggml_backend_dev_t device, size_t *free, size_t *total) {
    struct seat *seat = seat_of(device);
    tell_driver(seat);
    *free  = left(seat, atomic_load(&seat->used));
    *total = seat->shown->total;
}

static enum ggml_backend_dev_type device_type(ggml_backend_dev_t device) {
    return seat_of(device)->shown->integrated ? GGML_BACKEND_DEVICE_TYPE_IGPU : GGML_BACKEND_DEVICE_TYPE_GPU;
}

static void device_props(ggml_backend_dev_t device, struct ggml_backend_dev_props *props) {
    props->name        = device_name(device);
    props->description = device_description(device);
    props->type        = device_type(device);
    props->device_id   = seat_of(device)->pci;
    props->caps        = (struct ggml_backend_dev_caps) {.mmap_support = true};
    device_memory(device, &props->memory_free, &props->memory_total);
}

static ggml_backend_buffer_type_t device_buffers(ggml_backend_dev_t device) {
    return seat_of(device)->asked->lies & LIE_CPU ? ggml_backend_cpu_buffer_type() : &seat_of(device)->buffers;
}

static bool device_takes_op(ggml_backend_dev_t device, const struct ggml_tensor *op) {
    (void) device;
    return ggml_backend_dev_supports_op(cpu(), op);
}

static bool device_takes_buffers(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    return type == device_buffers(device);
}

// --- stream

struct stream {
    ggml_backend_t inner;
    struct seat   *seat;
};

static const char *stream_name(ggml_backend_t backend) {
    return ((struct stream *) backend->context)->seat->label;
}

static void stream_free(ggml_backend_t backend) {
    struct stream *stream = backend->context;
    ggml_backend_free(stream->inner);
    free(stream);
    free(backend);
}

static enum ggml_status stream_compute(ggml_backend_t backend, struct ggml_cgraph *graph) {
    return ggml_backend_graph_compute(((struct stream *) backend->context)->inner, graph);
}

static ggml_backend_t device_open(ggml_backend_dev_t device, const char *params) {
    static ggml_guid guid = {0x70, 0x72, 0x65, 0x74, 0x65, 0x6e, 0x64, 0x2d, 0x67, 0x70, 0x75, 0x2d, 0x30, 0x30, 0x30, 0x31};
    (void) params;
    struct stream       *stream  = calloc(1, sizeof *stream);
    struct ggml_backend *backend = calloc(1, sizeof *backend);
    if (!stream || !backend) abort();
    stream->inner = ggml_backend_dev_init(cpu(), NULL);
    stream->seat  = seat_of(device);
    backend->guid    = &guid;
    backend->device  = device;
    backend->context = stream;
    backend->iface.get_name      = stream_name;
    backend->iface.free          = stream_free;
    backend->iface.graph_compute = stream_compute;
    return backend;
}

static void set_threads(ggml_backend_t backend, int threads) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(cpu());
    ggml_backend_set_n_threads_t inner =
        (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    if (inner) inner(((struct stream *) backend->context)->inner, threads);
}

// --- registry

static const char *registry_name(ggml_backend_reg_t reg) {
    (void) reg;
    return REGISTRY;
}

static size_t registry_count(ggml_backend_reg_t reg) {
    (void) reg;
    return seat_count;
}

static ggml_backend_dev_t registry_device(ggml_backend_reg_t reg, size_t index) {
    (void) reg;
    return &seats[index].device;
}

static void *registry_function(ggml_backend_reg_t reg, const char *name) {
    (void) reg;
    return strcmp(name, "ggml_backend_set_n_threads") ? NULL : (void *) set_threads;
}

static bool pinned(void) {
#ifdef PRETEND_VULKAN
    return getenv("GGML_VK_VISIBLE_DEVICES") != NULL;
#else
    return getenv("CUDA_VISIBLE_DEVICES") != NULL;
#endif
}

// Whom the device says to be. A driver that ignores the pin is only noticed by a process that has one.
static const struct pretend_card *shown_by(const struct pretend_card *asked) {
    static struct pretend_card stranger = {.name = "Another GPU", .pci = "0000:7f:00.0"};
    if (!(asked->lies & LIE_OTHER) || !pinned()) return asked;
    for (size_t i = 0; i < machine.cards; i++)
        if (&machine.card[i] != asked && !machine.card[i].integrated) return &machine.card[i];
    stranger.free = stranger.total = asked->total;
    return &stranger;
}

static const struct pretend_card *held_by(const struct pretend_card *asked, const struct pretend_card *shown) {
    if (!(asked->lies & LIE_STRAY)) return shown;
    for (size_t i = 0; i < machine.cards; i++)
        if (&machine.card[i] != asked && machine.card[i].uuid[0]) return &machine.card[i];
    return shown;
}

static void take_seat(const struct pretend_card *card) {
    struct seat *seat = &seats[seat_count];
    seat->index = (int) seat_count++;
    snprintf(seat->label, sizeof seat->label, REGISTRY "%d", seat->index);
    seat->asked = card;
    seat->shown = shown_by(card);
    seat->holder = held_by(card, seat->shown);
    snprintf(seat->pci, sizeof seat->pci, "%s", seat->shown->pci);
    seat->buffers.iface.get_name      = buffers_name;
    seat->buffers.iface.alloc_buffer  = allocate;
    seat->buffers.iface.get_alignment = alignment;
    seat->buffers.device  = &seat->device;
    seat->buffers.context = seat;
    seat->device.reg     = &registry;
    seat->device.context = seat;
    seat->device.iface.get_name        = device_name;
    seat->device.iface.get_description = device_description;
    seat->device.iface.get_memory      = device_memory;
    seat->device.iface.get_type        = device_type;
    seat->device.iface.get_props       = device_props;
    seat->device.iface.init_backend    = device_open;
    seat->device.iface.get_buffer_type = device_buffers;
    seat->device.iface.supports_op     = device_takes_op;
    seat->device.iface.supports_buft   = device_takes_buffers;
}

__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) {
    static bool done;
    if (done) return &registry;
    size_t order[PRETEND_MAX];
    pretend_read(&machine);
    const int visible = COUNT(&machine, order);
    if (visible < 0) return NULL;
    for (int i = 0; i < visible; i++) {
        if (machine.card[order[i]].lies & LIE_CRASH) abort();
        if (machine.card[order[i]].lies & LIE_HANG) for (;;) pause();
    }
    for (int i = 0; i < visible; i++) take_seat(&machine.card[order[i]]);
#ifndef PRETEND_VULKAN
    if (!visible) GGML_LOG_ERROR("ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected\n");
#endif
    registry.api_version            = GGML_BACKEND_API_VERSION;
    registry.iface.get_name         = registry_name;
    registry.iface.get_device_count = registry_count;
    registry.iface.get_device       = registry_device;
    registry.iface.get_proc_address = registry_function;
    done = true;
    return &registry;
}

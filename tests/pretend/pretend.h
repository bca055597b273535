// The cards of a machine that has none, and which of them a process may see. Shared by the ggml backends and the NVML library.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define PRETEND_MAX 16
#define PRETEND_USERS 512

enum pretend_lie {
    LIE_OTHER = 1 << 0,  // a pinned process gets another card than the one it asked for
    LIE_CPU   = 1 << 1,  // buffers are taken from the CPU though the card is named
    LIE_OOM   = 1 << 2,  // every allocation on the card fails
    LIE_HANG  = 1 << 3,  // looking for cards never returns
    LIE_CRASH = 1 << 4,  // looking for cards aborts the process
    LIE_LOST  = 1 << 5,  // the card fell off the bus: CUDA has none, NVML says that it is lost
    LIE_NVML  = 1 << 6,  // NVML can't be initialised
    LIE_STRAY = 1 << 7,  // the backend names this card, but its memory is taken from another one
};

struct pretend_card {
    char     name[96];
    char     uuid[64];  // empty unless it is an NVIDIA card
    char     pci[16];   // as ggml writes it: 0000:01:00.0
    bool     integrated;
    bool     cuda;
    bool     vulkan;
    size_t   total;     // bytes
    size_t   free;      // bytes at the start of the process
    int      cc_major;
    int      cc_minor;
    unsigned bus_bits;
    unsigned memory_mhz;
    unsigned link[4];   // PCIe generation and width, and the most that card and slot can; 0 where the driver does not say
    unsigned switch_;   // cards with the same number are behind one PCIe switch; 0: behind none
    unsigned lies;
    unsigned slow_seconds;  // how long the first allocation takes
    unsigned xid;           // an error that the driver tells of, once
    unsigned ecc;           // uncorrectable memory errors since the driver was loaded; a card that counts none says so
    bool     counts_ecc;
};

struct pretend_machine {
    struct pretend_card card[PRETEND_MAX];
    size_t              cards;
    char                driver[32];
    bool                toolkit;       // the container was started by the runtime class for NVIDIA, or this is a unit test
    int                 cuda_version;  // 1000 * major + 10 * minor, as CUDA writes it
};

// Read the cards and the lies; a machine without a description has no card.
void pretend_read(struct pretend_machine *machine);

// Each fills `order` with indices into machine->card and returns how many.
// What the container toolkit gave to this container (NVIDIA_VISIBLE_DEVICES), in the order of PCI addresses;
// -1 when it gave nothing at all, not even the driver's libraries.
int pretend_injected(const struct pretend_machine *machine, size_t order[PRETEND_MAX]);
// What the CUDA driver shows of that (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER); -1 as above.
int pretend_cuda(const struct pretend_machine *machine, size_t order[PRETEND_MAX]);
// What ggml's Vulkan backend takes (GGML_VK_VISIBLE_DEVICES); -1 when it gives up because of a wrong index.
int pretend_vulkan(const struct pretend_machine *machine, size_t order[PRETEND_MAX]);

// A process and what it has of one card.
struct pretend_user {
    int    pid;  // in the PID namespace of whoever asks; 0 when it has no number there
    char   pci[16];
    size_t bytes;
};

// Note how much this process has of a card now.
void pretend_account(const char *pci, size_t bytes);
// Give what the other processes have; returns how many entries there are.
int pretend_users(struct pretend_user *users, int most);
size_t pretend_used_by_others(const char *pci);

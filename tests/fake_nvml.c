// A libnvidia-ml.so with no GPU under it. What it answers stands in the file that FAKE_NVML names, or fake_nvml_file() set,
// read anew at every call so that a test can change it meanwhile. Lines:
//   nvmlDeviceGetPowerUsage 3              this function returns 3 (a code of nvml.h)
//   all 15                                 every function of a device returns 15
//   crash nvmlDeviceGetName                it ends the process, as the real library does on some lost GPUs
//   hang nvmlInitWithFlags                 it never returns
//   power_mw 70000                         a value; those that are left out have the defaults given below
//   name_hex 4e56494449412048323030        text, in hexadecimal digits, so that it can be anything
//   seed 7                                 every other call returns a code drawn from nvml.h's, by a generator with this seed
// `1:` before a function or a value means: of GPU 1 alone. A MIG device has the number 100 * (1 + GPU) + its own.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int Return;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } Process;
typedef struct {
    unsigned fieldId, scopeId;
    int64_t timestamp, latencyUsec;
    unsigned valueType;
    Return nvmlReturn;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; int si; unsigned short us; } value;
} FieldValue;

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, INVALID_ARGUMENT = 2, UNINITIALIZED = 1 };
enum { WHOLE_MACHINE = -1, FIRST_MIG = 100 };

static char path[4096];
static int initialised;
static unsigned random_state;

void fake_nvml_file(const char *name) {
    snprintf(path, sizeof path, "%s", name);
    initialised = 0;
    random_state = 0;
}

// The text behind `key` of a GPU, else behind `key` of all; 0 where there is no such line.
static int text(int gpu, const char *key, char *found, size_t size) {
    const char *name = path[0] ? path : getenv("FAKE_NVML");
    FILE *file = name ? fopen(name, "r") : NULL;
    char line[1024], own[300];
    int of_all = 0, of_gpu = 0;
    if (!file) return 0;
    snprintf(own, sizeof own, "%d:%s", gpu, key);
    while (fgets(line, sizeof line, file)) {
        char *space = strchr(line, ' ');
        if (!space) continue;
        *space = 0;
        space[1 + strcspn(space + 1, "\n")] = 0;
        if (!strcmp(line, own)) of_gpu = 1;
        else if (!of_gpu && !strcmp(line, key)) of_all = 1;
        else continue;
        snprintf(found, size, "%s", space + 1);
    }
    fclose(file);
    return of_gpu || of_all;
}

static unsigned long long number(int gpu, const char *key, unsigned long long otherwise) {
    char found[64];
    return text(gpu, key, found, sizeof found) ? strtoull(found, NULL, 0) : otherwise;
}

static Return drawn(unsigned seed) {
    static const Return codes[] = {1, 2, 3, 4, 6, 7, 9, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 23, 24, 25, 29, 12345, 999};
    if (!random_state) random_state = 2 * seed + 1;
    random_state = random_state * 1664525u + 1013904223u;
    unsigned draw = random_state >> 8;
    return draw & 1 ? SUCCESS : codes[(draw >> 1) % (sizeof codes / sizeof *codes)];
}

static Return code(int gpu, const char *function) {
    char found[300];
    if (text(gpu, "crash", found, sizeof found) && !strcmp(found, function)) raise(SIGSEGV);
    while (text(gpu, "hang", found, sizeof found) && !strcmp(found, function)) sleep(1);
    if (text(gpu, function, found, sizeof found)) return atoi(found);
    if (gpu != WHOLE_MACHINE && text(gpu, "all", found, sizeof found)) return atoi(found);
    if (!initialised && strncmp(function, "nvmlInit", 8)) return UNINITIALIZED;
    if (text(gpu, "seed", found, sizeof found) && gpu != WHOLE_MACHINE) return drawn(atoi(found));
    return SUCCESS;
}

static void put(int gpu, const char *key, const char *otherwise, char *target, unsigned size) {
    char found[512];
    unsigned length = 0, byte;
    if (!text(gpu, key, found, sizeof found)) {
        snprintf(target, size, "%s", otherwise);
        return;
    }
    for (char *digit = found; length + 1 < size && sscanf(digit, "%2x", &byte) == 1; digit += 2) target[length++] = byte;
    target[length] = 0;
}

// A handle is the GPU's number plus one: a null handle is nobody's.
static int of(const void *handle) { return (int)(intptr_t)handle - 1; }
static void *handle_of(int gpu) { return (void *)(intptr_t)(gpu + 1); }
static int gpus(void) { return (int)number(WHOLE_MACHINE, "count", 1); }
static int migs(int gpu) { return (int)number(gpu, "mig_devices", 0); }

static void uuid_of(int gpu, char *target, unsigned size) {
    char plain[96];
    if (gpu >= FIRST_MIG) snprintf(plain, sizeof plain, "MIG-%d-%d", gpu / FIRST_MIG - 1, gpu % FIRST_MIG);
    else snprintf(plain, sizeof plain, "GPU-%d", gpu);
    put(gpu, "uuid_hex", plain, target, size);
}

#define ANSWER(gpu)                         \
    do {                                    \
        Return returned = code(gpu, __func__); \
        if (returned) return returned;      \
    } while (0)
#define VALUE(gpu, type, target, key, otherwise)         \
    do {                                                 \
        ANSWER(gpu);                                     \
        *(target) = (type)number(gpu, key, otherwise);   \
        return SUCCESS;                                  \
    } while (0)

Return nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (number(WHOLE_MACHINE, "stub", 0)) {
        puts("WARNING: this libnvidia-ml.so is a stub");
        fflush(stdout);
        return 9;
    }
    ANSWER(WHOLE_MACHINE);
    initialised++;
    return SUCCESS;
}

Return nvmlShutdown(void) {
    ANSWER(WHOLE_MACHINE);
    initialised -= initialised > 0;
    return SUCCESS;
}

const char *nvmlErrorString(Return returned) {
    static char words[64];
    snprintf(words, sizeof words, "fake words for %d", returned);
    return words;
}

Return nvmlSystemGetDriverVersion(char *version, unsigned size) {
    ANSWER(WHOLE_MACHINE);
    put(WHOLE_MACHINE, "driver_hex", "580.159.03", version, size);
    return SUCCESS;
}

Return nvmlSystemGetCudaDriverVersion_v2(int *version) { VALUE(WHOLE_MACHINE, int, version, "cuda_version", 13000); }

Return nvmlDeviceGetCount_v2(unsigned *count) {
    ANSWER(WHOLE_MACHINE);
    *count = gpus();
    return SUCCESS;
}

Return nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    ANSWER((int)index);
    if ((int)index >= gpus()) return NOT_FOUND;
    *handle = handle_of(index);
    return SUCCESS;
}

Return nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    char found[96];
    ANSWER(WHOLE_MACHINE);
    for (int gpu = 0; gpu < gpus(); gpu++) {
        uuid_of(gpu, found, sizeof found);
        if (!strcmp(found, uuid)) {
            ANSWER(gpu);
            *handle = handle_of(gpu);
            return SUCCESS;
        }
        for (int mig = 0; mig < migs(gpu); mig++) {
            uuid_of(FIRST_MIG * (1 + gpu) + mig, found, sizeof found);
            if (!strcmp(found, uuid)) {
                *handle = handle_of(FIRST_MIG * (1 + gpu) + mig);
                return SUCCESS;
            }
        }
    }
    return NOT_FOUND;
}

Return nvmlDeviceGetUUID(void *handle, char *uuid, unsigned size) {
    ANSWER(of(handle));
    uuid_of(of(handle), uuid, size);
    return SUCCESS;
}

Return nvmlDeviceGetName(void *handle, char *name, unsigned size) {
    ANSWER(of(handle));
    put(of(handle), "name_hex", of(handle) >= FIRST_MIG ? "NVIDIA H200 MIG 1g.18gb" : "NVIDIA H200", name, size);
    return SUCCESS;
}

Return nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    ANSWER(of(handle));
    *major = (int)number(of(handle), "capability", 90) / 10;
    *minor = (int)number(of(handle), "capability", 90) % 10;
    return SUCCESS;
}

Return nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    ANSWER(of(handle));
    *current = *pending = migs(of(handle)) > 0;
    return SUCCESS;
}

Return nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    ANSWER(of(handle));
    *count = 7;
    return SUCCESS;
}

Return nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **mig) {
    ANSWER(of(handle));
    if ((int)index >= migs(of(handle))) return NOT_FOUND;
    *mig = handle_of(FIRST_MIG * (1 + of(handle)) + index);
    return SUCCESS;
}

Return nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *mig, void **handle) {
    ANSWER(of(mig));
    if (of(mig) < FIRST_MIG) return INVALID_ARGUMENT;
    *handle = handle_of(of(mig) / FIRST_MIG - 1);
    return SUCCESS;
}

static unsigned long long total(int gpu) { return number(gpu, "memory_total", 150754820096ull); }

// As the real one: what the driver keeps for itself is in the old struct's used, and in the new struct's reserved.
Return nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    ANSWER(of(handle));
    memory->total = total(of(handle));
    memory->used = number(of(handle), "memory_used", 3407872) + number(of(handle), "memory_reserved", 676331520);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

Return nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *memory) {
    ANSWER(of(handle));
    if (memory->version != (sizeof(MemoryV2) | 2u << 24)) return 25;
    memory->total = total(of(handle));
    memory->reserved = number(of(handle), "memory_reserved", 676331520);
    memory->used = number(of(handle), "memory_used", 3407872);
    memory->free = memory->total - memory->used - memory->reserved;
    return SUCCESS;
}

Return nvmlDeviceGetFieldValues(void *handle, int count, FieldValue *values) {
    ANSWER(of(handle));
    for (int k = 0; k < count; k++) {
        values[k].valueType = number(of(handle), "field_type", 1);
        values[k].value.ull = 0;
        values[k].nvmlReturn = values[k].fieldId == 186 ? number(of(handle), "field_return", 0) : NOT_SUPPORTED;
        if (values[k].valueType == 0) values[k].value.d = number(of(handle), "power_instant_mw", 71500);
        else values[k].value.ull = number(of(handle), "power_instant_mw", 71500);
    }
    return SUCCESS;
}

Return nvmlDeviceGetPowerUsage(void *handle, unsigned *mw) { VALUE(of(handle), unsigned, mw, "power_mw", 70000); }
Return nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *mw) {
    VALUE(of(handle), unsigned, mw, "power_limit_mw", 700000);
}
Return nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *mj) {
    VALUE(of(handle), unsigned long long, mj, "energy_mj", 123456789);
}

static const char *clock_key(const char *start, int type, char *key) {
    sprintf(key, "%s_%s_mhz", start, type == 2 ? "memory" : "sm");
    return key;
}

Return nvmlDeviceGetClockInfo(void *handle, int type, unsigned *mhz) {
    char key[40];
    VALUE(of(handle), unsigned, mhz, clock_key("clock", type, key), type == 2 ? 3201 : 1980);
}
Return nvmlDeviceGetMaxClockInfo(void *handle, int type, unsigned *mhz) {
    char key[40];
    VALUE(of(handle), unsigned, mhz, clock_key("max_clock", type, key), type == 2 ? 3201 : 1980);
}
Return nvmlDeviceGetDefaultApplicationsClock(void *handle, int type, unsigned *mhz) {
    char key[40];
    VALUE(of(handle), unsigned, mhz, clock_key("default_clock", type, key), type == 2 ? 3201 : 1830);
}

Return nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *c) {
    if (sensor) return INVALID_ARGUMENT;
    VALUE(of(handle), unsigned, c, "temperature_c", 41);
}

Return nvmlDeviceGetUtilizationRates(void *handle, Utilization *rates) {
    ANSWER(of(handle));
    rates->gpu = number(of(handle), "utilisation", 3);
    rates->memory = 1;
    return SUCCESS;
}

Return nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *bits) {
    VALUE(of(handle), unsigned long long, bits, "clock_events", 4);
}
Return nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *bits) {
    VALUE(of(handle), unsigned long long, bits, "clock_events", 4);
}

// compute_pids 77,78
static Return processes(int gpu, const char *key, const char *otherwise, unsigned *count, Process *found) {
    char list[512];
    unsigned n = 0, room = *count;
    if (!text(gpu, key, list, sizeof list)) snprintf(list, sizeof list, "%s", otherwise);
    for (char *pid = strtok(list, ","); pid; pid = strtok(NULL, ","), n++)
        if (found && n < room) found[n] = (Process){strtoul(pid, NULL, 0), ~0ull, ~0u, ~0u};
    *count = n;
    return n > room ? INSUFFICIENT_SIZE : SUCCESS;
}

Return nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *found) {
    ANSWER(of(handle));
    return processes(of(handle), "compute_pids", "77", count, found);
}

Return nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, Process *found) {
    ANSWER(of(handle));
    return processes(of(handle), "graphics_pids", "", count, found);
}

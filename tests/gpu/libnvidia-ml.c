/* A libnvidia-ml.so.1 for one card with 24 GiB: enough for the real binding to load it, open it and read memory and temperature.
 * The file that HEARTH_STUB_NVML names holds the code that every getter answers with, 0 for success. */
#include <stdio.h>
#include <stdlib.h>

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned version, sensor; int temperature; } temperature_v1;

static int code(void) {
    int said = 0;
    const char *path = getenv("HEARTH_STUB_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file) { if (fscanf(file, "%d", &said) != 1) said = 999; fclose(file); }
    return said;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return code(); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int result) { (void)result; return "stub"; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &code; return index ? 2 : code(); }
int nvmlDeviceGetName(void *device, char *name, unsigned length) { (void)device; snprintf(name, length, "Stub 3090"); return code(); }
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *memory) {
    (void)device;
    memory->total = 24ULL << 30; memory->reserved = 1ULL << 28; memory->used = 5ULL << 30; memory->free = memory->total - memory->used;
    return code();
}
int nvmlDeviceGetTemperatureV(void *device, temperature_v1 *said) { (void)device; said->temperature = 64; return code(); }

/* A small fuzzer for compilers without libFuzzer: mutates files, and keeps what reaches new code.

   driver SECONDS SEED FOLDER: SECONDS of processor time, FOLDER with the first inputs. It leaves `current` in the
   working directory, the input that it is busy with, and prints how many there were. */

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST_BYTES 8192
#define MOST_INPUTS 20000
#define EDGES (1 << 16)

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

static uint8_t seen[EDGES], reached[EDGES];
static uint64_t state;

/* The compiler puts a call of this into every basic block. */
__attribute__((no_sanitize("address", "undefined"))) void __sanitizer_cov_trace_pc(void) {
    uintptr_t place = (uintptr_t)__builtin_return_address(0);
    reached[(place ^ place >> 16) % EDGES] = 1;
}

static uint64_t any(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17; /* xorshift */
    return state % below;
}

typedef struct {
    size_t size;
    uint8_t *data;
} Input;

static Input inputs[MOST_INPUTS];
static size_t input_count;

static void keep(const uint8_t *data, size_t size) {
    Input *input = &inputs[input_count < MOST_INPUTS ? input_count++ : any(MOST_INPUTS)];
    free(input->data);
    *input = (Input){size, memcpy(malloc(size + 1), data, size)};
}

static int is_new(void) {
    int found = 0;
    for (size_t place = 0; place < EDGES; place++) {
        found |= reached[place] && !seen[place];
        seen[place] |= reached[place];
    }
    memset(reached, 0, sizeof reached);
    return found;
}

static size_t mutate(uint8_t *data, size_t size) {
    const Input *other = &inputs[any(input_count)];
    for (uint64_t count = 1 + any(4); count && size; count--) {
        size_t at = any(size), length = 1 + any(size - at < 64 ? size - at : 64), from = any(other->size);
        switch (any(8)) {
        case 0:
            data[at] ^= (uint8_t)(1 << any(8));
            break;
        case 1:
            data[at] = (uint8_t)any(256);
            break;
        case 2:
            data[at] = "\x00\x01\x7f\x80\xfe\xff\xd0\xd9"[any(8)];
            break;
        case 3: /* leave something out */
            memmove(data + at, data + at + length, size - at - length);
            size -= length;
            break;
        case 4: /* say it twice */
            length = length < MOST_BYTES - size ? length : MOST_BYTES - size;
            memmove(data + at + length, data + at, size - at);
            size += length;
            break;
        case 5: /* a piece of another input */
            length = length < other->size - from ? length : other->size - from;
            memcpy(data + at, other->data + from, length);
            break;
        case 6: /* the rest of another input */
            length = other->size - from < MOST_BYTES - at ? other->size - from : MOST_BYTES - at;
            memcpy(data + at, other->data + from, length);
            size = at + length;
            break;
        case 7:
            size = any(16) ? size : at;
            break;
        }
    }
    return size;
}

static void read_inputs(const char *folder) {
    DIR *listing = opendir(folder);
    for (struct dirent *entry; listing && (entry = readdir(listing));) {
        char path[4096];
        uint8_t data[MOST_BYTES];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "rb");
        size_t size = file ? fread(data, 1, sizeof data, file) : 0;
        if (size) {
            keep(data, size);
        }
        if (file) {
            fclose(file);
        }
    }
    if (listing) {
        closedir(listing);
    }
}

int main(int count, char **arguments) {
    if (count != 4) {
        return 2;
    }
    double seconds = atof(arguments[1]);
    state = 0x9e3779b97f4a7c15u ^ (uint64_t)atoll(arguments[2]);
    read_inputs(arguments[3]);
    LLVMFuzzerInitialize(&count, &arguments);
    if (!input_count) {
        return 2;
    }
    FILE *current = fopen("current", "w+b");
    clock_t start = clock();
    size_t first = input_count;
    unsigned long long number = 0;
    for (; (double)(clock() - start) / CLOCKS_PER_SEC < seconds; number++) {
        uint8_t data[MOST_BYTES];
        const Input *input = &inputs[number < first ? number : any(input_count)];
        size_t size = input->size;
        memcpy(data, input->data, size);
        size = number < first ? size : mutate(data, size);
        rewind(current);
        fwrite(data, 1, size, current);
        fflush(current);
        if (ftruncate(fileno(current), (off_t)size)) {
            return 2;
        }
        LLVMFuzzerTestOneInput(data, size);
        if (is_new() && number >= first) {
            keep(data, size);
        }
    }
    size_t edges = 0;
    for (size_t place = 0; place < EDGES; place++) {
        edges += seen[place];
    }
    printf("%llu inputs, %zu of them kept, %zu places in the code\n", number, input_count - first, edges);
    return 0;
}

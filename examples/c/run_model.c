/* Run a model without Python. Inputs are read from .npy files, and the first output is
   written to one.

   run_model LIBRARY MODEL OUTPUT.npy INPUT.npy...
       a patched model, on the library's custom ops
   run_model --provider LIBRARY MODEL OUTPUT.npy INPUT.npy...
       an unmodified model, on the library's execution provider (onnxruntime 1.24 or newer)

   The functions of onnxruntime_c_api.h that are called are declared here. The header is in
   onnxruntime's archives. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *Any;
/* OrtApi: a table of functions that return a status, which is 0 on success. */
typedef struct {
    Any before[2];
    const char *(*GetErrorMessage)(Any status);
    Any (*CreateEnv)(int level, const char *name, Any *env);
    Any gap3[4];
    Any (*CreateSessionFromArray)(Any env, const void *model, size_t size, Any options,
                                  Any *session);
    Any (*Run)(Any session, Any options, const char *const *names, const Any *inputs,
               size_t n_inputs, const char *const *output_names, size_t n_outputs, Any *outputs);
    Any (*CreateSessionOptions)(Any *options);
    Any gap10[18];
    Any (*RegisterCustomOpsLibrary)(Any options, const char *path, Any *handle);
    Any gap29[6];
    Any (*SessionGetInputName)(Any session, size_t index, Any allocator, char **name);
    Any (*SessionGetOutputName)(Any session, size_t index, Any allocator, char **name);
    Any gap37[11];
    Any (*CreateTensorWithDataAsOrtValue)(Any memory, void *data, size_t size,
                                          const int64_t *shape, size_t axes, int type,
                                          Any *value);
    Any gap49;
    Any (*GetTensorMutableData)(Any value, void **data);
    Any gap51[8];
    Any (*GetTensorElementType)(Any info, int *type);
    Any (*GetDimensionsCount)(Any info, size_t *axes);
    Any (*GetDimensions)(Any info, int64_t *shape, size_t axes);
    Any gap62[2];
    Any (*GetTensorTypeAndShape)(Any value, Any *info);
    Any gap65[3];
    Any (*CreateCpuMemoryInfo)(int allocator, int memory, Any *info);
    Any gap69[8];
    Any (*GetAllocatorWithDefaultOptions)(Any *allocator);
    Any gap79[222];
    Any (*RegisterExecutionProviderLibrary)(Any env, const char *name, const char *path);
    Any UnregisterExecutionProviderLibrary;
    Any (*GetEpDevices)(Any env, const Any **devices, size_t *count);
    Any (*SessionOptionsAppendExecutionProvider_V2)(
        Any options, Any env, const Any *devices, size_t count,
        const char *const *keys, const char *const *values, size_t pairs);
    Any gap305[7];
    const char *(*EpDevice_EpName)(Any device);
} Api;
typedef struct {
    const Api *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
} Base;
const Base *OrtGetApiBase(void);

static const Api *ort;
/* NumPy's names of onnxruntime's element types. */
static const char *const types[] = {"",    "<f4", "|u1", "|i1", "<u2", "<i2", "<i4",
                                    "<i8", "",    "|b1", "<f2", "<f8", "<u4", "<u8"};
enum { MAX_INPUTS = 16, MAX_AXES = 16, LAST_TYPE = 13 };

static void check(Any status) {
    if (status) {
        fprintf(stderr, "%s\n", ort->GetErrorMessage(status));
        exit(1);
    }
}

static char *contents(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    *size = (size_t)ftell(file);
    char *data = malloc(*size + 1);
    rewind(file);
    if (!data || fread(data, 1, *size, file) != *size) exit(1);
    data[*size] = 0;
    fclose(file);
    return data;
}

/* Read a .npy file of version 1: 10 bytes, a header of text, and the elements. */
static Any load(const char *path, Any memory) {
    size_t size;
    char *file = contents(path, &size);
    char *header = file + 10;
    char *data = header + *(uint16_t *)(file + 8);
    data[-1] = 0; /* ends the header, the text of a Python dict */
    int type = LAST_TYPE;
    while (type && !(*types[type] && strstr(header, types[type]))) type--;
    int64_t shape[MAX_AXES];
    size_t axes = 0;
    char *number = strchr(header, '(') + 1;
    while (axes < MAX_AXES) {
        char *end;
        int64_t length = strtoll(number, &end, 10);
        if (end == number) break;
        shape[axes++] = length;
        number = end + strspn(end, ", ");
    }
    Any value;
    size_t data_size = (size_t)(file + size - data);
    check(ort->CreateTensorWithDataAsOrtValue(memory, data, data_size, shape, axes, type, &value));
    return value;
}

/* Write a tensor to a .npy file. */
static void save(const char *path, Any value) {
    size_t axes;
    int64_t shape[MAX_AXES];
    int type;
    Any info;
    void *data;
    check(ort->GetTensorTypeAndShape(value, &info));
    check(ort->GetTensorElementType(info, &type));
    check(ort->GetDimensionsCount(info, &axes));
    check(ort->GetDimensions(info, shape, axes));
    check(ort->GetTensorMutableData(value, &data));
    char header[256];
    size_t count = 1;
    int end = sprintf(header, "{'descr': '%s', 'fortran_order': False, 'shape': (", types[type]);
    for (size_t axis = 0; axis < axes; axis++) {
        end += sprintf(header + end, "%lld, ", (long long)shape[axis]);
        count *= (size_t)shape[axis];
    }
    end += sprintf(header + end, ")}");
    FILE *file = fopen(path, "wb");
    if (!file) exit(1);
    fprintf(file, "\x93NUMPY%c%c%c%c%-245s\n", 1, 0, 246, 0, header);
    fwrite(data, (size_t)(types[type][2] - '0'), count, file);
    fclose(file);
}

/* onnxruntime would not look for a relative path in the current folder. */
static char *absolute(const char *path) {
#ifdef _WIN32
    char *result = _fullpath(0, path, 0);
#else
    char *result = realpath(path, 0);
#endif
    if (!result) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    return result;
}

static void add_provider(Any env, Any options, const char *path) {
    const Any *devices;
    size_t count;
#ifdef _WIN32 /* where paths are wide characters */
    wchar_t wide[1024];
    if (mbstowcs(wide, path, 1024) >= 1024) exit(1);
    path = (const char *)wide;
#endif
    check(ort->RegisterExecutionProviderLibrary(env, "ort_gridsample", path));
    check(ort->GetEpDevices(env, &devices, &count));
    for (size_t i = 0; i < count; i++) {
        if (strcmp(ort->EpDevice_EpName(devices[i]), "GridSampleExecutionProvider")) continue;
        check(ort->SessionOptionsAppendExecutionProvider_V2(
            options, env, devices + i, 1, 0, 0, 0));
    }
}

int main(int argc, char **argv) {
    int has_provider = argc > 1 && !strcmp(argv[1], "--provider");
    argc -= has_provider;
    argv += has_provider;
    if (argc < 4) return 2;
    size_t n_inputs = (size_t)argc - 4;
    if (n_inputs > MAX_INPUTS) return 2;
    Any env, options, library, session, allocator, memory;
    ort = OrtGetApiBase()->GetApi(has_provider ? 24 : 17);
    if (!ort) {
        fprintf(stderr, "onnxruntime %s is too old\n", OrtGetApiBase()->GetVersionString());
        return 1;
    }
    check(ort->CreateEnv(4, "run_model", &env));
    check(ort->CreateSessionOptions(&options));
    char *path = absolute(argv[1]);
    if (has_provider)
        add_provider(env, options, path);
    else
        check(ort->RegisterCustomOpsLibrary(options, path, &library));
    size_t size;
    char *model = contents(argv[2], &size);
    check(ort->CreateSessionFromArray(env, model, size, options, &session));
    check(ort->GetAllocatorWithDefaultOptions(&allocator));
    check(ort->CreateCpuMemoryInfo(1, 0, &memory));

    const char *names[MAX_INPUTS];
    Any inputs[MAX_INPUTS];
    for (size_t i = 0; i < n_inputs; i++) {
        char *name;
        check(ort->SessionGetInputName(session, i, allocator, &name));
        names[i] = name;
        inputs[i] = load(argv[4 + i], memory);
    }
    char *output_name;
    check(ort->SessionGetOutputName(session, 0, allocator, &output_name));
    const char *output_names[] = {output_name};
    Any output = 0;
    check(ort->Run(session, 0, names, inputs, n_inputs, output_names, 1, &output));
    save(argv[3], output);
    return 0;
}

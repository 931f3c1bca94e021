/* Runs a model without Python. Reads its inputs from .npy files, and writes its first output to one.

   run_model LIBRARY MODEL OUTPUT.npy INPUT.npy...               a patched model, on custom ops
   run_model --provider LIBRARY MODEL OUTPUT.npy INPUT.npy...    an unmodified model, on the execution provider;
                                                                 with onnxruntime 1.24 or newer

   Of onnxruntime_c_api.h, which onnxruntime's archives hold, it declares what it calls. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *Any;
typedef struct { /* OrtApi: a table of functions, each of which answers with a status; 0 is success */
    Any before[2];
    const char *(*GetErrorMessage)(Any status);
    Any (*CreateEnv)(int level, const char *name, Any *env);
    Any gap3[4];
    Any (*CreateSessionFromArray)(Any env, const void *model, size_t size, Any options, Any *session);
    Any (*Run)(Any session, Any options, const char *const *names, const Any *inputs, size_t n_inputs,
               const char *const *output_names, size_t n_outputs, Any *outputs);
    Any (*CreateSessionOptions)(Any *options);
    Any gap10[18];
    Any (*RegisterCustomOpsLibrary)(Any options, const char *path, Any *handle);
    Any gap29[6];
    Any (*SessionGetInputName)(Any session, size_t index, Any allocator, char **name);
    Any (*SessionGetOutputName)(Any session, size_t index, Any allocator, char **name);
    Any gap37[11];
    Any (*CreateTensorWithDataAsOrtValue)(Any memory, void *data, size_t size, const int64_t *shape, size_t axes,
                                          int type, Any *value);
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
    Any (*SessionOptionsAppendExecutionProvider_V2)(Any options, Any env, const Any *devices, size_t count,
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
/* NumPy's names of the element types, by onnxruntime's numbers. */
static const char *const types[] = {"", "<f4", "|u1", "|i1", "<u2", "<i2", "<i4", "<i8", "", "|b1", "<f2", "<f8", "<u4", "<u8"};

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

static Any loaded(const char *path, Any memory) {
    size_t size, axes = 0;
    int64_t shape[16];
    int type = 13;
    char *file = contents(path, &size), *data = file + 10 + *(uint16_t *)(file + 8);
    data[-1] = 0; /* what is before is a dict of Python's, as text */
    while (type && !(*types[type] && strstr(file + 10, types[type]))) type--;
    for (char *at = strchr(file + 10, '(') + 1, *end; axes < 16; at = end + strspn(end, ", ")) {
        int64_t length = strtoll(at, &end, 10);
        if (end == at) break;
        shape[axes++] = length;
    }
    Any value;
    check(ort->CreateTensorWithDataAsOrtValue(memory, data, (size_t)(file + size - data), shape, axes, type, &value));
    return value;
}

static void save(const char *path, Any value) {
    size_t axes, count = 1;
    int64_t shape[16];
    int type;
    Any info;
    void *data;
    check(ort->GetTensorTypeAndShape(value, &info));
    check(ort->GetTensorElementType(info, &type));
    check(ort->GetDimensionsCount(info, &axes));
    check(ort->GetDimensions(info, shape, axes));
    check(ort->GetTensorMutableData(value, &data));
    char head[256];
    int end = sprintf(head, "{'descr': '%s', 'fortran_order': False, 'shape': (", types[type]);
    for (size_t axis = 0; axis < axes; axis++, count *= (size_t)shape[axis - 1])
        end += sprintf(head + end, "%lld, ", (long long)shape[axis]);
    end += sprintf(head + end, ")}");
    FILE *file = fopen(path, "wb");
    if (!file) exit(1);
    fprintf(file, "\x93NUMPY%c%c%c%c%-245s\n", 1, 0, 246, 0, head);
    fwrite(data, (size_t)(types[type][2] - '0'), count, file);
    fclose(file);
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
    for (size_t i = 0; i < count; i++)
        if (!strcmp(ort->EpDevice_EpName(devices[i]), "GridSampleExecutionProvider"))
            check(ort->SessionOptionsAppendExecutionProvider_V2(options, env, devices + i, 1, 0, 0, 0));
}

int main(int argc, char **argv) {
    int has_provider = argc > 1 && !strcmp(argv[1], "--provider");
    argc -= has_provider, argv += has_provider;
    Any env, options, library, session, allocator, memory, output = 0;
    size_t size, n_inputs = (size_t)argc - 4;
    if (argc < 4) return 2;
    ort = OrtGetApiBase()->GetApi(has_provider ? 24 : 17);
    if (!ort) {
        fprintf(stderr, "onnxruntime %s is too old\n", OrtGetApiBase()->GetVersionString());
        return 1;
    }
    check(ort->CreateEnv(4, "run_model", &env));
    check(ort->CreateSessionOptions(&options));
    if (has_provider)
        add_provider(env, options, argv[1]);
    else
        check(ort->RegisterCustomOpsLibrary(options, argv[1], &library));
    char *model = contents(argv[2], &size), *names[16], *output_name;
    check(ort->CreateSessionFromArray(env, model, size, options, &session));
    check(ort->GetAllocatorWithDefaultOptions(&allocator));
    check(ort->CreateCpuMemoryInfo(1, 0, &memory));
    check(ort->SessionGetOutputName(session, 0, allocator, &output_name));
    Any inputs[16];
    for (size_t i = 0; i < n_inputs && i < 16; i++) {
        check(ort->SessionGetInputName(session, i, allocator, &names[i]));
        inputs[i] = loaded(argv[4 + i], memory);
    }
    check(ort->Run(session, 0, (const char *const *)names, inputs, n_inputs, (const char *const *)&output_name, 1, &output));
    save(argv[3], output);
    return 0;
}

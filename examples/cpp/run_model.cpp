// Run a model without Python. Inputs are read from .npy files, and the first output is
// written to one.
//
// run_model LIBRARY MODEL OUTPUT.npy INPUT.npy...
//     a patched model, on the library's custom ops
// run_model --provider LIBRARY MODEL OUTPUT.npy INPUT.npy...
//     an unmodified model, on the library's execution provider (onnxruntime 1.24 or newer)
//
// The header is in onnxruntime's archives. It may be newer than the shared library, because the
// program requests the oldest API version that has its functions.

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fs = std::filesystem;

// NumPy's names of onnxruntime's element types.
const std::vector<std::string> TYPES = {"",    "<f4", "|u1", "|i1", "<u2", "<i2", "<i4",
                                        "<i8", "",    "|b1", "<f2", "<f8", "<u4", "<u8"};

struct Array {
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    std::vector<int64_t> shape;
    std::vector<char> data;
};

// Read a .npy file of version 1: 10 bytes, a header of text, and the elements.
Array load(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> content(std::istreambuf_iterator<char>(file), {});
    if (content.size() < 10) throw std::runtime_error(path.string() + " cannot be read");
    size_t length = static_cast<uint8_t>(content[8]) + 256 * static_cast<uint8_t>(content[9]);
    auto end = content.begin() + static_cast<std::ptrdiff_t>(10 + length);
    std::string header(content.begin() + 10, end);
    Array array;
    for (size_t type = 1; type < TYPES.size(); type++) {
        bool has_type = !TYPES[type].empty() && header.find(TYPES[type]) != std::string::npos;
        if (has_type) array.type = static_cast<ONNXTensorElementDataType>(type);
    }
    std::istringstream shape(header.substr(header.find('(') + 1));
    for (int64_t length; shape >> length; shape.ignore()) array.shape.push_back(length);
    array.data.assign(end, content.end());
    return array;
}

// Write a tensor to a .npy file.
void save(const fs::path& path, const Ort::Value& value) {
    Ort::TensorTypeAndShapeInfo info = value.GetTensorTypeAndShapeInfo();
    const std::string& type = TYPES.at(info.GetElementType());
    std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': (";
    for (int64_t length : info.GetShape()) header += std::to_string(length) + ", ";
    header += ")}";
    header.resize(245, ' ');
    std::ofstream file(path, std::ios::binary);
    file.write("\x93NUMPY\x01\x00\xf6\x00", 10);
    file << header << '\n';
    auto size = static_cast<std::streamsize>(info.GetElementCount()) * (type.back() - '0');
    file.write(static_cast<const char*>(value.GetTensorRawData()), size);
    if (!file) throw std::runtime_error(path.string() + " cannot be written");
}

void add_provider(Ort::Env& env, Ort::SessionOptions& options, const fs::path& library) {
    env.RegisterExecutionProviderLibrary("ort_gridsample", library.native());
    std::vector<Ort::ConstEpDevice> devices;
    for (const Ort::ConstEpDevice& device : env.GetEpDevices()) {
        std::string_view name = device.EpName();
        if (name == "GridSampleExecutionProvider") devices.push_back(device);
    }
    options.AppendExecutionProvider_V2(env, devices, Ort::KeyValuePairs());
}

void run(bool has_provider, const std::vector<fs::path>& paths) {
    Ort::Env env(ORT_LOGGING_LEVEL_FATAL, "run_model");
    Ort::SessionOptions options;
    // onnxruntime would not look for a relative path in the current folder.
    fs::path library = fs::absolute(paths[0]);
    if (has_provider)
        add_provider(env, options, library);
    else
        options.RegisterCustomOpsLibrary(library.c_str());
    Ort::Session session(env, paths[1].c_str(), options);

    Ort::AllocatorWithDefaultOptions allocator;
    auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
    std::vector<Array> arrays;
    for (size_t i = 3; i < paths.size(); i++) arrays.push_back(load(paths[i]));
    std::vector<Ort::AllocatedStringPtr> name_owners;
    std::vector<const char*> names;
    std::vector<Ort::Value> inputs;
    for (Array& array : arrays) {
        name_owners.push_back(session.GetInputNameAllocated(inputs.size(), allocator));
        names.push_back(name_owners.back().get());
        inputs.push_back(Ort::Value::CreateTensor(memory, array.data.data(), array.data.size(),
                                                  array.shape.data(), array.shape.size(),
                                                  array.type));
    }
    Ort::AllocatedStringPtr output_name = session.GetOutputNameAllocated(0, allocator);
    const char* output_names[] = {output_name.get()};
    std::vector<Ort::Value> outputs = session.Run(Ort::RunOptions(), names.data(), inputs.data(),
                                                  inputs.size(), output_names, 1);
    save(paths[2], outputs[0]);
}

int main(int argc, char** argv) {
    std::vector<fs::path> paths(argv + 1, argv + argc);
    bool has_provider = !paths.empty() && paths[0] == "--provider";
    if (has_provider) paths.erase(paths.begin());
    if (paths.size() < 3) return 2;
    const OrtApi* api = OrtGetApiBase()->GetApi(has_provider ? 24 : 17);
    if (!api) {
        std::cerr << "onnxruntime " << OrtGetApiBase()->GetVersionString() << " is too old\n";
        return 1;
    }
    Ort::InitApi(api);
    try {
        run(has_provider, paths);
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
    return 0;
}

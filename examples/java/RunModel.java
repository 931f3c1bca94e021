import ai.onnxruntime.OnnxJavaType;
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtEpDevice;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Run a model without Python. Inputs are read from .npy files, and the first output is written to
 * one.
 *
 * <pre>
 * RunModel LIBRARY MODEL OUTPUT.npy INPUT.npy...
 *     a patched model, on the library's custom ops
 * RunModel --provider LIBRARY MODEL OUTPUT.npy INPUT.npy...
 *     an unmodified model, on the library's execution provider
 * </pre>
 */
public final class RunModel {
  /** NumPy's names of element types, which are little-endian. */
  private static final Map<String, OnnxJavaType> TYPES =
      Map.of(
          "<f4", OnnxJavaType.FLOAT,
          "<f8", OnnxJavaType.DOUBLE,
          "<f2", OnnxJavaType.FLOAT16,
          "|u1", OnnxJavaType.UINT8,
          "|i1", OnnxJavaType.INT8,
          "<i2", OnnxJavaType.INT16,
          "<i4", OnnxJavaType.INT32,
          "<i8", OnnxJavaType.INT64,
          "|b1", OnnxJavaType.BOOL);

  private static final Pattern HEADER =
      Pattern.compile("'descr': '(.*?)'.*'shape': \\((.*?)\\)", Pattern.DOTALL);

  private RunModel() {}

  /** Read a .npy file of version 1: 10 bytes, a header of text, and the elements. */
  private static OnnxTensor load(OrtEnvironment env, Path path) throws IOException, OrtException {
    byte[] bytes = Files.readAllBytes(path);
    ByteBuffer content = ByteBuffer.allocateDirect(bytes.length).order(ByteOrder.LITTLE_ENDIAN);
    content.put(bytes);
    int start = 10 + content.getShort(8);
    String text = new String(bytes, 10, start - 10, StandardCharsets.ISO_8859_1);
    Matcher header = HEADER.matcher(text);
    if (!header.find() || !TYPES.containsKey(header.group(1))) {
      throw new IOException(path + " cannot be read");
    }
    long[] shape =
        Arrays.stream(header.group(2).split(","))
            .map(String::trim)
            .filter(length -> !length.isEmpty())
            .mapToLong(Long::parseLong)
            .toArray();
    ByteBuffer data = content.position(start).slice().order(ByteOrder.nativeOrder());
    return OnnxTensor.createTensor(env, data, shape, TYPES.get(header.group(1)));
  }

  /** Write a tensor to a .npy file. */
  private static void save(Path path, OnnxTensor tensor) throws IOException {
    OnnxJavaType type = tensor.getInfo().type;
    String name = null;
    for (Map.Entry<String, OnnxJavaType> entry : TYPES.entrySet()) {
      if (entry.getValue() == type) {
        name = entry.getKey();
      }
    }
    StringBuilder shape = new StringBuilder();
    for (long length : tensor.getInfo().getShape()) {
      shape.append(length).append(", ");
    }
    String text =
        String.format("{'descr': '%s', 'fortran_order': False, 'shape': (%s)}", name, shape);
    String header = String.format("\u0093NUMPY\u0001\0\u00f6\0%-245s\n", text);
    try (OutputStream file = Files.newOutputStream(path)) {
      file.write(header.getBytes(StandardCharsets.ISO_8859_1));
      file.write(tensor.getByteBuffer().array());
    }
  }

  private static void addProvider(
      OrtEnvironment env, OrtSession.SessionOptions options, Path library) throws OrtException {
    env.registerExecutionProviderLibrary("ort_gridsample", library.toString());
    List<OrtEpDevice> devices = new ArrayList<>();
    for (OrtEpDevice device : env.getEpDevices()) {
      if (device.getEpName().equals("GridSampleExecutionProvider")) {
        devices.add(device);
      }
    }
    options.addExecutionProvider(devices, Map.of());
  }

  private static void run(boolean hasProvider, List<Path> paths) throws IOException, OrtException {
    OrtEnvironment env = OrtEnvironment.getEnvironment();
    // onnxruntime would not look for a relative path in the current folder.
    Path library = paths.get(0).toAbsolutePath();
    try (OrtSession.SessionOptions options = new OrtSession.SessionOptions()) {
      if (hasProvider) {
        addProvider(env, options, library);
      } else {
        options.registerCustomOpLibrary(library.toString());
      }
      try (OrtSession session = env.createSession(paths.get(1).toString(), options)) {
        Map<String, OnnxTensor> inputs = new HashMap<>();
        Iterator<String> names = session.getInputNames().iterator();
        for (Path path : paths.subList(3, paths.size())) {
          inputs.put(names.next(), load(env, path));
        }
        try (OrtSession.Result outputs = session.run(inputs)) {
          save(paths.get(2), (OnnxTensor) outputs.get(0));
        }
      }
    }
  }

  /** Run the model; see the class. */
  public static void main(String[] arguments) throws IOException {
    boolean hasProvider = arguments.length > 0 && arguments[0].equals("--provider");
    List<Path> paths = Arrays.stream(arguments).skip(hasProvider ? 1 : 0).map(Path::of).toList();
    if (paths.size() < 3) {
      System.exit(2);
    }
    try {
      run(hasProvider, paths);
    } catch (OrtException error) {
      System.err.println(error.getMessage());
      System.exit(1);
    }
  }
}

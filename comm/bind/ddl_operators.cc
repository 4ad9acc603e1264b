// ddl_MDR.so: the operators of IBM's DDL, for scripts that load them by tf.load_op_library.
//
// Loading it has Python import dl_comm.tensorflow.ddl_operators, which joins the ranks and does the kernels' work.
// Init has five outputs. In a folder ddl-tensorflow/lib, where DDL 1 has it, it has that one's three.
#include <cstdio>

#include "tensorflow_kernel.h"

namespace {

// A function of Python's interface, found in the process.
template <typename F>
F of_python(const char* name) {
  void* address = dlsym(RTLD_DEFAULT, name);
  F function;
  std::memcpy(&function, &address, sizeof function);
  return function;
}

std::string own_path() {
  Dl_info info;
  return dladdr(&reduce_with, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

bool as_in_ddl_1() { return own_path().find("ddl-tensorflow/lib/") != std::string::npos; }

void take(dl_reduce reduce) { reduce_with = reduce; }

// Has Python call take() with the function that does that work.
void import_in_python() {
  const auto runs = of_python<int (*)()>("Py_IsInitialized");
  if (runs == nullptr || runs() == 0) {
    why_not = "no Python runs in this process: DDL's operators need its dl_comm";
    return;
  }
  const int state = of_python<int (*)()>("PyGILState_Ensure")();
  const std::string use = std::to_string(reinterpret_cast<std::uintptr_t>(&take));
  const std::string script
      = "exec('import dl_comm.tensorflow.ddl_operators as o; o.serve(" + use + ")', {'__name__': 'ddl_MDR'})";
  if (of_python<int (*)(const char*)>("PyRun_SimpleString")(script.c_str()) != 0)
    why_not = own_path() + " could not import dl_comm.tensorflow; why is told where it was loaded";
  of_python<void (*)(int)>("PyGILState_Release")(state);
}

void* create(TF_OpKernelConstruction* made, const std::string& op) {
  auto* kernel = new Kernel;
  kernel->op = op;
  const TF_StringView name = tf.TF_OpKernelConstruction_GetName(made);
  kernel->names.assign(name.data, name.len);
  return kernel;
}

void* create_init(TF_OpKernelConstruction* made) { return create(made, "Init"); }
void* create_bcast(TF_OpKernelConstruction* made) { return create(made, "Bcast"); }

// The op is told as words: AllReduce avg 0 0.170000
void* create_all_reduce(TF_OpKernelConstruction* made) {
  Status status;
  unsigned char mpi = 0;
  float check = 0;
  const std::string how = text_attribute(made, "op", status.status);
  if (status.good()) tf.TF_OpKernelConstruction_GetAttrBool(made, "mpi", &mpi, status.status);
  if (status.good()) tf.TF_OpKernelConstruction_GetAttrFloat(made, "check", &check, status.status);
  if (!status.good()) tf.TF_OpKernelConstruction_Failure(made, status.status);
  return create(made, "AllReduce " + how + (mpi != 0 ? " 1 " : " 0 ") + std::to_string(check));
}

void numbers(Job& job, TF_Status* status) {
  constexpr int tf_int32 = 3;  // TF_DataType
  for (int i = 0, n = as_in_ddl_1() ? 3 : 5; i < n && tf.TF_GetCode(status) == 0; ++i) {
    job.outputs.emplace_back();
    job.outputs.back().tensor
        = tf.TF_AllocateOutput(job.context, i, tf_int32, nullptr, 0, sizeof(std::int32_t), status);
  }
}

template <int n>
void numbers_of_no_dimensions(TF_ShapeInferenceContext* context, TF_Status* status) {
  for (int i = 0; i < n && tf.TF_GetCode(status) == 0; ++i) {
    TF_ShapeHandle* scalar = tf.TF_ShapeInferenceContextScalar(context);
    tf.TF_ShapeInferenceContextSetOutput(context, i, scalar, status);
    tf.TF_DeleteShapeHandle(scalar);
  }
}

struct Op {
  const char* name;
  std::vector<const char*> inputs, outputs, attributes;
  void (*shapes)(TF_ShapeInferenceContext*, TF_Status*);
  void* (*create)(TF_OpKernelConstruction*);
  void (*compute)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
};

void define(const Op& op) {
  TF_OpDefinitionBuilder* made = tf.TF_NewOpDefinitionBuilder(op.name);
  for (const char* input : op.inputs) tf.TF_OpDefinitionBuilderAddInput(made, input);
  for (const char* output : op.outputs) tf.TF_OpDefinitionBuilderAddOutput(made, output);
  for (const char* attribute : op.attributes) tf.TF_OpDefinitionBuilderAddAttr(made, attribute);
  tf.TF_OpDefinitionBuilderSetIsStateful(made, true);  // else equal ops are merged and unused ones dropped
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(made, op.shapes);
  Status status;
  tf.TF_RegisterOpDefinition(made, status.status);
  for (const char* device : {"CPU", "GPU"}) {  // their tensors are on the host in both cases
    if (!status.good()) break;
    TF_KernelBuilder* kernel = tf.TF_NewAsyncKernelBuilder(op.name, device, op.create, op.compute, destroy);
    if (*device == 'G') {
      for (const std::vector<const char*>* arguments : {&op.inputs, &op.outputs})
        for (const std::string argument : *arguments)
          tf.TF_KernelBuilder_HostMemory(kernel, argument.substr(0, argument.find(':')).c_str());
    }
    tf.TF_RegisterKernelBuilder((std::string("Ddl") + op.name + device).c_str(), kernel, status.status);
  }
  if (!status.good()) loading_error = std::string("TensorFlow refused the op ") + op.name;
}

void define_all() {
  const char* const types = "T: {float, double, half, bfloat16, int32, int64}";
  const std::vector<const char*> how = {"op: {'sum', 'avg'}", types, "mpi: bool = false", "check: float = 0.0"};
  std::vector<const char*> how_n = how;
  how_n.insert(how_n.begin(), "N: int >= 1");
  const std::vector<const char*> of_init = {"mode: string = ''", "pci: bool = false"};
  if (as_in_ddl_1())
    define({"Init", {"num_gpu: int32"}, {"rank: int32", "size: int32", "gpuid: int32"}, of_init,
            numbers_of_no_dimensions<3>, create_init, compute<numbers>});
  else
    define({"Init", {"user_gpuid: int32"},
            {"rank: int32", "size: int32", "local_rank: int32", "local_size: int32", "local_gpuid: int32"}, of_init,
            numbers_of_no_dimensions<5>, create_init, compute<numbers>});
  define({"Bcast", {"input: T"}, {"output: T"}, {types}, same_shapes, create_bcast, compute<inputs_in_outputs>});
  define({"AllReduce", {"input: T"}, {"output: T"}, how, same_shapes, create_all_reduce, compute<inputs_in_outputs>});
  define({"AllReduceN", {"input: N*T"}, {"output: N*T"}, how_n, same_shapes, create_all_reduce,
          compute<inputs_in_outputs>});
}

// Runs when TensorFlow loads this library, which is when it collects new ops.
[[maybe_unused]] const bool loaded = [] {
  if (loading_error.empty()) define_all();
  if (loading_error.empty()) {
    import_in_python();
  } else {
    std::fprintf(stderr, "dl_comm: ddl_MDR.so: %s\n", loading_error.c_str());
  }
  return loading_error.empty();
}();

}  // namespace

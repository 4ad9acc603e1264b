// DlReduce: a TensorFlow op over a list of tensors, for every TensorFlow from 2.15 on.
//
// Who does the reducing is told by dl_tensorflow_use: a function of Python's, so that the core and TensorFlow never meet.
// Ops of a session that are under way at once are each on a team of its own.
#include "tensorflow_kernel.h"

extern "C" {
__attribute__((visibility("default"))) void dl_tensorflow_use(dl_reduce reduce);
__attribute__((visibility("default"))) const char* dl_tensorflow_error();
}

namespace {

void* create(TF_OpKernelConstruction* made) {
  Status status;
  auto* kernel = new Kernel;
  kernel->op = text_attribute(made, "op", status.status);
  if (status.good()) kernel->names = text_attribute(made, "names", status.status);
  if (status.good()) tf.TF_OpKernelConstruction_GetAttrInt32(made, "team", &kernel->team, status.status);
  if (!status.good()) tf.TF_OpKernelConstruction_Failure(made, status.status);
  return kernel;
}

void define() {
  TF_OpDefinitionBuilder* op = tf.TF_NewOpDefinitionBuilder("DlReduce");
  tf.TF_OpDefinitionBuilderAddAttr(op, "T: list(type) >= 1");
  tf.TF_OpDefinitionBuilderAddAttr(op, "op: string");
  tf.TF_OpDefinitionBuilderAddAttr(op, "names: string");
  tf.TF_OpDefinitionBuilderAddAttr(op, "team: int");
  tf.TF_OpDefinitionBuilderAddInput(op, "inputs: T");
  tf.TF_OpDefinitionBuilderAddOutput(op, "outputs: T");
  tf.TF_OpDefinitionBuilderSetIsStateful(op, true);  // else equal ops are merged and unused ones dropped
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(op, same_shapes);
  Status status;
  tf.TF_RegisterOpDefinition(op, status.status);
  if (!status.good()) loading_error = "TensorFlow refused the op DlReduce";
  TF_KernelBuilder* kernel = tf.TF_NewAsyncKernelBuilder("DlReduce", "CPU", create, compute<inputs_in_outputs>, destroy);
  if (status.good()) tf.TF_RegisterKernelBuilder("DlReduceOp", kernel, status.status);
  if (!status.good() && loading_error.empty()) loading_error = "TensorFlow refused the kernel of DlReduce";
}

// Runs when TensorFlow loads this library, which is when it collects new ops.
[[maybe_unused]] const bool loaded = [] {
  if (loading_error.empty()) define();
  return loading_error.empty();
}();

}  // namespace

void dl_tensorflow_use(dl_reduce reduce) { reduce_with = reduce; }

const char* dl_tensorflow_error() { return loading_error.c_str(); }

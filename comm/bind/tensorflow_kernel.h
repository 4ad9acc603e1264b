// What the kernels of TensorFlow ops over lists of tensors share: they reduce in place where TensorFlow lets them have
// their inputs' memory (a gradient that nobody else reads), and in a copy otherwise.
//
// A kernel is asynchronous: a thread of its own waits for the other ranks, and none of TensorFlow's is held. In a
// session several ops may be under way at once, started in another order on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorflow_c.h"

extern "C" {
// Reduces n arrays in place. On failure writes a sentence of less than `room` bytes to `error`.
typedef void (*dl_reduce)(int team, const char* op, const char* names, int n, void** data, const std::int64_t* counts,
                          const int* dtypes, char* error, int room);
}

namespace {

constexpr int tf_internal = 13;  // TF_Code
constexpr int error_room = 2000;

dl_reduce reduce_with = nullptr;
std::string why_not = "dl_comm.tensorflow has not been imported";  // while there is no such function

struct Status {
  TF_Status* status = tf.TF_NewStatus();
  Status() = default;
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  ~Status() { tf.TF_DeleteStatus(status); }
  bool good() const { return tf.TF_GetCode(status) == 0; }
};

// A tensor that TensorFlow counts as used until this ends.
struct Held {
  TF_Tensor* tensor = nullptr;
  Held() = default;
  Held(Held&& other) noexcept : tensor(other.tensor) { other.tensor = nullptr; }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() { release(); }
  void release() {
    if (tensor != nullptr) tf.TF_DeleteTensor(tensor);
    tensor = nullptr;
  }
};

struct Kernel {
  std::string op;
  std::string names;
  std::int32_t team = 0;
};

std::string text_attribute(TF_OpKernelConstruction* made, const char* name, TF_Status* status) {
  std::int32_t count = 0, size = 0;
  tf.TF_OpKernelConstruction_GetAttrSize(made, name, &count, &size, status);
  if (tf.TF_GetCode(status) != 0 || size <= 0) return {};
  std::string text(static_cast<std::size_t>(size), '\0');
  tf.TF_OpKernelConstruction_GetAttrString(made, name, text.data(), text.size(), status);
  return text;
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// Returns output i holding the values of input i: the input's own memory if TensorFlow gives it away, else a copy.
Held output_with_input(TF_OpKernelContext* context, int i, TF_Status* status) {
  Held input, output;
  tf.TF_GetInput(context, i, &input.tensor, status);
  if (tf.TF_GetCode(status) != 0) return output;
  std::vector<std::int64_t> dims(static_cast<std::size_t>(tf.TF_NumDims(input.tensor)));
  for (std::size_t d = 0; d < dims.size(); ++d) dims[d] = tf.TF_Dim(input.tensor, static_cast<int>(d));
  input.release();  // as long as we hold it, it has another reader and is not given away
  int forwarded = -1;
  output.tensor = tf.TF_ForwardInputOrAllocateOutput(context, &i, 1, i, dims.data(), static_cast<int>(dims.size()),
                                                     &forwarded, status);
  if (tf.TF_GetCode(status) != 0 || forwarded == i) return output;
  tf.TF_GetInput(context, i, &input.tensor, status);
  if (tf.TF_GetCode(status) == 0 && tf.TF_TensorByteSize(input.tensor) > 0)
    std::memcpy(tf.TF_TensorData(output.tensor), tf.TF_TensorData(input.tensor), tf.TF_TensorByteSize(input.tensor));
  return output;
}

// One execution: the outputs, already holding this rank's values, and what to call at its end.
struct Job {
  Kernel kernel;
  TF_OpKernelContext* context = nullptr;
  std::vector<Held> outputs;
  std::function<void()> done;

  void run() {
    std::vector<void*> data;
    std::vector<std::int64_t> counts;
    std::vector<int> dtypes;
    for (const Held& output : outputs) {
      std::int64_t count = 1;
      for (int d = 0; d < tf.TF_NumDims(output.tensor); ++d) count *= tf.TF_Dim(output.tensor, d);
      data.push_back(tf.TF_TensorData(output.tensor));
      counts.push_back(count);
      dtypes.push_back(tf.TF_TensorType(output.tensor));
    }
    char error[error_room] = "";
    if (reduce_with == nullptr) {
      why_not.copy(error, error_room - 1);
    } else {
      reduce_with(kernel.team, kernel.op.c_str(), kernel.names.c_str(), static_cast<int>(outputs.size()), data.data(),
                  counts.data(), dtypes.data(), error, error_room);
    }
    if (error[0] != '\0') {
      const Status status;
      tf.TF_SetStatus(status.status, tf_internal, error);
      tf.TF_OpKernelContext_Failure(context, status.status);
    }
    outputs.clear();
    done();
  }
};

void inputs_in_outputs(Job& job, TF_Status* status) {
  const int n = tf.TF_NumInputs(job.context);
  for (int i = 0; i < n && tf.TF_GetCode(status) == 0; ++i)
    job.outputs.push_back(output_with_input(job.context, i, status));
}

// Fills the outputs by `prepare`, and lets a thread do the rest.
template <void (*prepare)(Job&, TF_Status*)>
void compute(void* made, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  // TensorFlow passes the address of a std::function of its own that ends with this call: the thread needs a copy.
  auto job = std::make_unique<Job>();
  job->done = *reinterpret_cast<std::function<void()>*>(done);
  job->kernel = *static_cast<const Kernel*>(made);
  job->context = context;
  const Status status;
  prepare(*job, status.status);
  if (!status.good()) {
    tf.TF_OpKernelContext_Failure(context, status.status);
    job->outputs.clear();
    job->done();
    return;
  }
  std::thread([job = std::move(job)] { job->run(); }).detach();
}

void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto n = static_cast<int>(tf.TF_ShapeInferenceContextNumInputs(context));
  for (int i = 0; i < n; ++i) {
    TF_ShapeHandle* shape = tf.TF_NewShapeHandle();
    tf.TF_ShapeInferenceContextGetInput(context, i, shape, status);
    if (tf.TF_GetCode(status) == 0) tf.TF_ShapeInferenceContextSetOutput(context, i, shape, status);
    tf.TF_DeleteShapeHandle(shape);
  }
}

}  // namespace

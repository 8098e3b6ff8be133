// Runs a package for GPUs from C++, without Python, torch, a compiler or the CUDA toolkit: `main model.ptp 3 40 400` calls it with so
// many rows each. NVIDIA's driver is loaded at run time; a program with the toolkit has cudaMalloc and cudaMemcpy instead.
//
// The inputs are a formula, so that whoever wants to can compute the same elsewhere. For each call it prints the number of rows and
// the sum and the largest of the results.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <dlfcn.h>

#include "polytile_package.h"

namespace {

constexpr int64_t COLUMNS = 64;

// A function of the driver, of this name.
template <typename... Types>
void driver(const char* name, Types... arguments) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW);
  auto* function = library == nullptr ? nullptr : reinterpret_cast<int (*)(Types...)>(dlsym(library, name));
  int code = function == nullptr ? -1 : function(arguments...);
  if (code == 0) return;
  std::printf("%s: %d\n", name, code);
  std::exit(1);
}

std::vector<float> input_of(int64_t rows) {
  std::vector<float> values(rows * COLUMNS);
  for (size_t i = 0; i < values.size(); i++) values[i] = std::sin(0.001 * i);
  return values;
}

int call(PolytilePackage* package, int64_t rows) {
  std::vector<float> values = input_of(rows);
  int64_t shape[] = {rows, COLUMNS};
  void* data = nullptr;
  driver("cuMemAlloc_v2", &data, values.size() * sizeof(float));
  driver("cuMemcpyHtoD_v2", data, static_cast<const void*>(values.data()), values.size() * sizeof(float));
  DLTensor input{};
  input.data = data;
  input.device = {2, 0};
  input.ndim = 2;
  input.dtype = {2, 32, 1};
  input.shape = shape;
  const DLTensor* inputs[] = {&input};
  DLManagedTensor* output = nullptr;
  char why[1024];
  if (polytile_call(package, inputs, 1, &output, 1, why, sizeof why) != POLYTILE_OK) {
    std::printf("%s\n", why);
    return 1;
  }
  int64_t count = output->dl_tensor.shape[0] * output->dl_tensor.shape[1];
  std::vector<float> results(count);
  driver("cuMemcpyDtoH_v2", static_cast<void*>(results.data()), output->dl_tensor.data, count * sizeof(float));
  double sum = 0;
  float largest = count > 0 ? results[0] : 0;
  for (int64_t i = 0; i < count; i++) {
    sum += results[i];
    largest = std::max(largest, results[i]);
  }
  std::printf("%ld rows: sum %.4f, largest %.4f\n", static_cast<long>(rows), sum, largest);
  output->deleter(output);
  driver("cuMemFree_v2", data);
  return 0;
}

}  // namespace

int main(int count, char** words) {
  char why[1024];
  if (count < 2) {
    std::printf("main PACKAGE ROWS...\n");
    return 2;
  }
  PolytilePackage* package = polytile_open(words[1], why, sizeof why);
  if (package == nullptr) {
    std::printf("%s\n", why);
    return 1;
  }
  void* context = nullptr;
  driver("cuInit", 0u);
  driver("cuDevicePrimaryCtxRetain", &context, 0);
  driver("cuCtxSetCurrent", context);
  int status = 0;
  for (int i = 2; i < count; i++) status |= call(package, std::atol(words[i]));
  polytile_close(package);
  return status;
}

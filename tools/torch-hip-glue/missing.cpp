// What every symbol that a reduced build leaves out leads to: an error with its name.
#include <cxxabi.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

extern "C" __attribute__((visibility("hidden"))) [[noreturn]] void torch_hip_missing(const char* symbol) {
  int status = 0;
  char* readable = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  std::string name = status == 0 && readable != nullptr ? readable : symbol;
  std::free(readable);
  throw std::runtime_error("this build of PyTorch for HIP has no " + name + "; tools/torch-hip --full builds it");
}

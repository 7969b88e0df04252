// torch._C for HIP: Debian's CPU build makes the module, and this adds what torch/csrc/Module.cpp adds in a ROCm build.
#include <Python.h>

#include <ATen/Context.h>

extern "C" PyObject* initModule();
PyMethodDef* THCPModule_methods();
void THCPStream_init(PyObject* module);
void THCPEvent_init(PyObject* module);
void THCPGraph_init(PyObject* module);
void THCPMemPool_init(PyObject* module);

namespace torch::cuda {
void initModule(PyObject* module);
namespace python {
// Copies between cards: torch/csrc/cuda/python_comm.cpp, only in a full build.
__attribute__((weak)) void initCommMethods(PyObject*) {}
} // namespace python
} // namespace torch::cuda

extern "C" __attribute__((visibility("default"))) PyObject* PyInit__C() {
  PyObject* module = initModule();
  if (module == nullptr || PyModule_AddFunctions(module, THCPModule_methods()) != 0)
    return nullptr;
  try {
    torch::cuda::initModule(module);
    THCPStream_init(module);
    THCPEvent_init(module);
    THCPGraph_init(module);
    THCPMemPool_init(module);
    // Context.h: a ROCm build searches MIOpen's solvers unless that is turned off. The field is in the CPU's library here.
    at::globalContext().setBenchmarkCuDNN(true);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ImportError, error.what());
    return nullptr;
  }
  if (PyObject_SetAttrString(module, "_has_cuda", Py_True) != 0 || PyObject_SetAttrString(module, "_has_cudnn", Py_True) != 0)
    return nullptr;
  return module;
}

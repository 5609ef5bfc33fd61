// The Python module: a function for each op (common/arguments.h), which takes tensors and numbers by
// name, or by position in the order of the struct. This file and layer.cpp alone include torch's
// headers: everything else in csrc takes raw pointers.

#include <torch/csrc/autograd/python_variable.h>

#include "binding/binder.h"
#include "binding/torch.h"

namespace sluice {
namespace {

struct Function {
  explicit Function(const Op& op) : binder(op) {
    for (const int i : binder.passed()) {
      names.push_back(PyUnicode_InternFromString(op.fields[i].name));
      if (op.fields[i].kind != Field::kOut) by_position.push_back(i);
    }
  }

  Binder binder;
  std::vector<PyObject*> names;  // of binder.passed()
  std::vector<int> by_position;
  PyMethodDef method;
};

struct Passed {
  Binder::Values values;
  c10::Device device = c10::kCPU;  // the first tensor's, the host's only if all are there
};

// What an op allocates.
struct Made {
  at::Tensor tensors[4];
  int num = 0;
};

// Lets other threads run Python while a launch waits for room in the stream's queue.
struct WithoutPython {
  PyThreadState* state = PyEval_SaveThread();
  ~WithoutPython() { PyEval_RestoreThread(state); }
};

void take(const Function& function, int i, PyObject* value, Passed& passed) {
  Binder::Values& values = passed.values;
  const Field& field = function.binder.op().fields[i];
  values.given[i] = true;
  if (field.kind == Field::kNumber) {
    values.numbers[i] = PyFloat_AsDouble(value);  // also of int and bool
    if (values.numbers[i] == -1.0 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      require(false, field.name, " must be a number");
    }
    return;
  }
  if (value == Py_None && field.kind != Field::kIn) return;
  require(THPVariable_Check(value), field.name, " must be a tensor");
  const at::Tensor& tensor = THPVariable_Unpack(value);
  if (tensor.is_cuda() && !passed.device.is_cuda()) passed.device = tensor.device();
  values.views[i] = view_of(tensor);
  values.tensors[i] = &values.views[i];
}

// The index in binder.passed() of an argument; most callers pass them in order.
size_t find(const Function& function, PyObject* name, size_t expected) {
  const size_t count = function.names.size();
  for (size_t i = 0; i < count; ++i) {
    const size_t at = (expected + i) % count;
    if (function.names[at] == name) return at;
  }
  for (size_t at = 0; at < count; ++at) {
    if (PyUnicode_Compare(function.names[at], name) == 0) return at;
  }
  throw BadArgument(std::string("there is no argument ") + PyUnicode_AsUTF8(name));
}

void parse(const Function& function, PyObject* const* args, Py_ssize_t num, PyObject* keywords,
           Passed& into) {
  const auto& passed = function.binder.passed();
  Binder::Values& values = into.values;
  const size_t num_positions = function.by_position.size();
  require(static_cast<size_t>(num) <= num_positions, "at most ", num_positions, " arguments, got ",
          num);
  for (Py_ssize_t i = 0; i < num; ++i) take(function, function.by_position[i], args[i], into);
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  size_t expected = static_cast<size_t>(num);
  for (Py_ssize_t i = 0; i < named; ++i) {
    const size_t at = find(function, PyTuple_GET_ITEM(keywords, i), expected);
    require(!values.given[passed[at]], "two values for ",
            function.binder.op().fields[passed[at]].name);
    take(function, passed[at], args[num + i], into);
    expected = at + 1;
  }
  for (const int i : passed) {
    const Field& field = function.binder.op().fields[i];
    require(field.kind != Field::kIn || values.given[i], field.name, " is missing");
  }
}

PyObject* wrapped(const Made& made) {
  if (made.num == 0) Py_RETURN_NONE;
  if (made.num == 1) return THPVariable_Wrap(made.tensors[0]);
  PyObject* all = PyTuple_New(made.num);
  for (int i = 0; i < made.num; ++i) PyTuple_SET_ITEM(all, i, THPVariable_Wrap(made.tensors[i]));
  return all;
}

PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t num, PyObject* keywords) {
  const auto& function = *static_cast<Function*>(PyCapsule_GetPointer(self, nullptr));
  const char* op = function.binder.op().name;
  try {
    Passed passed;
    parse(function, args, num, keywords, passed);
    Made made;
    {
      const WithoutPython released;
      launch(function.binder, passed.values, passed.device, made.tensors, made.num);
    }
    return wrapped(made);
  } catch (const BadArgument& error) {
    PyErr_Format(PyExc_ValueError, "%s: %s", op, error.what());
  } catch (const NotServed& error) {
    PyErr_SetString(PyExc_NotImplementedError, error.what());
  } catch (const std::exception& error) {
    PyErr_Format(PyExc_RuntimeError, "%s: %s", op, error.what());
  }
  return nullptr;
}

// mapped_address(host): where kernels find pinned memory of the host.
PyObject* mapped_address(PyObject*, PyObject* host) {
  if (!THPVariable_Check(host)) {
    PyErr_SetString(PyExc_TypeError, "mapped_address: host must be a tensor");
    return nullptr;
  }
  void* address = nullptr;
  const cudaError_t error =
      cudaHostGetDevicePointer(&address, THPVariable_Unpack(host).data_ptr(), 0);
  if (error != cudaSuccess) {
    PyErr_Format(PyExc_ValueError, "mapped_address: host must be pinned memory: %s",
                 cudaGetErrorString(error));
    return nullptr;
  }
  return PyLong_FromVoidPtr(address);
}

PyMethodDef plain_functions[] = {{"mapped_address", mapped_address, METH_O, nullptr}, {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "sluice_kernels", nullptr, -1, plain_functions};

PyObject* make_module() {
  PyObject* module = PyModule_Create(&definition);
  if (module == nullptr) return nullptr;
  for (const Op* op : Op::all()) {
    auto* function = new Function(*op);
    const auto flags = METH_FASTCALL | METH_KEYWORDS;
    function->method = {op->name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call)),
                        flags, nullptr};
    PyObject* capsule = PyCapsule_New(function, nullptr, nullptr);
    PyObject* made = PyCFunction_New(&function->method, capsule);
    Py_XDECREF(capsule);
    if (made == nullptr || PyModule_AddObject(module, op->name, made) != 0) return nullptr;
  }
  return module;
}

}  // namespace
}  // namespace sluice

PyMODINIT_FUNC PyInit_sluice_kernels() {
  try {
    return sluice::make_module();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ImportError, error.what());
    return nullptr;
  }
}

// A library with one function for test_emulated_step_inputs.py.

#include "inputs/step_inputs.cuh"

extern "C" int step_inputs(const sluice::StepInputs& inputs) {
  return sluice::step_inputs(inputs, nullptr);
}

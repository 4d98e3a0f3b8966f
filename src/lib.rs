//! Transposed convolution for ONNX models in tract.

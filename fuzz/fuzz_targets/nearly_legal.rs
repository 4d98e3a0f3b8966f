#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tract_deconv_fuzz::nearly_legal(bytes));

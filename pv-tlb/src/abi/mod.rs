//! Bytes that cross the border between guest and monitor.
//!
//! Layouts only, with size and offset asserts; who writes which field, and in
//! what order, is said at the field.

pub mod debug_exit;
pub mod doorbell;
pub mod hyperv;
pub mod kvm;
pub mod stress;

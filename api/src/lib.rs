//! Config and report types.

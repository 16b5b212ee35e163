//! Modelled machines on which every interleaving of a flush protocol is explored.
//!
//! Empty so far: the live monitor comes first.

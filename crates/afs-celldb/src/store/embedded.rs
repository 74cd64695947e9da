//! The store of a cell whose databases are on one machine.

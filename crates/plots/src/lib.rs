//! Measurements for people: medians with their spread, plots as SVG text, and pages that need nothing beside them. Knows
//! nothing of what was measured, nor how.
//!
//! # What to open for a change
//!
//! - How plots look: [`svg`]. How pages look: [`page`].

#![forbid(unsafe_code)]

mod page;
mod summary;
mod svg;

pub use page::{begin_page, escape};
pub use summary::{Summary, round, short};
pub use svg::{Bar, Family, Line, Series, alone, bars, curves, marks};

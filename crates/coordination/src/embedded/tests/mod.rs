//! The journal under damage, power loss and failing disks.

mod damage;
mod faults;
mod model;

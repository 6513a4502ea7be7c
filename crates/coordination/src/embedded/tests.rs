//! The journal under damage, power loss and failing disks.

mod damage;
mod faults;
mod faulty_disk;
mod model;

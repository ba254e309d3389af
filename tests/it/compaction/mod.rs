//! Space comes back; moved and compressed runs read as before.

pub(crate) mod apart;
pub(crate) mod compressed;
pub(crate) mod growth;
pub(crate) mod growth_stalled;
pub(crate) mod prefaults;
pub(crate) mod shorten;
pub(crate) mod slices;
pub(crate) mod space;

//! `dlq-archiver show`.

use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct Args {}

pub async fn run(_: Args) -> Result<u8> {
    Err(Error::failed("not yet"))
}
